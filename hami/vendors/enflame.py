"""Enflame GCU cut into slices (DRS): a container gets one profile of those that its node announces, on one card.

It asks for slices, or for memory and cores and gets the smallest profile that has both. Memory is in GiB, and in MiB where
the number is more than twice what the largest profile has.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from hami.domain.allocation import DeviceShare
from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Node, Pod
from hami.domain.request import DeviceRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors import quantities
from hami.vendors.config import EnflameConfig
from hami.vendors.quantities import INT32_MAX
from hami.vendors.requests import cores_of, given
from hami.vendors.vendor import (
    AnnotationKeys,
    Changes,
    Check,
    Refused,
    ResourceNames,
    Select,
    Size,
    Vendor,
    Writing,
)

BY_SIZE: Final = -1
"""`memory_percent` of a request for memory and cores; 0 = `memory` counts slices. As HAMi has it, so that scores agree."""
_CORES: Final = 100
_GIB: Final = 1024
_NAME: Final = re.compile(r"(\d{1,6})g\.(\d{1,6})gb", re.ASCII)


class Profile(msgspec.Struct, frozen=True, order=True):
    """What one profile gives. Ordered by slices, then by memory."""

    slices: int
    gib: int
    cores: int
    """Percent of a card that has as many slices as the largest profile."""
    name: str
    id: str

    @property
    def memory(self) -> int:
        return self.gib * _GIB


def vendor(config: EnflameConfig) -> Vendor:
    slices = config.slices or config.old_slices
    return Vendor(
        word="Enflame",
        about=__doc__ or "",
        resources=ResourceNames(count=slices, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/enflame-vgpu-devices-allocated",
            register="enflame.com/gcu-drs-capacity",
            use_uuid="enflame.com/use-gpuuuid",
            nouse_uuid="enflame.com/nouse-gpuuuid",
        ),
        asked_by=tuple(name for name in (slices, config.memory, config.cores) if name),
        checks=(
            Check.HEALTH,
            Check.CORDON,
            Check.TYPE,
            Check.UUID,
            Check.SLOTS,
            Check.MUTEX,
            Check.MEMORY,
            Check.COUNTED_CORES,
        ),
        size=Size.PROFILE,
        select=Select.PROFILE,
        ask=ask,
        admit=admit,
        discover=discover,
        annotate=annotate,
        differs=("B1", "B7"),
    )


def ask(container: Container, vendor: Vendor, place: str) -> DeviceRequest | None:
    """Slices win over memory and cores. One card in any case."""
    names = vendor.resources
    slices = given(container, names.count, place, vendor)
    if slices is not None and (number := quantities.whole(*slices)) > 0:
        return DeviceRequest(vendor=vendor.word, count=1, memory=MiB(number), memory_percent=0, form=names.count)
    memory = given(container, names.memory, place, vendor)
    cores = given(container, names.cores, place, vendor)
    size = 0 if memory is None else quantities.memory(*memory, factor=1)
    share = cores_of(cores, CorePercent(0))
    if size == 0 and share == 0:
        return None
    form = names.memory if size else names.cores
    return DeviceRequest(vendor=vendor.word, count=1, memory=MiB(size), memory_percent=BY_SIZE, cores=share, form=form)


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes | Refused:
    """What stands in limits or requests only is written into the other: Kubernetes wants them equal."""
    names = vendor.resources
    asked = {name: amount for name in vendor.asked_by if (amount := container.limit(name)) is not None}
    for name, amount in asked.items():
        number = quantities.as_integer(amount)
        if number is None:
            continue  # refused with its place in the spec (`requests.malformed`)
        if name == names.cores and not 0 < number <= _CORES:
            return Refused(f"{name} must be in range (0,{_CORES}]")
        if number <= 0:
            return Refused(f"{name} must be greater than 0")
    given_ = container.resources
    limits = (given_.limits if given_ is not None else None) or {}
    requests = (given_.requests if given_ is not None else None) or {}
    return Changes(
        claims=bool(asked),
        limits={name: amount for name, amount in asked.items() if name not in limits},
        requests={name: amount for name, amount in asked.items() if name not in requests},
    )


# --- what a node announces ---


class _Card(msgspec.Struct, frozen=True):
    index: str
    minor: str = ""
    capacity: int | str = 0


class _Announced(msgspec.Struct, frozen=True):
    devices: tuple[_Card, ...] | None = None
    profiles: dict[str, str] | None = None


_ANNOUNCED: Final = msgspec.json.Decoder(_Announced)


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """All cards of a node have the same profiles; the largest is the card."""
    key = vendor.keys.register
    text = node.metadata.notes.get(key)
    if text is None:
        return ()
    try:
        announced = _ANNOUNCED.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(key, text, str(error)) from None
    if not announced.devices:
        raise InvalidInput(key, text, "names no device")
    names = dict(sorted((announced.profiles or {}).items()))
    profiles = profiles_of([names])
    if not profiles:
        raise InvalidInput(key, text, "names no profile like 2g.12gb")
    memory = MiB(max(each.memory for each in profiles))
    shared = {"profiles": msgspec.json.encode(names).decode(), "maxSlice": str(profiles[-1].slices)}
    return tuple(
        Device(
            uuid=f"{node.metadata.name}-enflame-drs-{card.index}",
            vendor=vendor.word,
            model=vendor.word,
            memory=memory,
            cores=CorePercent(_CORES),
            slots=Slots(_whole(f"{key}, device {number}, capacity", card.capacity)),
            index=_whole(f"{key}, device {number}, index", card.index),
            numa=0,
            attributes={"index": card.index, "minor": card.minor, **shared},
        )
        for number, card in enumerate(announced.devices)
    )


def _whole(where: str, value: int | str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise InvalidInput(where, value, "must be a whole number within 32 bits")
    return int(text)


# --- profiles ---


def profiles_of(announced: Iterable[Mapping[str, str]], most: int = 0) -> tuple[Profile, ...]:
    """Every profile that any of them names, the smallest first; names that say no size are passed over.

    `most`: slices of a card, where it has more than the largest profile.
    """
    sizes: dict[str, tuple[int, int, str]] = {}
    for names in announced:
        for name, number in names.items():
            if (match := _NAME.fullmatch(name)) is not None:
                sizes.setdefault(name, (int(match[1]), int(match[2]), number))
    most = max([most, *(slices for slices, _, _ in sizes.values())])
    return tuple(
        sorted(
            Profile(slices, gib, -(-slices * _CORES // most), name, number)
            for name, (slices, gib, number) in sizes.items()
            if slices > 0 and gib > 0
        )
    )


def profiles_on(devices: Iterable[Device]) -> tuple[Profile, ...]:
    """What any of these cards can be cut into."""
    found = {(each.attributes.get("profiles", "{}"), each.attributes.get("maxSlice", "0")) for each in devices}
    return _profiles_in(tuple(sorted(found)))


@lru_cache(maxsize=256)
def _profiles_in(announced: tuple[tuple[str, str], ...]) -> tuple[Profile, ...]:
    most = max((int(text) for _, text in announced if text.isdecimal()), default=0)
    return profiles_of([_names_in(text) for text, _ in announced], most)


def _names_in(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def profile_for(asked: DeviceRequest, profiles: Iterable[Profile]) -> Profile | None:
    """The smallest that serves; by slices it has to have exactly as many."""
    known = tuple(profiles)
    if asked.memory_percent != BY_SIZE:
        return next((each for each in known if each.slices == asked.memory), None)
    largest = max((each.gib for each in known), default=0)
    gib = asked.memory if asked.memory <= 2 * largest else -(-asked.memory // _GIB)
    return next((each for each in known if each.gib >= gib and each.cores >= asked.cores), None)


# --- what the plugin reads ---


class _Assigned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`request` counts slices."""

    allocated: bool = False
    request: int
    profile_id: str = msgspec.field(name="profileID")
    profile_name: str


