"""One POST over HTTPS to a webhook. Failures come back in the words of Go's HTTP client, as users of the API see them."""

import ssl
from functools import lru_cache
from urllib.parse import urlsplit

import anyio
import httptools
from anyio.abc import ByteStream


class CallFailed(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The webhook gave no answer."""


class _Answer:
    """What httptools' parser reports of a response."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


@lru_cache(maxsize=32)
def trusting(authority: str) -> ssl.SSLContext:
    """A client context that trusts this PEM bundle alone, or the system's authorities when it is empty."""
    return ssl.create_default_context(cadata=authority or None)


async def _connect(host: str, port: int, server_name: str, authority: str) -> ByteStream:
    try:
        return await anyio.connect_tcp(
            host, port, ssl_context=trusting(authority), tls_standard_compatible=False, tls_hostname=server_name
        )
    except ssl.SSLCertVerificationError as error:
        why = "certificate signed by unknown authority" if error.verify_code in {18, 19, 20, 21} else error.verify_message
        raise CallFailed(f"tls: failed to verify certificate: x509: {why}") from error
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
        raise CallFailed(f"dial tcp {host}:{port}: connect: connection refused") from error


async def _exchange(stream: ByteStream, request: bytes) -> tuple[int, bytes]:
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    try:
        await stream.send(request)
        while not answer.complete:
            parser.feed_data(await stream.receive())
    except (anyio.EndOfStream, anyio.BrokenResourceError, OSError) as error:
        raise CallFailed("EOF") from error
    except httptools.HttpParserError as error:
        raise CallFailed(f"malformed HTTP response: {error}") from error
    return parser.get_status_code(), bytes(answer.body)


async def post(url: str, body: bytes, *, authority: str = "", address: tuple[str, int] | None = None) -> tuple[int, bytes]:
    """Status and body of the answer. `address` overrides where the URL's host is reached (a Service)."""
    parts = urlsplit(url)
    server_name = parts.hostname or ""
    host, port = address or (server_name, parts.port or 443)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: kube-apiserver-admission\r\n"
        f"Content-Length: {len(body)}\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n"
        "Connection: close\r\n\r\n"
    )
    stream = await _connect(host, port, server_name, authority)
    try:
        return await _exchange(stream, head.encode() + body)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(0.2):
            await stream.aclose()
