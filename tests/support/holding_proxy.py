"""A unix-socket proxy that holds back some requests for a while: a reader behind it falls behind, everything else goes on."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream


class HoldingProxy:
    """While held, requests that contain `marked`, and answers to them, wait. Connections of other requests are not touched."""

    def __init__(self, upstream: str, marked: bytes) -> None:
        self._upstream, self._marked = upstream, marked
        self._free = anyio.Event()
        self._free.set()

    def hold(self) -> None:
        self._free = anyio.Event()

    def release(self) -> None:
        self._free.set()

    async def serve(self, near: ByteStream) -> None:
        far = await anyio.connect_unix(self._upstream)
        marked = False

        async def there() -> None:
            nonlocal marked
            async for request in near:
                marked = self._marked in request
                if marked:
                    await self._free.wait()
                await far.send(request)
            await far.send_eof()

        async def back() -> None:
            async for answer in far:
                if marked:
                    await self._free.wait()
                await near.send(answer)
            await near.aclose()

        async with near, far, anyio.create_task_group() as tasks:
            for pump in (there, back):
                tasks.start_soon(_until_broken, pump)


async def _until_broken(pump: Callable[[], Awaitable[None]]) -> None:
    try:
        await pump()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return


@asynccontextmanager
async def holding_proxy(path: str, upstream: str, marked: bytes) -> AsyncIterator[HoldingProxy]:
    proxy = HoldingProxy(upstream, marked)
    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.serve)
        yield proxy
        proxy.release()
        tasks.cancel_scope.cancel()