def annotate(writing: Writing, _vendor: Vendor) -> Mapping[str, str]:
    """One card stands for the pod, that of its first container; the profiles stand by container."""
    devices = {each.device.uuid: each.device for each in writing.node.devices}
    held = [(each.name, share) for each in writing.containers for share in each.shares]
    assigned = {name: _assigned(share, devices.get(share.uuid)) for name, share in held}
    first = held[0][1]
    known = devices.get(first.uuid)
    attributes = known.attributes if known is not None else {}
    index = attributes.get("index", str(first.index))
    return {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": str(writing.now_s * 10**9),
        "enflame.com/gcu-assigned-index": index,
        "enflame.com/gcu-assigned-id": index,
        "enflame.com/gcu-assigned-minor": attributes.get("minor", ""),
        "enflame.com/gcu-request-size": str(assigned[held[0][0]].request),
        "assigned-containers": msgspec.json.encode(dict(sorted(assigned.items()))).decode(),
    }


def _assigned(share: DeviceShare, device: Device | None) -> _Assigned:
    """Memory and cores together say which profile it is."""
    known = profiles_on([device]) if device is not None else ()
    size = (share.memory, share.cores)
    found = next((each for each in known if (each.memory, each.cores) == size), None)
    if found is None:
        return _Assigned(request=0, profile_id="", profile_name="")
    return _Assigned(request=found.slices, profile_id=found.id, profile_name=found.name)
