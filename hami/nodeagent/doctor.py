"""What a node needs to serve devices, looked at one by one: what was found, whether it is enough, what to do if not.

Looks only: nothing is created, registered or repaired. Each check ends by itself within a few seconds, whatever is broken.
"""

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio import to_thread

from hami.config import AgentSettings
from hami.domain.errors import DeviceUnavailable, HamiError, InvalidInput, StoreUnavailable
from hami.events.store import Store
from hami.nodeagent.backends.base import DeviceBackend
from hami.nodeagent.backends.library import find_library
from hami.nodeagent.decide.listing import CDI
from hami.nodeagent.podresources import CHECKPOINT, PodResources, registered_ids
from hami.nodeagent.settings import hook_settings, listing_settings, require_node_name
from hami.nodeagent.state import damage, read_state

CHECK_WITHIN_S: Final = 15.0
KERNEL_DRIVER: Final = Path("/proc/driver/nvidia/version")


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`todo` is empty where nothing is to be done."""

    check: str
    verdict: Verdict
    found: str
    todo: str = ""


class Doctor:
    """`backend` and `store` are made by the caller; `store` is None where it could not even be opened (`no_store`: why)."""

    def __init__(self, settings: AgentSettings, backend: DeviceBackend, store: Store | None, *, no_store: str = "") -> None:
        self._settings, self._backend, self._store, self._no_store = settings, backend, store, no_store

    async def examine(self) -> list[Finding]:
        checks: tuple[tuple[str, Callable[[], Awaitable[Finding]]], ...] = (
            ("node", self._node),
            ("devices", self._devices),
            ("kubelet", self._kubelet),
            ("plugin", self._plugin),
            ("pod-resources", self._pod_resources),
            ("library", partial(to_thread.run_sync, self._library, abandon_on_cancel=True)),
            ("runtime", partial(to_thread.run_sync, self._runtime, abandon_on_cancel=True)),
            ("state", partial(to_thread.run_sync, self._state, abandon_on_cancel=True)),
            ("store", self._reached),
        )
        return [await self._within(name, check) for name, check in checks]

    async def _within(self, name: str, check: Callable[[], Awaitable[Finding]]) -> Finding:
        try:
            with anyio.fail_after(CHECK_WITHIN_S):
                return await check()
        except TimeoutError:
            return _fail(name, f"no answer within {CHECK_WITHIN_S:g} s", "whatever it talks to hangs: see its own logs")

    async def _node(self) -> Finding:
        try:
            require_node_name(self._settings)
        except InvalidInput as error:
            name = self._settings.node_name
            return _fail(
                "node", f"{name!r}: {error.why}" if name else error.why, "set NODE_NAME from spec.nodeName, or --node-name"
            )
        return _ok("node", self._settings.node_name)

    async def _devices(self) -> Finding:
        try:
            await self._backend.open()
            found = await self._backend.inventory()
            await self._backend.close()
        except DeviceUnavailable as error:
            return _fail("devices", f"{error}; {self._kernel_driver()}", self._where_a_library_may_be())
        said = f"{len(found.devices)} cards, driver {found.driver or 'unknown'}"
        if found.unavailable:
            gone = "; ".join(f"{uuid}: {why}" for uuid, why in sorted(found.unavailable.items()))
            return _fail("devices", f"{said}; not usable: {gone}", "reset these cards or reboot; see `hami audit device UUID`")
        if not found.devices:
            return _fail("devices", said, "no card is visible to this container: check its privileges and mounts")
        if found.unmonitored:
            deaf = "; ".join(f"{uuid}: {why}" for uuid, why in sorted(found.unmonitored.items()))
            return _warn("devices", f"{said}; not monitored: {deaf}", "their faults are found by polling only, later or never")
        return _ok("devices", said)

    def _kernel_driver(self) -> str:
        """Whether it is the driver that is missing, or only its library in this container."""
        version = KERNEL_DRIVER.read_text("utf-8", "replace").split("\n", 1)[0].strip() if KERNEL_DRIVER.exists() else ""
        return f"the kernel has {version}" if version else "the kernel has no NVIDIA driver loaded"

    def _where_a_library_may_be(self) -> str:
        root = self._settings.driver_root
        if not Path(root).is_dir():
            return f"install the driver; agent.driver_root {root} is not there: mount the driver's root at it"
        found = find_library(root)
        if found is None:
            return f"install the driver; there is no libnvidia-ml.so.1 in the library folders below agent.driver_root {root}"
        return f"{found} is there and cannot be used: does it fit the kernel's driver, and is /dev/nvidiactl in this container?"

    async def _kubelet(self) -> Finding:
        folder = Path(self._settings.kubelet_dir)
        socket = folder / "kubelet.sock"
        why = await _refuses(socket)
        if why:
            todo = "mount the kubelet's device-plugins folder there; is the kubelet running, with its root where it points?"
            return _fail("kubelet", f"{socket}: {why}", todo)
        if not os.access(folder, os.W_OK):
            return _fail("kubelet", f"{folder} is read-only", "mount it writable: our own socket is made there")
        return _ok("kubelet", f"{socket} answers")

    async def _plugin(self) -> Finding:
        socket = Path(self._settings.kubelet_dir) / f"hami-{self._settings.resource_name.rpartition('/')[2]}.sock"
        why = await _refuses(socket)
        if why:
            return _warn("plugin", f"{socket}: {why}", "start the agent on this node, or read its log")
        rival = self._rival()
        if rival:
            return _fail(
                "plugin", rival, "take the other device plugin off this node; then restart the agent to register again"
            )
        return _ok("plugin", f"{socket} answers: an agent is serving {self._settings.resource_name}")

    def _rival(self) -> str:
        """Who else has registered our resource, by the kubelet's own books: ids of no card that this agent told of."""
        folder, resource = Path(self._settings.kubelet_dir), self._settings.resource_name
        try:
            held = registered_ids(folder / CHECKPOINT, resource)
            state = read_state(Path(self._settings.state_dir))
        except InvalidInput:
            return ""
        if held is None or state is None:
            return ""
        strange = sorted(each for each in held if each.rpartition("-")[0] not in {card.uuid for card in state.told})
        if not strange:
            return ""
        ours = {"kubelet.sock", f"hami-{resource.rpartition('/')[2]}.sock"}
        others = sorted(path.name for path in folder.glob("*.sock") if path.name not in ours)
        beside = f"; other plugins' sockets there: {', '.join(others)}" if others else ""
        return f"the kubelet has {len(strange)} devices of {resource} that are not ours, such as {strange[0]}{beside}"

    async def _pod_resources(self) -> Finding:
        socket = Path(self._settings.pod_resources_socket)
        async with PodResources(socket, resource=self._settings.resource_name, timeout_s=3.0) as resources:
            listed = await resources.listed()
        if listed is None:
            return _warn(
                "pod-resources", f"{socket} does not answer", "mount it; without it and the checkpoint nothing is tied"
            )
        return _ok("pod-resources", f"{len(listed)} containers hold {self._settings.resource_name}")

    def _library(self) -> Finding:
        hook = hook_settings(self._settings)
        folder = Path(hook.folder)
        names = [f"{folder}/{hook.library}"] if hook.library else []
        library = next((path for path in (*names, f"{folder}/libvgpu.so") if Path(path).exists()), "")
        todo = "put libvgpu.so and ld.so.preload there; without them containers run without limits"
        if not library:
            return _fail("library", f"no libvgpu.so in {folder}", todo)
        for path in (library, f"{folder}/ld.so.preload"):
            if Path(path).is_dir():
                return _fail(
                    "library", f"{path} is a folder", "a runtime made it for a missing file: remove it and put the file"
                )
        preload = Path(f"{folder}/ld.so.preload")
        if not preload.exists():
            return _fail("library", f"no {preload}", todo)
        line = preload.read_text("utf-8", "replace").strip()
        if line != f"{folder}/libvgpu.so":
            return _fail("library", f"{preload} says {line!r}", f"it must say {folder}/libvgpu.so, the path inside containers")
        return _ok("library", f"{library} and its preload file")

    def _runtime(self) -> Finding:
        listing = listing_settings(self._settings)
        if set(listing.strategies) & CDI:
            folder = Path(self._settings.cdi_dir)
            if not folder.is_dir():
                return _fail("runtime", f"no folder {folder}", "mount it: the runtime reads device specifications there")
            files = sorted(path.name for path in folder.glob(f"{listing.cdi_vendor}-*.json"))
            if not files:
                return _warn(
                    "runtime", f"{folder} holds no specification of ours", "the agent writes it when it has seen the cards"
                )
            return _ok("runtime", f"{folder}: {', '.join(files)}")
        roots = {self._settings.nvidia_driver_root, self._settings.driver_root, "/"}
        places = os.pathsep.join(f"{root.rstrip('/')}/usr/bin" for root in sorted(roots))
        for program in ("nvidia-container-runtime", "nvidia-container-cli", "nvidia-ctk"):
            found = shutil.which(program, path=places) or shutil.which(program)
            if found:
                return _ok("runtime", found)
        todo = "install NVIDIA's container toolkit on the host; inside this container the host's programs may be out of sight"
        return _warn("runtime", "NVIDIA's container toolkit is not in sight", todo)

    def _state(self) -> Finding:
        folder = Path(self._settings.state_dir)
        try:
            state = read_state(folder)
        except InvalidInput as error:
            todo = "keep them for a look; the agent will offer no card until the log has told it what was known, or an operator"
            return _fail("state", f"{error}; its copy does not help", todo)
        if not folder.is_dir():
            return _warn("state", f"no folder {folder}", "mount one that outlives the agent's container")
        if not os.access(folder, os.W_OK):
            return _fail("state", f"{folder} is read-only", "faults would be forgotten at every restart")
        if state is None:
            return _warn("state", f"{folder} holds no state", "normal before the agent's first start")
        if state.lost:
            return _warn("state", state.lost, "waits for the control plane, or for `hami device clear UUID` of each card")
        harm = damage(folder)
        if harm:
            return _warn("state", f"{harm}; the other of the two files is whole", "is the disk all right?")
        sick = [uuid for uuid, card in state.cards.items() if card.reason]
        said = f"{len(state.told)} cards told, {len(state.served)} containers served"
        if sick:
            return _warn("state", f"{said}; open faults on {', '.join(sorted(sick))}", "see `hami node show`")
        return _ok("state", said)

    async def _reached(self) -> Finding:
        if self._store is None:
            return _fail("store", self._no_store, "the kubelet is served all the same, but nothing new is placed here")
        try:
            alive = await self._store.leases.alive([self._settings.node_name])
        except StoreUnavailable as error:
            return _fail("store", str(error), "check the address, the network and the agent's user in the store")
        except HamiError as error:
            return _fail("store", str(error), "run `hami init`, or point at the right store")
        if alive.get(self._settings.node_name) is None:
            return _warn("store", f"reachable; no lease of {self._settings.node_name}", "no agent of that name renews it")
        return _ok("store", f"reachable; {self._settings.node_name} holds its lease")


def worst(findings: Sequence[Finding]) -> Verdict:
    order = list(Verdict)
    return max((each.verdict for each in findings), key=order.index, default=Verdict.OK)


async def _refuses(socket: Path) -> str:
    """Why nobody answers there; empty when somebody does."""
    try:
        stream = await anyio.connect_unix(socket)
    except FileNotFoundError:
        return "not there"
    except OSError as error:
        return error.strerror or "nobody listens"
    await stream.aclose()
    return ""


def _ok(check: str, found: str) -> Finding:
    return Finding(check=check, verdict=Verdict.OK, found=found)


def _warn(check: str, found: str, todo: str) -> Finding:
    return Finding(check=check, verdict=Verdict.WARN, found=found, todo=todo)


def _fail(check: str, found: str, todo: str) -> Finding:
    return Finding(check=check, verdict=Verdict.FAIL, found=found, todo=todo)
