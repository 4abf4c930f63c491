"""The extender's routes. Every outcome of `/filter` and `/bind` is a 200 with `Error` filled or empty; kube-scheduler drops
the body of anything else. `/prioritize` and `/preempt` have no such field: they answer 400 or 503 with a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from hami.domain.errors import InvalidInput
from hami.scheduler.bind import Bind
from hami.scheduler.core import Core
from hami.scheduler.filter import Filter
from hami.scheduler.scored import preempt, prioritize
from hami.scheduler.wire import BindingResult, FilterResult, NodeNames, encode


@dataclass(frozen=True)
class Verbs:
    """What answers while one core lives."""

    core: Core
    filter: Filter
    bind: Bind
    names: NodeNames


class Door(Protocol):
    """Where the routes find the present core: none while the store is away for longer, or not yet reached."""

    @property
    def verbs(self) -> Verbs | None: ...

    @property
    def why_closed(self) -> str:
        """A fixed text."""
        ...


def extender_routes(door: Door) -> Sequence[BaseRoute]:
    async def on_filter(request: Request) -> Response:
        body = await request.body()
        verbs = door.verbs
        if verbs is None:
            return _json(FilterResult(error=door.why_closed))
        return _json(await verbs.filter.answer(verbs.core, body))

    async def on_bind(request: Request) -> Response:
        body = await request.body()
        verbs = door.verbs
        if verbs is None:
            return _json(BindingResult(error=door.why_closed))
        return _json(await verbs.bind.answer(verbs.core, body))

    async def on_prioritize(request: Request) -> Response:
        return _plain(door, await request.body(), lambda verbs, body: prioritize(verbs.core, verbs.names, body))

    async def on_preempt(request: Request) -> Response:
        return _plain(door, await request.body(), lambda verbs, body: preempt(verbs.core, body))

    return [
        Route("/filter", on_filter, methods=["POST"]),
        Route("/bind", on_bind, methods=["POST"]),
        Route("/prioritize", on_prioritize, methods=["POST"]),
        Route("/preempt", on_preempt, methods=["POST"]),
    ]


def _plain(door: Door, body: bytes, answer: Callable[[Verbs, bytes], Any]) -> Response:
    verbs = door.verbs
    reason = door.why_closed if verbs is None else verbs.core.readiness.first_reason()
    if verbs is None or reason:
        return PlainTextResponse(reason + "\n", 503)
    try:
        return _json(answer(verbs, body))
    except InvalidInput as error:
        return PlainTextResponse(f"{error}\n", 400)


def _json(answer: Any) -> Response:
    return Response(encode(answer), media_type="application/json")
