"""Bodies have a limit. A body beyond it is refused with 413 and the two numbers; it is never cut short and parsed."""

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI wrapper around a Starlette app. A declared length is judged before a byte is read, a chunked body as it comes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = _declared(scope)
        if declared is not None and declared > self._limit:
            await PlainTextResponse(self._refusal(declared), 413, {"Connection": "close"})(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise HTTPException(413, self._refusal(seen), {"Connection": "close"})
            return message

        await self._app(scope, counted, send)

    def _refusal(self, length: int) -> str:
        return f"body of {length} bytes or more is over the limit of {self._limit} bytes\n"


def _declared(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None
