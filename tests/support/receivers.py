"""A receiver of alerts on real HTTP: keeps what it is sent and answers as the test says. It can be away, and come back."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hami.web.server import serve
from tests.support.waiting import wait_until


class Call(msgspec.Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: Any


def take(_: Call) -> int:
    return 200


class Receiver:
    """`calls` holds everything that came in, refused or not; `answer` gives the status; while `held`, no answer is given."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[Call] = []
        self.answer: Callable[[Call], int] = take
        self.held: anyio.Event | None = None

    async def handle(self, request: Request) -> Response:
        call = Call(request.url.path, dict(request.headers), json.loads(await request.body()))
        self.calls.append(call)
        if self.held is not None:
            await self.held.wait()
        status = self.answer(call)
        return PlainTextResponse("taken" if status < 300 else "the test says no", status)

    @property
    def keys(self) -> list[str]:
        """Idempotency keys in the order in which they first came."""
        return [*dict.fromkeys(call.headers["idempotency-key"] for call in self.calls)]

    @property
    def told(self) -> list[tuple[str, str]]:
        """(alert, status) of each notice, repeats left out."""
        first = {call.headers["idempotency-key"]: call for call in reversed(self.calls)}
        return [(first[key].body["alert"], first[key].body["status"]) for key in self.keys]

    @property
    def alerts(self) -> list[Any]:
        """What an Alertmanager got: every alert of every call."""
        return [alert for call in self.calls for alert in call.body]

    async def told_in_the_end(self, expected: Sequence[tuple[str, str]], *, within_s: float = 30) -> None:
        await wait_until(lambda: self.told == [*expected], f"{expected} at {self.url}, repeats left out", timeout=within_s)


def free_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[Receiver]:
    """At the receiver's own URL, until the block ends."""
    app = Starlette(routes=[Route("/{path:path}", receiver.handle, methods=["POST"])])
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(serve, app, bind=receiver.url.removeprefix("http://"), grace_s=1))
        try:
            yield receiver
        finally:
            if receiver.held is not None:
                receiver.held.set()
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def a_receiver() -> AsyncIterator[Receiver]:
    async with listening(Receiver(free_url())) as receiver:
        yield receiver
