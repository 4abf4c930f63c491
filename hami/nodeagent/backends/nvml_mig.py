"""MIG through NVML: profiles, places, instances, and the steps that make and destroy them. Runs in NVML's thread.

NVML names a kind of instance twice: by a slot of its table (asked for by number, 0 to COUNT - 1) and by the id that the slot
holds; calls that make or list take the id.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pynvml

from hami.domain.device import MigPlacement, MigProfile
from hami.domain.units import CorePercent, MiB
from hami.nodeagent.decide.mig import Failed, Instance, caps_of

T = TypeVar("T")

MINORS: Final = Path("/proc/driver/nvidia-caps/mig-minors")
_MOST_PLACES: Final = 64
_GI_SLOTS: Final = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
_CI_SLOTS: Final = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
_SHARED: Final = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_GONE: Final = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT})


class _Kind(NamedTuple):
    """A row of a card's table of profiles."""

    id: int
    name: str
    slices: int
    most: int
    memory: int
    processors: int


class _Handle(NamedTuple):
    """A MIG device: one compute instance, as CUDA sees it."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    handle: Any


def mode_of(handle: Any) -> str:
    """Empty for a card that knows no MIG."""
    mode = _or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is None:
        return ""
    if mode[0] != mode[1]:
        return "pending"
    return "enabled" if mode[0] else "disabled"


def profiles_of(handle: Any) -> tuple[MigProfile, ...]:
    """What may be cut out of a card in MIG mode. A kind whose places cannot be told is left out."""
    kinds = _kinds(handle)
    all_processors = max((kind.processors for kind in kinds), default=1) or 1
    found = []
    for kind in kinds:
        places = _or_none(partial(_places, handle, kind.id))
        if places:
            cores = CorePercent(math.ceil(100 * kind.processors / all_processors))
            found.append(MigProfile(kind.name, MiB(kind.memory), cores, kind.slices, places))
    return tuple(found)


def instances_of(handle: Any, card: str) -> tuple[Instance, ...]:
    """All of a card. Where GPU instances may not be listed (no privileges), those with a MIG device are still seen."""
    devices = list(_handles(handle))
    listings = [_of_kind(handle, card, kind) for kind in _kinds(handle)]
    rows = [row for listing in listings for row in listing or ()]
    minor = _or_none(lambda: str(pynvml.nvmlDeviceGetMinorNumber(handle))) or ""
    minors = _minors()
    found: list[Instance] = []
    for row in rows:
        mine = [each for each in devices if each.gpu_instance == row.gpu_instance]
        found.extend(_with_device(row, each, minor, minors) for each in mine)
        if not mine:
            found.append(row)
    if None in listings:
        listed = {row.gpu_instance for row in rows}
        bare = [(each, _unlisted(card, each)) for each in devices if each.gpu_instance not in listed]
        found.extend(_with_device(row, each, minor, minors) for each, row in bare if row is not None)
    return tuple(sorted(found, key=lambda each: (each.gpu_instance, each.compute_instance or 0)))


def children_of(handle: Any) -> tuple[tuple[int, int, str], ...]:
    """(GPU instance, compute instance, uuid) of each MIG device, as it is now: ids are used again for later ones."""
    return tuple((each.gpu_instance, each.compute_instance, each.uuid) for each in _handles(handle))


def parent_of(handle: Any) -> Any | None:
    """The card that a MIG device is part of; None for a card."""
    return _or_none(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) if _is_mig(handle) else None


def enable(handle: Any) -> str:
    if mode_of(handle) == "enabled":
        return ""
    if _busy(handle):
        return "a process runs on the card, or nobody can tell"
    why = _why(lambda: pynvml.nvmlDeviceSetMigMode(handle, 1))
    if why:
        return why
    return "" if mode_of(handle) == "enabled" else "the change of mode waits for a reset of the card"


def make_gpu_instance(handle: Any, card: str, profile: str, placement: MigPlacement) -> Instance | Failed:
    kind = next((each for each in _kinds(handle) if each.name == profile), None)
    if kind is None:
        return Failed(f"the card has no profile {profile}")
    where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    made = _tried(lambda: pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, kind.id, pynvml.byref(where)))
    return made if isinstance(made, Failed) else _tried(lambda: _row(made, card, kind))


def make_compute_instance(handle: Any, instance: Instance) -> Instance | Failed:
    def make() -> Instance:
        owner = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance)
        made = pynvml.nvmlGpuInstanceCreateComputeInstance(owner, _whole_profile(handle, owner))
        number = int(pynvml.nvmlComputeInstanceGetInfo(made).id)
        mine = (instance.gpu_instance, number)
        device = next((each for each in _handles(handle) if (each.gpu_instance, each.compute_instance) == mine), None)
        if device is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        minor = str(pynvml.nvmlDeviceGetMinorNumber(handle))
        return _with_device(instance, device, minor, _minors())

    return _tried(make)


def drop_compute_instances(handle: Any, instance: Instance) -> str:
    def drop() -> None:
        owner = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance)
        for profile, most, _ in _compute_profiles(owner):
            listing = pynvml.nvmlGpuInstanceGetComputeInstances
            for each in _listed(pynvml.c_nvmlComputeInstance_t, most, listing, owner, profile):
                pynvml.nvmlComputeInstanceDestroy(each)

    return _why(drop, absent=_GONE)


def drop_gpu_instance(handle: Any, instance: Instance) -> str:
    def drop() -> None:
        pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance))

    return _why(drop, absent=_GONE)


def _kinds(handle: Any) -> list[_Kind]:
    return [kind for slot in range(_GI_SLOTS) if (kind := _kind(handle, slot)) is not None]


def _kind(handle: Any, slot: int) -> _Kind | None:
    """Newer libraries say the name; for older ones it follows from the size, as they write it."""
    info, name = _or_none(lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, slot)), ""
    if info is not None:
        raw = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        name = raw.removeprefix("MIG ").strip()
    else:
        info = _or_none(lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, slot, version=1))
    if info is None:
        return None
    name = name or _name(info.sliceCount, info.memorySizeMB)
    return _Kind(info.id, name, info.sliceCount, info.instanceCount, int(info.memorySizeMB), info.multiprocessorCount)


def _name(slices: int, memory: int) -> str:
    return f"{slices}g.{math.ceil(memory / 1024)}gb"


def _places(handle: Any, profile: int) -> tuple[MigPlacement, ...]:
    count = pynvml.c_uint(_MOST_PLACES)
    room = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACES)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, room, pynvml.byref(count))
    return tuple(MigPlacement(each.start, each.size) for each in room[: count.value])


def _of_kind(handle: Any, card: str, kind: _Kind) -> list[Instance] | None:
    """None where they may not be listed. What is destroyed between two calls is left out."""

    def listed() -> list[Any]:
        return _listed(pynvml.c_nvmlGpuInstance_t, kind.most, pynvml.nvmlDeviceGetGpuInstances, handle, kind.id)

    found = _or_none(listed)
    if found is None:
        return None
    return [row for each in found if (row := _or_none(partial(_row, each, card, kind))) is not None]


def _row(gpu_instance: Any, card: str, kind: _Kind) -> Instance:
    info = pynvml.nvmlGpuInstanceGetInfo(gpu_instance)
    return Instance(
        card=card,
        profile=kind.name,
        placement=MigPlacement(info.placement.start, info.placement.size),
        gpu_instance=int(info.id),
        memory=MiB(kind.memory),
    )


def _handles(handle: Any) -> Iterator[_Handle]:
    for at in range(_or_none(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        found = _or_none(partial(_handle_at, handle, at))
        if found is not None:
            yield found


def _handle_at(card: Any, at: int) -> _Handle:
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, at)
    return _Handle(
        pynvml.nvmlDeviceGetGpuInstanceId(device),
        pynvml.nvmlDeviceGetComputeInstanceId(device),
        pynvml.nvmlDeviceGetUUID(device),
        device,
    )


def _with_device(row: Instance, device: _Handle, minor: str, minors: str) -> Instance:
    facts = _or_none(lambda: pynvml.nvmlDeviceGetAttributes(device.handle))
    return Instance(
        card=row.card,
        profile=row.profile,
        placement=row.placement,
        gpu_instance=row.gpu_instance,
        compute_instance=device.compute_instance,
        uuid=device.uuid,
        memory=row.memory if facts is None else MiB(int(facts.memorySizeMB)),
        caps=caps_of(minors, minor, row.gpu_instance, device.compute_instance),
        whole=facts is None or facts.gpuInstanceSliceCount == facts.computeInstanceSliceCount,
        busy=_busy(device.handle),
    )


def _unlisted(card: str, device: _Handle) -> Instance | None:
    """Its kind follows from its size; where it lies is not to be found out."""
    facts = _or_none(lambda: pynvml.nvmlDeviceGetAttributes(device.handle))
    if facts is None:
        return None
    name = _name(facts.gpuInstanceSliceCount, int(facts.memorySizeMB))
    return Instance(card=card, profile=name, placement=MigPlacement(0, 0), gpu_instance=device.gpu_instance)


def _whole_profile(handle: Any, owner: Any) -> int:
    """The compute profile that takes all slices of its GPU instance."""
    mine = int(pynvml.nvmlGpuInstanceGetInfo(owner).profileId)
    slices = next((kind.slices for kind in _kinds(handle) if kind.id == mine), 0)
    found = next((each for each in _compute_profiles(owner) if each[2] == slices), None)
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return found[0]


def _compute_profiles(owner: Any) -> list[tuple[int, int, int]]:
    """(id, how many fit, slices) of each."""
    found = []
    for slot in range(_CI_SLOTS):
        info = _or_none(partial(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, owner, slot, _SHARED, version=1))
        if info is not None:
            found.append((int(info.id), int(info.instanceCount), int(info.sliceCount)))
    return found


def _listed(kind: Any, most: int, call: Callable[..., Any], owner: Any, profile: int) -> list[Any]:
    count = pynvml.c_uint(most)
    room = (kind * max(most, 1))()
    call(owner, profile, room, pynvml.byref(count))
    return list(room[: count.value])


def _busy(handle: Any) -> bool:
    """Not knowing counts as busy: what is in use must not be destroyed."""
    compute = _or_none(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if compute is None or compute:
        return True
    return bool(_or_none(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)))


def _is_mig(handle: Any) -> bool:
    found = _or_none(lambda: pynvml.nvmlDeviceIsMigDeviceHandle(handle))
    return bool(found and found.value)


def _minors() -> str:
    try:
        return MINORS.read_text()
    except OSError:
        return ""


def _why(call: Callable[[], object], *, absent: frozenset[int] = frozenset()) -> str:
    try:
        call()
    except pynvml.NVMLError as error:
        return "" if error.value in absent else str(error)
    return ""


def _tried(call: Callable[[], T]) -> T | Failed:
    try:
        return call()
    except pynvml.NVMLError as error:
        return Failed(str(error))


def _or_none(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except pynvml.NVMLError:
        return None
