"""Serve one Starlette app over HTTP or TLS inside the caller's task group.

    url = await tasks.start(partial(serve, app, bind="127.0.0.1:8080"))     url of what was really bound (port 0 allowed)
    tasks.cancel_scope.cancel()                                             stops: no new connections, running requests
                                                                            finish within the grace, then are cancelled

Uvicorn does the protocol; this module keeps it from taking signals, from exiting the process and from logging requests.
"""

import contextlib
import socket
import ssl
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from hami.domain.errors import InvalidInput
from hami.telemetry import get_logger
from hami.web.limits import BodyLimit

KEEP_ALIVE_S: Final = 120
"""Longer than the 90 s that Go's client keeps an idle connection: it, not we, must be the one to close, because a POST
that meets a closing connection is not repeated."""

_STAT_EVERY_S: Final = 2.0
_log = get_logger("web")


class Tls(msgspec.Struct, frozen=True):
    """Files of a certificate chain and its key; looked at again every `check_every_s` and loaded when they changed."""

    cert_file: str
    key_file: str
    check_every_s: float = _STAT_EVERY_S
    setting: str = "TLS certificate and key"
    """What an error calls them."""


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers: the process's composition root owns signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.up.set()


async def serve(
    app: ASGIApp,
    *,
    bind: str,
    tls: Tls | None = None,
    max_body: int = 64 * 2**20,
    grace_s: int = 5,
    setting: str = "bind address",
    task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Runs until cancelled. Raises InvalidInput when the address (`setting` names it) or the certificate cannot be used."""
    listener = listen(bind, setting=setting)
    try:
        context = None if tls is None else await anyio.to_thread.run_sync(_context, tls)
        server = _Server(_config(BodyLimit(app, max_body), context, grace_s))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run_shielded, server, listener)
            if tls is not None and context is not None:
                tasks.start_soon(_reload_for_ever, tls, context)
            await server.up.wait()
            task_status.started(_url(bind, listener, secure=tls is not None))
            try:
                await anyio.sleep_forever()
            finally:
                server.should_exit = True
    finally:
        listener.close()


async def _run_shielded(server: _Server, listener: socket.socket) -> None:
    """Cancelling the server's own task would drop requests: it ends by `should_exit`, within its grace."""
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[listener])


def _config(app: ASGIApp, context: ssl.SSLContext | None, grace_s: int) -> uvicorn.Config:
    def given(*_: Any) -> ssl.SSLContext:
        assert context is not None
        return context

    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
        ssl_context_factory=given if context is not None else None,
    )


def listen(bind: str, *, setting: str = "bind address") -> socket.socket:
    """A listening socket for `host:port`, `[v6]:port` or `:port` (all addresses). Raises InvalidInput."""
    host, port = split_bind(bind, setting=setting)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidInput(setting, bind, error.strerror or str(error)) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise InvalidInput(setting, bind, error.strerror or str(error)) from error
    listener.setblocking(False)
    return listener


def split_bind(bind: str, *, setting: str = "bind address") -> tuple[str, int]:
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(setting, bind, "needs host:port with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _url(bind: str, listener: socket.socket, *, secure: bool) -> str:
    host, _ = split_bind(bind)
    if host in {"", "0.0.0.0", "::"}:
        host = "127.0.0.1"
    port = listener.getsockname()[1]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(tls.setting, f"{tls.cert_file}, {tls.key_file}", str(error)) from error
    return context


async def _reload_for_ever(tls: Tls, live: ssl.SSLContext) -> None:
    """New connections get the new certificate, open ones keep theirs."""
    loaded = await anyio.to_thread.run_sync(_fingerprint, tls)
    while True:
        await anyio.sleep(tls.check_every_s)
        found = await anyio.to_thread.run_sync(_fingerprint, tls)
        if found == loaded:
            continue
        try:
            # A pair that is half replaced must not reach the live context: a scratch one tries it first.
            await anyio.to_thread.run_sync(_context, tls)
            live.load_cert_chain(tls.cert_file, tls.key_file)
        except (InvalidInput, OSError) as error:
            _log.warning("certificate not reloaded, the old one stays in use", error=str(error))
        else:
            loaded = found
            _log.info("certificate reloaded", cert_file=tls.cert_file)


def _fingerprint(tls: Tls) -> tuple[tuple[int, int, int], ...]:
    found = []
    for name in (tls.cert_file, tls.key_file):
        try:
            stat = Path(name).stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(found)
