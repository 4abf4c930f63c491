"""How a node announces its devices by annotation: HAMi's JSON register, the older colon form, and pair scores."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from hami.domain.device import Device, Health, MigPlacement, MigProfile
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors.quantities import INT32_MAX, as_integer
from hami.vendors.vendor import Vendor

_INT32_MIN: Final = -(2**31)
_INT64_MAX: Final = 2**63 - 1
MOST_CARDS: Final = 1024
"""Cards of one vendor on one node that are counted up from a capacity."""
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class WirePlacement(msgspec.Struct, frozen=True):
    start: int
    size: int


class WireProfile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    memory_mb: int = msgspec.field(name="memoryMB")
    core: int
    slice_count: int = msgspec.field(name="sliceCount")
    placements: tuple[WirePlacement, ...] | None
    """None where the member is missing: it is written back as null, as HAMi does."""


class WireDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device in HAMi's register; members in wire order, zero values absent (a missing `health` means unhealthy)."""

    id: str = ""
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    mig_profiles: tuple[WireProfile, ...] = msgspec.field(name="migProfiles", default=())
    health: bool = False
    devicevendor: str = ""
    custominfo: dict[str, object] | None = None


_DEVICE_MEMBERS: Final = {
    "id": str, "index": int, "count": int, "devmem": int, "devcore": int, "type": str, "numa": int, "mode": str,
    "migprofiles": list, "health": bool, "devicevendor": str, "custominfo": dict,
}  # fmt: skip
_PROFILE_MEMBERS: Final = {"name": str, "memorymb": int, "core": int, "slicecount": int, "placements": list}
_PLACEMENT_MEMBERS: Final = {"start": int, "size": int}
_LIMITS: Final[dict[str, tuple[int, int]]] = {
    "index": (0, 2 * _INT64_MAX + 1), "count": (_INT32_MIN, INT32_MAX), "devmem": (_INT32_MIN, INT32_MAX),
    "devcore": (_INT32_MIN, INT32_MAX), "numa": (-_INT64_MAX - 1, _INT64_MAX), "memorymb": (_INT32_MIN, INT32_MAX),
    "core": (_INT32_MIN, INT32_MAX), "slicecount": (0, 2**32 - 1), "start": (0, 2**32 - 1), "size": (0, 2**32 - 1),
}  # fmt: skip


def encode_register(devices: Sequence[Device]) -> str:
    return msgspec.json.encode([wire_device(each) for each in devices]).decode()


def encode_wire(devices: Sequence[WireDevice]) -> str:
    return msgspec.json.encode(devices).decode()


def wire_device(device: Device) -> WireDevice:
    return WireDevice(
        id=device.uuid,
        index=device.index,
        count=device.slots,
        devmem=device.memory,
        devcore=device.cores,
        type=device.model,
        numa=device.numa,
        mode=device.mode,
        mig_profiles=tuple(
            WireProfile(
                name=each.name,
                memory_mb=each.memory,
                core=each.cores,
                slice_count=each.slices,
                placements=tuple(WirePlacement(at.start, at.size) for at in each.placements),
            )
            for each in device.mig_profiles
        ),
        health=device.health is Health.HEALTHY,
    )


