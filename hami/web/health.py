"""`/healthz`, `/readyz` and `/metrics` for any process.

`/healthz` says that the process answers. `/readyz` is 200 only when no check names a reason; else 503 with every reason.
`/metrics` is rendered in a thread: tens of thousands of series take a third of a second.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import anyio
import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

Check = Callable[[], str]
"""Empty when fine, else the reason in words. Called on the event loop: it must not wait."""


class Readiness:
    """Named checks, asked in order each time somebody wants to know."""

    def __init__(self, checks: Mapping[str, Check] = MappingProxyType({})) -> None:
        self._checks = dict(checks)

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    def reasons(self) -> dict[str, str]:
        found = {name: check() for name, check in self._checks.items()}
        return {name: reason for name, reason in found.items() if reason}

    def first_reason(self) -> str:
        """The first check's reason, empty when ready."""
        for check in self._checks.values():
            reason = check()
            if reason:
                return reason
        return ""


def health_routes(readiness: Readiness) -> Sequence[BaseRoute]:
    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reasons = readiness.reasons()
        body = msgspec.json.encode({"ready": not reasons, "reasons": reasons})
        return Response(body, 503 if reasons else 200, media_type="application/json")

    return [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]


def metrics_route(registry: CollectorRegistry, *, before: Callable[[], None] = lambda: None) -> BaseRoute:
    """`before` runs on the event loop at each scrape: the place to freeze what a collector then reads in its thread."""

    async def metrics(_: Request) -> Response:
        before()
        text = await anyio.to_thread.run_sync(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics, methods=["GET"])
