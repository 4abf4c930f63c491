"""One HTTP request to the API server over kubernetes.aio: its authentication, TLS and pool; our bytes in and out."""

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Self

from hami.kube.access import Access, configuration
from hami.kube.errors import ApiError, error_of

if TYPE_CHECKING:
    from types import TracebackType

    from aiohttp import ClientResponse, ClientTimeout
    from kubernetes.aio.client import ApiClient

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class Transport:
    """An open connection pool. asyncio only: aiohttp, which lies below, knows no other loop."""

    def __init__(self, access: Access, *, connections: int = 64, timeout: float = 30.0, user_agent: str = "hami") -> None:
        self._access, self._connections, self._timeout, self._agent = access, connections, timeout, user_agent
        self._stack = AsyncExitStack()
        self._api: ApiClient | None = None

    async def __aenter__(self) -> Self:
        from kubernetes.aio import client  # noqa: PLC0415 - importing kubernetes takes a second: only who connects pays

        made = await configuration(self._access, connections=self._connections)
        self._api = await self._stack.enter_async_context(client.ApiClient(made))
        return self

    async def __aexit__(
        self, kind: "type[BaseException] | None", error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self._api = None
        await self._stack.aclose()

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str, limit: "ClientTimeout"
    ) -> "ClientResponse":
        """The raw response. The generated methods are passed by: they validate every argument anew, 1 ms each."""
        if self._api is None:
            raise ApiError(0, "Closed", "the client is not open")
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": self._agent}
        request = await self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        sent = await self._api.call_api(*request, _request_timeout=limit)
        response: ClientResponse = sent.response
        return response

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        within: float | None = None,
    ) -> bytes:
        """The body of a success; ApiError for everything else, code 0 when no answer came."""
        import aiohttp  # noqa: PLC0415 - part of kubernetes, and as slow to import

        seconds = within or self._timeout
        with _told(f"{method} {path}", f"no answer within {seconds:g} s"):
            limit = aiohttp.ClientTimeout(total=seconds)
            async with await self._send(method, path, query or {}, body, content_type, limit) as response:
                data: bytes = await response.read()
                status: int = response.status
        if not 200 <= status < 300:
            raise error_of(status, data)
        return data

    @asynccontextmanager
    async def stream(self, path: str, *, query: Mapping[str, str], silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of a long answer in chunks as they arrive.

        ApiError when it is refused, breaks off, or is silent for too long; the body of the `with` keeps its own errors.
        """
        import aiohttp  # noqa: PLC0415 - part of kubernetes, and as slow to import

        what, quiet = f"GET {path}", f"nothing arrived for {silence:g} s"
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence)
        with _told(what, quiet):
            response = await self._send("GET", path, query, None, JSON, limit)
        async with response:
            if response.status != 200:
                with _told(what, quiet):
                    refusal = await response.read()
                raise error_of(response.status, refusal)
            yield _chunks(response, what, quiet)


async def _chunks(response: "ClientResponse", what: str, quiet: str) -> AsyncIterator[bytes]:
    arriving = response.content.iter_any()
    while True:
        with _told(what, quiet):
            chunk = await anext(arriving, b"")
        if not chunk:
            return
        yield chunk


@contextmanager
def _told(what: str, timed_out: str) -> Generator[None]:
    """The transport's many exceptions as the one that callers know."""
    import aiohttp  # noqa: PLC0415 - part of kubernetes, and as slow to import

    try:
        yield
    except TimeoutError:
        raise ApiError(0, "Timeout", f"{what}: {timed_out}") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(0, type(error).__name__, f"{what}: {error}") from error