def decode_register(text: str, field: str = "register") -> list[WireDevice]:
    """Member names match in any case, later members of the same name win, unknown ones are ignored."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(field, text, str(error)) from None
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise InvalidInput(field, text, "must be a JSON array of devices")
    return [_wire_device(each, f"{field}, device {number}") for number, each in enumerate(raw)]


def _wire_device(raw: object, where: str) -> WireDevice:
    if raw is None:
        return WireDevice()
    members = members_of(raw, _DEVICE_MEMBERS, where)
    profiles = tuple(_wire_profile(each, f"{where}, migProfile {n}") for n, each in enumerate(members.pop("migprofiles", ())))
    return WireDevice(**members, mig_profiles=profiles)


def _wire_profile(raw: object, where: str) -> WireProfile:
    members = members_of(raw if raw is not None else {}, _PROFILE_MEMBERS, where)
    places = []
    for number, each in enumerate(members.get("placements", ())):
        at = members_of(each if each is not None else {}, _PLACEMENT_MEMBERS, f"{where}, placement {number}")
        places.append(WirePlacement(at.get("start", 0), at.get("size", 0)))
    found = tuple(places) if "placements" in members else None
    return WireProfile(
        name=members.get("name", ""),
        memory_mb=members.get("memorymb", 0),
        core=members.get("core", 0),
        slice_count=members.get("slicecount", 0),
        placements=found,
    )


def members_of(raw: object, known: Mapping[str, type], where: str) -> dict[str, Any]:
    """Those that `known` names (in lower case), with its types. Raises InvalidInput."""
    if not isinstance(raw, dict):
        raise InvalidInput(where, raw, "must be an object")
    found: dict[str, Any] = {}
    for name, value in raw.items():
        key = name.lower()
        kind = known.get(key)
        if kind is None or value is None:
            continue
        if type(value) is not kind:  # bool is an int elsewhere, not here
            raise InvalidInput(f"{where}, {name}", value, f"must be {kind.__name__}")
        low, high = _LIMITS.get(key, (_INT32_MIN, INT32_MAX))
        if isinstance(value, int) and not low <= value <= high:
            raise InvalidInput(f"{where}, {name}", value, "is out of range")
        found[key] = value
    return found


def decode_colon(text: str, field: str = "register") -> list[WireDevice]:
    """`id,count,devmem,devcore,type,numa,health[,index,mode]` separated and ended by `:`. One bad segment spoils the node."""
    if ":" not in text:
        raise InvalidInput(field, text, "misses the device separator ':'")
    found = []
    for number, segment in enumerate(text.split(":")):
        if segment == "":
            continue
        where = f"{field}, device {number}"
        parts = segment.split(",")
        if len(parts) not in {7, 9}:
            raise InvalidInput(where, segment, f"has {len(parts)} fields, not 7 or 9")
        found.append(_colon_device(where, parts))
    return found


def _colon_device(where: str, parts: Sequence[str]) -> WireDevice:
    if parts[6] not in _TRUE and parts[6] not in _FALSE:
        raise InvalidInput(f"{where}, health", parts[6], "is not a boolean")
    index, mode = 0, "hami-core"
    if len(parts) == 9:
        index, mode = _number(f"{where}, index", parts[7], 0, _INT64_MAX), parts[8]
    return WireDevice(
        id=parts[0],
        index=index,
        count=_number(f"{where}, count", parts[1]),
        devmem=_number(f"{where}, devmem", parts[2]),
        devcore=_number(f"{where}, devcore", parts[3]),
        type=parts[4],
        numa=_number(f"{where}, numa", parts[5], -_INT64_MAX - 1, _INT64_MAX),
        mode=mode,
        health=parts[6] in _TRUE,
    )


def encode_colon(devices: Sequence[WireDevice]) -> str:
    return "".join(
        f"{d.id},{d.count},{d.devmem},{d.devcore},{d.type},{d.numa},{'true' if d.health else 'false'},{d.index},{d.mode}:"
        for d in devices
    )


def _number(where: str, text: str, low: int = _INT32_MIN, high: int = INT32_MAX) -> int:
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidInput(where, text, "is not a number")
    number = int(text)
    if not low <= number <= high:
        raise InvalidInput(where, text, "is out of range")
    return number


def encode_pair_scores(devices: Sequence[Device]) -> str:
    """How close each card is to each other, as HAMi writes it."""
    return msgspec.json.encode([{"uuid": each.uuid, "score": each.pair_scores} for each in devices]).decode()


def decode_pair_scores(text: str, field: str = "pair scores") -> dict[str, dict[str, int]]:
    """`[{"uuid":..,"score":{other: n}}]` -> uuid -> other uuid -> score."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(field, text, str(error)) from None
    if raw is not None and not isinstance(raw, list):
        raise InvalidInput(field, text, "must be a JSON array")
    found: dict[str, dict[str, int]] = {}
    for number, each in enumerate(raw or ()):
        members = members_of(each if each is not None else {}, {"uuid": str, "score": dict}, f"{field}, device {number}")
        scores = members.get("score", {})
        for other, value in scores.items():
            if type(value) is not int:
                raise InvalidInput(f"{field}, device {number}, score of {other}", value, "must be a whole number")
        found[members.get("uuid", "")] = scores
    return found


