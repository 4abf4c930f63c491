"""NVIDIA cards through NVML. The only importer of pynvml; every call runs in one dedicated thread."""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import msgspec
import pynvml

from hami.domain.device import Device, MigPlacement
from hami.domain.errors import DeviceUnavailable
from hami.domain.units import CorePercent, MiB, Slots
from hami.nodeagent.backends import nvml_mig as mig
from hami.nodeagent.backends.base import Inventory
from hami.nodeagent.backends.library import preload
from hami.nodeagent.backends.memory import counters_of
from hami.nodeagent.backends.thread import LibraryThread
from hami.nodeagent.decide.faults import Evidence, Fault, FaultKind, Piece
from hami.nodeagent.decide.mig import INSTANCE, Failed, Instance
from hami.nodeagent.decide.topology import SWITCH, pair_score

T = TypeVar("T")

CALL_DEADLINE_S: Final = 10.0
WAIT_SLICE_MS: Final = 200
PAUSE_AFTER_ERROR_S: Final = 1.0
SYSFS: Final = Path("/sys/bus/pci/devices")
FIELD_RECOVERY_ACTION: Final = 230
_NO_INSTANCE: Final = 0xFFFFFFFF

_KINDS: Final[dict[int, FaultKind]] = {
    pynvml.nvmlEventTypeXidCriticalError: FaultKind.XID,
    pynvml.nvmlEventTypeDoubleBitEccError: FaultKind.ECC_DOUBLE_BIT,
    pynvml.nvmlEventTypeDramRetirementFailure: FaultKind.RETIREMENT_FAILURE,
    pynvml.nvmlEventTypeFatalPoisonError: FaultKind.POISON_FATAL,
    pynvml.nvmlEventTypeNonFatalPoisonError: FaultKind.POISON_CONTAINED,
    pynvml.nvmlEventTypeGpuUnavailableError: FaultKind.GPU_UNAVAILABLE,
    pynvml.nvmlEventTypeGpuRecoveryAction: FaultKind.RECOVERY_ACTION,
}
_WANTED: Final = sum(_KINDS)
_GONE: Final[dict[int, FaultKind]] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: FaultKind.GPU_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: FaultKind.RESET_REQUIRED,
    pynvml.NVML_ERROR_NOT_FOUND: FaultKind.GPU_LOST,
}
_ABSENT: Final = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
_LIBRARY_GONE: Final = frozenset(
    {pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
)


class NvmlBackend:
    """DeviceBackend over the real library (contract there)."""

    def __init__(self, *, driver_root: str = "", deadline_s: float = CALL_DEADLINE_S) -> None:
        self._driver_root, self._deadline_s = driver_root, deadline_s
        self._thread = LibraryThread("nvml")
        self._events: Any = None
        self._seen: deque[Fault] = deque()
        self._wait_failed = False
        self._open = False
        self._unmonitored: dict[str, str] = {}
        self._known: list[str] = []
        self._pairs: dict[str, dict[str, int]] = {}

    @property
    def vendor(self) -> str:
        return "NVIDIA"

    async def open(self) -> None:
        if self._open:
            return
        self._thread.start()
        await self._call(self._init)
        self._open = True

    async def inventory(self) -> Inventory:
        return await self._call(self._inventory)

    async def wait_faults(self, timeout_s: float) -> tuple[Fault, ...]:
        """Waits in slices, so that other calls get their turn in the one thread.

        Reports go through a queue: one that arrives while this call is being cancelled is there for the next.
        """
        deadline = anyio.current_time() + timeout_s
        while True:
            left_s = max(0.0, deadline - anyio.current_time())
            if self._seen:
                return tuple(self._seen.popleft() for _ in range(len(self._seen)))
            if left_s == 0:
                return ()
            if self._events is None or self._wait_failed:
                self._wait_failed = False
                await anyio.sleep(min(left_s, PAUSE_AFTER_ERROR_S))
            if self._events is not None:
                await self._call(partial(self._wait, min(int(left_s * 1000), WAIT_SLICE_MS)))

    async def probe(self, uuid: str) -> tuple[Evidence, tuple[Fault, ...]]:
        return await self._call(lambda: self._probe(uuid))

    async def enable_mig(self, card: str) -> str:
        return await self._on_card(card, mig.enable, str)

    async def make_gpu_instance(self, card: str, profile: str, placement: MigPlacement) -> Instance | Failed:
        return await self._on_card(card, lambda handle: mig.make_gpu_instance(handle, card, profile, placement), Failed)

    async def make_compute_instance(self, instance: Instance) -> Instance | Failed:
        return await self._on_card(instance.card, lambda handle: mig.make_compute_instance(handle, instance), Failed)

    async def drop_compute_instances(self, instance: Instance) -> str:
        return await self._on_card(instance.card, lambda handle: mig.drop_compute_instances(handle, instance), str)

    async def drop_gpu_instance(self, instance: Instance) -> str:
        return await self._on_card(instance.card, lambda handle: mig.drop_gpu_instance(handle, instance), str)

    async def close(self) -> None:
        if self._open:
            self._open = False
            try:
                await self._call(self._shutdown)
            finally:
                self._thread.stop()

    async def _on_card(self, card: str, step: Callable[[Any], T], sorry: Callable[[str], T]) -> T:
        """A step on one card; what is wrong with the card is the step's own answer."""

        def run() -> T:
            try:
                return step(pynvml.nvmlDeviceGetHandleByUUID(card))
            except pynvml.NVMLError as error:
                if error.value in _LIBRARY_GONE:
                    raise
                return sorry(str(error))

        return await self._call(run)

    async def _call(self, function: Callable[[], T]) -> T:
        try:
            return await self._thread.call(function, deadline_s=self._deadline_s)
        except pynvml.NVMLError as error:
            raise DeviceUnavailable(f"NVML: {error}") from error

    # Everything below runs in the library's thread.

    def _init(self) -> None:
        preload(self._driver_root)
        pynvml.nvmlInit()
        self._listen()

    def _listen(self) -> None:
        """Register every card for what it supports. A card that refuses is unmonitored; the others are not touched by it."""
        self._unmonitored.clear()
        self._known = []
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._events = None
            self._unmonitored[""] = f"no event set: {error}"
        for index in range(pynvml.nvmlDeviceGetCount()):
            uuid = f"index {index}"
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                self._known.append(uuid)
                self._register(uuid, handle)
            except pynvml.NVMLError as error:
                self._unmonitored[uuid] = str(error)

    def _listen_to_late(self, uuid: str) -> None:
        """A card that came after `open` joins the set: a new set would lose what waits in the old one."""
        self._known.append(uuid)
        try:
            self._register(uuid, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError as error:
            self._unmonitored[uuid] = str(error)

    def _register(self, uuid: str, handle: Any) -> None:
        if self._events is None:
            self._unmonitored[uuid] = self._unmonitored[""]
            return
        mask = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
        if not mask & pynvml.nvmlEventTypeXidCriticalError:
            self._unmonitored[uuid] = "the card reports no XID events"
        if mask:
            pynvml.nvmlDeviceRegisterEvents(handle, mask, self._events)

    def _inventory(self) -> Inventory:
        devices: list[Device] = []
        instances: list[Instance] = []
        unavailable: dict[str, str] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            name = self._known[index] if index < len(self._known) else f"index {index}"
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                device = _describe(handle, index)
                devices.append(device)
                if device.attributes.get("mig") == "enabled":
                    instances.extend(mig.instances_of(handle, device.uuid))
            except pynvml.NVMLError as error:
                if error.value in _LIBRARY_GONE:
                    raise
                unavailable[name] = str(error)
        devices = self._with_pairs(devices)
        seen = {device.uuid for device in devices}
        for uuid in self._known:
            if uuid not in seen:
                unavailable.setdefault(uuid, "no longer listed")
        for device in devices:
            if device.uuid not in self._known:
                self._listen_to_late(device.uuid)
        unmonitored = {uuid: why for uuid, why in self._unmonitored.items() if uuid in seen}
        return Inventory(
            devices=tuple(devices),
            unavailable=unavailable,
            unmonitored=unmonitored,
            driver=pynvml.nvmlSystemGetDriverVersion(),
            instances=tuple(instances),
        )

    def _with_pairs(self, devices: list[Device]) -> list[Device]:
        """How close the cards are does not change, so it is read once for each set of cards."""
        if set(self._pairs) != {device.uuid for device in devices}:
            self._pairs = _pair_scores(devices)
        return [msgspec.structs.replace(device, pair_scores=self._pairs[device.uuid]) for device in devices]

    def _wait(self, slice_ms: int) -> None:
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, slice_ms)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._wait_failed = True
                self._seen.extend(self._who_failed(error))
            return
        kind = _KINDS.get(int(event.eventType))
        if kind is not None:
            self._seen.extend(self._faults_of(event, kind))

    def _faults_of(self, event: Any, kind: FaultKind) -> tuple[Fault, ...]:
        code = int(event.eventData) if kind is FaultKind.XID else 0
        try:
            uuid = pynvml.nvmlDeviceGetUUID(event.device)
        except pynvml.NVMLError as error:
            return self._who_failed(error, code)
        fault = Fault(
            uuid=uuid,
            kind=kind,
            code=code,
            recovery_action=_recovery_action(event.device),
            gpu_instance=_instance(event.gpuInstanceId),
            compute_instance=_instance(event.computeInstanceId),
            pieces=_pieces(event.device),
        )
        return (fault,)

    def _who_failed(self, error: Any, code: int = 0) -> tuple[Fault, ...]:
        """The wait does not say which card is at fault, so each is asked; healthy ones are left alone.

        The set is made anew, because after an unknown error it may not be used again. If no card owns up, the report stands
        without a card: nobody is condemned on suspicion.
        """
        self._free_events()
        found = [fault for uuid in self._known for fault in self._probe(uuid)[1]]
        self._listen_again()
        if found:
            return tuple(found)
        kind = FaultKind.XID if code else FaultKind.UNREACHABLE
        return (Fault(uuid="", kind=kind, code=code, detail=f"waiting for events failed: {error}"),)

    def _listen_again(self) -> None:
        known = list(self._known)
        try:
            self._listen()
        except pynvml.NVMLError as error:
            self._unmonitored = dict.fromkeys(known, f"cannot listen: {error}")
        self._known = known if len(known) >= len(self._known) else self._known

    def _probe(self, uuid: str) -> tuple[Evidence, tuple[Fault, ...]]:
        """What a card answers of itself. No kernel is run on it: that needs a context on the device.

        A MIG instance shares its card's recovery action, which is evidence about it; what the driver asks for is asked once.
        One that is not there has been destroyed: nothing is known of it, and nothing is wrong.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND and uuid.startswith(INSTANCE):
                return Evidence(), ()
            return Evidence(probe_passed=False), (_state_fault(uuid, error),)
        try:
            pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value not in _ABSENT:
                return Evidence(probe_passed=False), (_state_fault(uuid, error),)
        parent = mig.parent_of(handle)
        action = _recovery_action(handle if parent is None else parent)
        faults: tuple[Fault, ...] = ()
        if action not in {None, 0} and parent is None:
            faults = (Fault(uuid=uuid, kind=FaultKind.RECOVERY_ACTION, recovery_action=action, pieces=_pieces(handle)),)
        counters = counters_of(handle)
        evidence = Evidence(probe_passed=True, recovery_action=action, memory_clean=counters.clean, counters=counters)
        return evidence, faults

    def _free_events(self) -> None:
        if self._events is not None:
            _quiet(lambda: pynvml.nvmlEventSetFree(self._events))
            self._events = None

    def _shutdown(self) -> None:
        self._free_events()
        pynvml.nvmlShutdown()


def _describe(handle: Any, index: int) -> Device:
    """The card's own figures. A card whose memory NVML cannot tell (unified memory) has 0 here; settings may supply it."""
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    memory = _or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    mode = mig.mode_of(handle)
    attributes = _attributes(handle, mode)
    return Device(
        uuid=uuid,
        vendor="NVIDIA",
        model=name if name.startswith("NVIDIA") else f"NVIDIA-{name}",
        memory=MiB(0 if memory is None else int(memory.total) // (1 << 20)),
        cores=CorePercent(100),
        slots=Slots(1),
        index=index,
        numa=_numa(handle, attributes.get("pci", "")),
        attributes=attributes,
        mig_profiles=mig.profiles_of(handle) if mode == "enabled" else (),
    )


def _numa(handle: Any, bus_id: str) -> int:
    """The library's word where it has one, else the kernel's; -1 when neither knows."""
    node = _quiet(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle))
    if node is not None and node >= 0:
        return int(node)
    try:
        return int((SYSFS / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def _attributes(handle: Any, mode: str) -> dict[str, str]:
    pci = _or_none(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    minor = _or_none(lambda: pynvml.nvmlDeviceGetMinorNumber(handle))
    cuda = _or_none(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    found = {
        "pci": None if pci is None else _bus_id(pci.busId),
        "minor": None if minor is None else str(minor),
        "cuda": None if cuda is None else f"{cuda[0]}.{cuda[1]}",
        "mig": mode or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _pair_scores(devices: list[Device]) -> dict[str, dict[str, int]]:
    handles = {device.uuid: _quiet(partial(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)) for device in devices}
    buses = {device.uuid: device.attributes.get("pci", device.uuid) for device in devices}
    links = {buses[uuid]: _links(handle) for uuid, handle in handles.items()}
    scores: dict[str, dict[str, int]] = {uuid: {} for uuid in handles}
    for one, other in permutations(handles, 2):
        level = _quiet(partial(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other]))
        scores[one][other] = pair_score(level, buses[one], buses[other], links)
    return scores


def _links(handle: Any) -> list[str]:
    """What each active NVLink of a card ends at. The first link that does not exist ends the list."""
    ends: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = _quiet(partial(pynvml.nvmlDeviceGetNvLinkState, handle, link))
        if active is None:
            break
        if active:
            kind = _quiet(partial(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link))
            remote = _quiet(partial(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                ends.append(SWITCH)
            elif remote is not None:
                ends.append(_bus_id(remote.busId))
    return ends


def _bus_id(raw: bytes | str) -> str:
    """As sysfs writes it: lower case, a domain of four digits."""
    text = (raw.decode() if isinstance(raw, bytes) else raw).lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" if rest else text


def _instance(raw: int) -> int | None:
    return None if raw == _NO_INSTANCE else int(raw)


def _recovery_action(handle: Any) -> int | None:
    values = _quiet(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [FIELD_RECOVERY_ACTION]))
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _pieces(handle: Any) -> tuple[Piece, ...]:
    """Asked for at the very report: an instance may be gone, and its ids another's, a moment later."""
    if mig.mode_of(handle) != "enabled":
        return ()
    return tuple(Piece(*each) for each in mig.children_of(handle))


def _state_fault(uuid: str, error: Any) -> Fault:
    return Fault(uuid=uuid, kind=_GONE.get(error.value, FaultKind.UNREACHABLE), detail=str(error))


def _or_none(call: Callable[[], T]) -> T | None:
    """A fact the card may not have. A card that is lost, or any other error, still raises."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in _GONE or error.value in _LIBRARY_GONE:
            raise
        return None


def _quiet(call: Callable[[], T]) -> T | None:
    """A fact that may be missing for whatever reason: missing proves nothing either way."""
    try:
        return call()
    except pynvml.NVMLError:
        return None
