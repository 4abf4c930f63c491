"""Staying registered with the kubelet, whatever happens to it, to its socket or to ours.

    .-------------------------- kubelet.sock is new / our socket is gone / nobody listens ---------------------.
    v                                                                                                          |
serve our socket --> wait for kubelet.sock --> Register --(error: back off)--> watch both sockets --------------'
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import grpc
import msgspec

from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.plugin import API_VERSION, options
from hami.telemetry import get_logger

log = get_logger("kubelet")

REGISTER: Final = "/v1beta1.Registration/Register"


class Plugin(Protocol):
    """What is registered: a server that can be started, stopped and started again."""

    @property
    def socket(self) -> Path: ...

    @property
    def streams(self) -> int: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class LinkTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `silence_s`: how long nobody may listen to us before we register again."""

    poll_s: float = 0.25
    register_timeout_s: float = 12.0
    back_off_s: float = 0.5
    back_off_max_s: float = 15.0
    silence_s: float = 10.0


class KubeletLink:
    """Keeps one plugin registered. `registered` and `trouble` say how it stands; `registrations` counts successes."""

    def __init__(self, plugin: Plugin, kubelet_dir: Path, resource: str, *, timing: LinkTiming | None = None) -> None:
        self._plugin, self._kubelet_socket, self._resource = plugin, kubelet_dir / "kubelet.sock", resource
        self._timing = timing or LinkTiming()
        self.registered = False
        self.registrations = 0
        self.trouble = ""

    async def run(self) -> None:
        """For ever; the server is stopped on the way out, also when cancelled."""
        try:
            while True:
                await self._serve()
                ours = _identity(self._plugin.socket)
                kubelets = await self._register()
                await self._watch(kubelets, ours)
                self.registered = False
        finally:
            self.registered = False
            with anyio.CancelScope(shield=True):
                await self._plugin.stop()

    async def _serve(self) -> None:
        """Until it works: the folder of sockets may be gone for a while, with the kubelet that made it."""
        while True:
            await self._plugin.stop()
            try:
                return await self._plugin.start()
            except (OSError, RuntimeError) as error:
                self._say(f"cannot serve on {self._plugin.socket}: {error}")
            await anyio.sleep(self._timing.back_off_s)

    async def _register(self) -> tuple[int, int] | None:
        """Until it works; the answer is which kubelet.sock it was, so that a newer one is told apart."""
        pause = self._timing.back_off_s
        while True:
            kubelets = _identity(self._kubelet_socket)
            if kubelets is None:
                self._say(f"{self._kubelet_socket.name} is not there")
                await anyio.sleep(self._timing.poll_s)
                continue
            if _identity(self._plugin.socket) is None:  # a starting kubelet deletes every other socket before it makes its own
                await self._serve()
            why = await register(
                self._kubelet_socket, self._plugin.socket.name, self._resource, self._timing.register_timeout_s
            )
            if not why:
                self.registered, self.trouble = True, ""
                self.registrations += 1
                log.info("registered", resource=self._resource, registrations=self.registrations)
                return kubelets
            self._say(why)
            await anyio.sleep(pause)
            pause = min(pause * 2, self._timing.back_off_max_s)

    async def _watch(self, kubelets: tuple[int, int] | None, ours: tuple[int, int] | None) -> None:
        """Returns when registering again is due. A kubelet that is merely away is waited for."""
        quiet_since = anyio.current_time()
        ours = _identity(self._plugin.socket) or ours
        while True:
            await anyio.sleep(self._timing.poll_s)
            now = _identity(self._kubelet_socket)
            if self._plugin.streams:
                quiet_since = anyio.current_time()
            for due, why in (
                (now is not None and now != kubelets, "the kubelet's socket is new"),
                (_identity(self._plugin.socket) != ours, "our socket is gone"),
                (now is not None and anyio.current_time() - quiet_since > self._timing.silence_s, "nobody listens to us"),
            ):
                if due:
                    self._say(why)
                    return

    def _say(self, why: str) -> None:
        if why != self.trouble:
            log.warning("not registered", resource=self._resource, why=why)
        self.trouble = why


async def register(kubelet_socket: Path, endpoint: str, resource: str, timeout_s: float, *, version: str = API_VERSION) -> str:
    """One Register call; empty when the kubelet accepted, else its answer in words."""
    request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource, options=options())
    # A channel of its own each time: shared subchannels would keep talking to a socket file that was replaced.
    async with grpc.aio.insecure_channel(
        f"unix://{kubelet_socket}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call: Callable[..., Any] = channel.unary_unary(
            REGISTER, request_serializer=lambda m: m.SerializeToString(), response_deserializer=pb.Empty.FromString
        )
        try:
            await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there. A recreated socket may get the same inode number back, so its change time counts too."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns
