"""Fixtures for all tests: asyncio as the backend, and no HAMI_* of the developer's shell."""

import os
from collections.abc import Iterator

import pytest
import structlog

pytest_plugins = ["tests.support.redis_server", "tests.support.cluster", "tests.support.scheduler"]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Plain asyncio: the loop that redis.asyncio, grpc.aio and the Kubernetes client share everywhere."""
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HAMI_") and not name.startswith("HAMI_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    """A command run inside a test sends the logs to that test's standard error, which is closed afterwards."""
    yield
    structlog.reset_defaults()
