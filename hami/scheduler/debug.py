"""`/debug/view`: which event the view stands at and a digest of its state, for whoever compares two replicas."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hami.projections.checkpoint import digest_of
from hami.projections.folds.state import ClusterState


def view_route(state: Callable[[], ClusterState | None]) -> BaseRoute:
    """`state` gives the live state, None while there is none (503 then)."""

    async def view(_: Request) -> Response:
        found = state()
        if found is None:
            return Response(b'{"error":"there is no view now"}', 503, media_type="application/json")
        body = msgspec.json.encode({"g": found.position.g, "digest": digest_of(found)})
        return Response(body, media_type="application/json")

    return Route("/debug/view", view, methods=["GET"])