def listed(node: Node, vendor: Vendor, pairs: Mapping[str, Mapping[str, int]] | None = None) -> tuple[Device, ...]:
    """The common way: the vendor's register annotation, a JSON array. Nothing where the node has none."""
    text = node.metadata.notes.get(vendor.keys.register)
    if text is None:
        return ()
    wire = decode_register(text, vendor.keys.register)
    if not wire:
        raise InvalidInput(vendor.keys.register, text, "names no device")
    return devices_from(wire, vendor.word, pairs)


def listed_with_all_cores(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """As `listed`; whatever the plugin says of cores, a card has 100."""
    return tuple(msgspec.structs.replace(each, cores=CorePercent(100)) for each in listed(node, vendor))


def listed_by_colon(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """The older form: devices as comma lists, ended by colons."""
    text = node.metadata.notes.get(vendor.keys.register)
    if text is None:
        return ()
    wire = decode_colon(text, vendor.keys.register)
    if not wire:
        raise InvalidInput(vendor.keys.register, text, "names no device")
    return devices_from(wire, vendor.word)


def capacity(node: Node, resource: str) -> int:
    """What the node's status advertises of a resource, 0 where it does not. Raises InvalidInput where it is no whole number."""
    amounts = (node.status.capacity if node.status is not None else None) or {}
    if resource not in amounts:
        return 0
    number = as_integer(amounts[resource])
    if number is None or not 0 <= number <= INT32_MAX:
        raise InvalidInput(
            f'status.capacity["{resource}"]', amounts[resource], "must be a whole number, not negative, within 32 bits"
        )
    return number


def cards_by_capacity(node: Node, resource: str, count: int) -> range:
    """The numbers of this many cards. Raises InvalidInput where no machine can hold them: each would become a record."""
    if count > MOST_CARDS:
        raise InvalidInput(
            f'status.capacity["{resource}"]', count, f"means more than {MOST_CARDS} cards on {node.metadata.name}"
        )
    return range(count)


def numbered_cards(
    node: Node,
    vendor: Vendor,
    resource: str,
    count: int,
    *,
    name: str,
    memory: MiB,
    cores: CorePercent,
    slots: Slots,
    numa: Callable[[int], int] = lambda _: 0,
) -> tuple[Device, ...]:
    """That many equal cards, which a capacity of `resource` stands for: `<node>-<name>-<number>`."""
    return tuple(
        Device(
            uuid=f"{node.metadata.name}-{name}-{number}",
            vendor=vendor.word,
            model=vendor.word,
            memory=memory,
            cores=cores,
            slots=slots,
            index=number,
            numa=numa(number),
        )
        for number in cards_by_capacity(node, resource, count)
    )


def cards_by_cores(node: Node, vendor: Vendor, *, name: str, per_card: CorePercent, slots: Slots) -> tuple[Device, ...]:
    """The advertised cores are those of all cards: as many cards as that takes, the advertised memory spread over them."""
    cores = capacity(node, vendor.resources.cores)
    memory = capacity(node, vendor.resources.memory)
    if cores == 0:
        if capacity(node, vendor.resources.count):
            raise InvalidInput(f'status.capacity["{vendor.resources.cores}"]', 0, "must be positive where there are cards")
        return ()
    each = MiB(memory * vendor.memory_factor * per_card // cores)
    count = -(-cores // per_card)
    return numbered_cards(node, vendor, vendor.resources.cores, count, name=name, memory=each, cores=per_card, slots=slots)


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def devices_from(
    wire: Sequence[WireDevice], vendor: str, pairs: Mapping[str, Mapping[str, int]] | None = None
) -> tuple[Device, ...]:
    """Register entries as devices of this vendor; pair scores attached by uuid."""
    pairs = pairs or {}
    return tuple(
        Device(
            uuid=each.id,
            vendor=vendor,
            model=each.type,
            memory=MiB(each.devmem),
            cores=CorePercent(each.devcore),
            slots=Slots(each.count),
            index=each.index,
            numa=each.numa,
            mode=each.mode,
            health=Health.HEALTHY if each.health else Health.UNHEALTHY,
            mig_profiles=tuple(
                MigProfile(
                    p.name,
                    MiB(p.memory_mb),
                    CorePercent(p.core),
                    p.slice_count,
                    tuple(MigPlacement(at.start, at.size) for at in p.placements or ()),
                )
                for p in each.mig_profiles
            ),
            pair_scores=dict(pairs.get(each.id, {})),
            attributes={key: _text(value) for key, value in (each.custominfo or {}).items()},
        )
        for each in wire
    )
