"""Logs for people and programs: one structured line for one fact, JSON unless a terminal reads it."""

import logging
import sys
from typing import Any

import structlog


def configure_logging(*, level: str = "info", json: bool | None = None) -> None:
    """Called once by a process's composition root. `json` None: JSON unless standard error is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if as_json else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Any:
    """A logger bound to the name of the part that speaks."""
    return structlog.get_logger(part=name)
