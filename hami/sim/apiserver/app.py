"""The server itself: `serving()` runs one inside the caller's event loop and gives its address."""

import base64
import contextlib
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import anyio
import trustme
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hami.sim.apiserver.admission import User
from hami.sim.apiserver.core import Core, wall_clock
from hami.sim.apiserver.dispatch import Allows, Dispatch
from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.faults import Faults
from hami.sim.apiserver.kinds import BY_PATH, RESOURCES, Resource


class _Protocol(HttpToolsProtocol):
    """Lets the application see its transport, so that it can hang up."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


class _Server(uvicorn.Server):
    """A server inside somebody else's program: signals stay that program's own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server behaves. `tokens` maps bearer tokens to users; None lets everyone in as admin."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    tokens: Mapping[str, User] | None = None
    allows: Allows | None = None
    services: Mapping[str, tuple[str, int]] | None = None
    """Where a webhook's `clientConfig.service` (`namespace/name`) is reached."""
    ring_size: int = 10_000
    bookmark_every: float = 60.0
    seed: int = 0
    clock: Callable[[], datetime] = wall_clock


class RunningServer:
    """What the caller of `serving()` holds."""

    def __init__(self, url: str, authority_pem: str, core: Core, faults: Faults) -> None:
        self.url, self.authority_pem, self.faults = url, authority_pem, faults
        self._core = core

    def load(self, plural: str, objects: Iterable[Obj]) -> None:
        """Seed objects of a resource at once, past admission and watches."""
        self._core.load(_resource(plural), objects)

    def objects(self, plural: str) -> list[Obj]:
        """What is stored now, in the order of a list."""
        shelf = self._core.store.shelf(_resource(plural).store_key)
        return [stored.obj for stored in shelf.in_order()]

    @property
    def revision(self) -> int:
        return self._core.store.revision

    def compact(self) -> None:
        """Forget the past: watches from old revisions and open continue tokens answer 410."""
        self._core.store.compact()

    def kubeconfig(self, token: str = "") -> Obj:
        """A kubeconfig document (JSON is YAML) for this server."""
        cluster: Obj = {"server": self.url}
        if self.authority_pem:
            cluster["certificate-authority-data"] = base64.b64encode(self.authority_pem.encode()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": cluster}],
            "users": [{"name": "sim", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
            "current-context": "sim",
        }


def _resource(plural: str) -> Resource:
    return next((each for each in RESOURCES if each.plural == plural), None) or BY_PATH["", "v1", plural]


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _configuration(app: Dispatch, host: str, folder: str, *, tls: bool) -> tuple[uvicorn.Config, str]:
    pem, files = "", {}
    if tls:
        authority = trustme.CA()
        pem = authority.cert_pem.bytes().decode()
        path = Path(folder) / "server.pem"
        authority.issue_cert(host, "localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
        files = {"ssl_certfile": str(path)}
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
        **files,  # type: ignore[arg-type]
    )
    return config, pem


async def _to_its_end(server: _Server, listener: socket.socket) -> None:
    """Cancelled in the middle, uvicorn would leave its connections open: it ends by `should_exit`, within its grace."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])


@asynccontextmanager
async def serving(settings: Settings | None = None) -> AsyncIterator[RunningServer]:
    """Serve until the block ends. The listening socket is open before the block begins."""
    chosen = settings or Settings()
    core = Core(
        ring_size=chosen.ring_size,
        bookmark_every=chosen.bookmark_every,
        seed=chosen.seed,
        clock=chosen.clock,
        services=chosen.services,
    )
    faults = Faults()
    app = Dispatch(core, faults, chosen.tokens, chosen.allows)
    with tempfile.TemporaryDirectory(prefix="hami-api-") as folder:
        config, pem = _configuration(app, chosen.host, folder, tls=chosen.tls)
        listener = _listener(chosen.host, chosen.port)
        server = _Server(config)
        host = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
        url = f"{'https' if chosen.tls else 'http'}://{host}:{listener.getsockname()[1]}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_to_its_end, server, listener)
            try:
                yield RunningServer(url, pem, core, faults)
            finally:
                server.should_exit = True
                await core.aclose()
