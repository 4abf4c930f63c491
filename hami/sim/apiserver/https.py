"""POSTs over HTTPS to webhooks. Failures come back in the words of Go's HTTP client, as users of the API see them."""

import asyncio
import contextlib
import ssl
from functools import lru_cache
from urllib.parse import urlsplit

import anyio
import httptools


class CallFailed(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The webhook gave no answer."""


class _Answer:
    """What httptools' parser reports of a response."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.reusable = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"connection" and value.lower() == b"close":
            self.reusable = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


@lru_cache(maxsize=32)
def trusting(authority: str) -> ssl.SSLContext:
    """A client context that trusts this PEM bundle alone, or the system's authorities when it is empty."""
    return ssl.create_default_context(cadata=authority or None)


class _Connection:
    """An asyncio stream: unlike anyio's it is read while at rest, so the other side can close it without waiting for us."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def exchange(self, request: bytes) -> tuple[int, bytes, bool]:
        """Status and body, and whether the connection may be used again."""
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        try:
            self._writer.write(request)
            while not answer.complete:
                arrived = await self._reader.read(65_536)
                if not arrived:
                    raise CallFailed("EOF")
                parser.feed_data(arrived)
        except OSError as error:
            raise CallFailed("EOF") from error
        except httptools.HttpParserError as error:
            raise CallFailed(f"malformed HTTP response: {error}") from error
        return parser.get_status_code(), bytes(answer.body), answer.reusable

    async def aclose(self) -> None:
        self._writer.close()
        with anyio.CancelScope(shield=True), anyio.move_on_after(0.2), contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def _connect(host: str, port: int, server_name: str, authority: str) -> _Connection:
    try:
        streams = await asyncio.open_connection(host, port, ssl=trusting(authority), server_hostname=server_name)
    except ssl.SSLCertVerificationError as error:
        why = "certificate signed by unknown authority" if error.verify_code in {18, 19, 20, 21} else error.verify_message
        raise CallFailed(f"tls: failed to verify certificate: x509: {why}") from error
    except OSError as error:
        raise CallFailed(f"dial tcp {host}:{port}: connect: connection refused") from error
    return _Connection(*streams)


class Caller:
    """Keeps connections for the next call: a TLS handshake costs more than a review."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int, str, str], list[_Connection]] = {}

    async def post(
        self, url: str, body: bytes, *, authority: str = "", address: tuple[str, int] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer. `address` overrides where the URL's host is reached (a Service)."""
        parts = urlsplit(url)
        server_name = parts.hostname or ""
        host, port = address or (server_name, parts.port or 443)
        request = _head(parts.path or "/", parts.query, parts.netloc, len(body)) + body
        place = (host, port, server_name, authority)
        while kept := self._idle.get(place):
            connection = kept.pop()
            if not connection.usable:
                await connection.aclose()
                continue
            try:
                return await self._once(place, connection, request)
            except CallFailed:
                continue  # the other side closed it as we wrote
        return await self._once(place, await _connect(*place), request)

    async def _once(self, place: tuple[str, int, str, str], connection: _Connection, request: bytes) -> tuple[int, bytes]:
        reusable = False
        try:
            status, answer, reusable = await connection.exchange(request)
        finally:
            if reusable:
                self._idle.setdefault(place, []).append(connection)
            else:
                await connection.aclose()
        return status, answer

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                await connection.aclose()
        self._idle.clear()


def _head(path: str, query: str, host: str, length: int) -> bytes:
    target = f"{path}?{query}" if query else path
    return (
        f"POST {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kube-apiserver-admission\r\n"
        f"Content-Length: {length}\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n\r\n"
    ).encode()
