"""What a Node object announces of one vendor, read with patience: a device that cannot be read costs itself only.

Most plugins announce by annotation, a JSON array or HAMi's older colon form; some by what the node advertises. How a vendor's
announcement is read stands on its page (`discover`). Where that refuses the whole, each device is tried alone.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node
from hami.vendors.quantities import INT32_MAX
from hami.vendors.registers import listed
from hami.vendors.vendor import Vendor

MOST_DEVICES: Final = 1024
"""Of one vendor on one node."""

MOST_UNREAD: Final = 16
"""Complaints about one announcement; what is wrong with the rest shows once these are gone."""

_SHOWN: Final = 200
_LONGEST_UUID: Final = 128
_SEPARATORS: Final = frozenset(",:;")


class Unread(msgspec.Struct, frozen=True):
    """A part of an announcement that was left out: field, value and why."""

    field: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value!r} {self.why}"


class Announced(msgspec.Struct, frozen=True):
    devices: tuple[Device, ...] = ()
    unread: tuple[Unread, ...] = ()


def announces(node: Node, vendor: Vendor) -> bool:
    """Whether the node says anything of this vendor at all: by the vendor's annotation, else by what it advertises."""
    if vendor.keys.register:
        return vendor.keys.register in node.metadata.notes
    amounts = node.status.capacity if node.status is not None else None
    if vendor.discover is None or not amounts:
        return False
    names = vendor.resources
    return names.count in amounts or names.memory in amounts or names.cores in amounts


def announced(node: Node, vendor: Vendor) -> Announced:
    """Never raises: what cannot be read is named."""
    if not announces(node, vendor):
        return Announced()
    unread: list[Unread] = []
    devices = _patiently(node, vendor, unread)
    kept: dict[str, Device] = {}
    for number, device in enumerate(devices):
        wrong = _objection(device, kept)
        if wrong is None:
            kept[device.uuid] = device
        else:
            field, value, why = wrong
            unread.append(Unread(f"{vendor.keys.register or vendor.word}, device {number}, {field}", value[:_SHOWN], why))
    return Announced(tuple(kept.values()), tuple(unread[:MOST_UNREAD]))


def _patiently(node: Node, vendor: Vendor, unread: list[Unread]) -> tuple[Device, ...]:
    try:
        return _strictly(node, vendor)
    except InvalidInput as error:
        whole = _unread(error)
    if vendor.keys.pair_scores in node.metadata.notes:
        # How well the cards are connected is worth less than the cards.
        node = _with(node, vendor.keys.pair_scores, None)
        try:
            found = _strictly(node, vendor)
        except InvalidInput as error:
            whole = _unread(error)
        else:
            unread.append(Unread(vendor.keys.pair_scores, whole.value, whole.why))
            return found
    text = node.metadata.notes.get(vendor.keys.register, "")
    parts = segments(text) if text else None
    if not parts:
        unread.append(whole)
        return ()
    good: list[str] = []
    for number, part in enumerate(parts):
        try:
            _strictly(_with(node, vendor.keys.register, joined([part])), vendor)
        except InvalidInput as error:
            unread.append(_in_place(error, vendor.keys.register, number))
        else:
            good.append(part)
    return _rest(node, vendor, good, unread)


def _rest(node: Node, vendor: Vendor, good: Sequence[str], unread: list[Unread]) -> tuple[Device, ...]:
    """The readable devices, read together: a page may number them by their place."""
    if not good:
        return ()
    try:
        return _strictly(_with(node, vendor.keys.register, joined(good)), vendor)
    except InvalidInput as error:
        unread.append(_unread(error))
        return ()


def _strictly(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    return (vendor.discover or listed)(node, vendor)


def segments(text: str) -> list[str] | None:
    """The devices of an announcement, each as it is written: items of a JSON array, or colon segments. None for other forms."""
    if text.lstrip().startswith("["):
        try:
            return [bytes(each).decode() for each in msgspec.json.decode(text, type=list[msgspec.Raw])]
        except (msgspec.DecodeError, RecursionError):
            return None
    if text.lstrip().startswith("{") or ":" not in text:
        return None
    return [segment + ":" for segment in text.split(":") if segment]


def joined(parts: Sequence[str]) -> str:
    """Segments as one announcement again."""
    return "".join(parts) if parts and parts[0].endswith(":") else f"[{','.join(parts)}]"


def _with(node: Node, key: str, text: str | None) -> Node:
    notes = {name: value for name, value in node.metadata.notes.items() if name != key}
    if text is not None:
        notes[key] = text
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=notes))


def _unread(error: InvalidInput) -> Unread:
    return Unread(error.field, str(error.value)[:_SHOWN], error.why)


def _in_place(error: InvalidInput, key: str, number: int) -> Unread:
    """The complaint about a device that was read alone, with the place where it stands."""
    what = error.field.removeprefix(key).removeprefix(", device 0").removeprefix(", ")
    return Unread(f"{key}, device {number}" + (f", {what}" if what else ""), str(error.value)[:_SHOWN], error.why)


def _objection(device: Device, before: dict[str, Device]) -> tuple[str, str, str] | None:
    """Why a device may not enter the log. Its name is written into annotations, its amounts are counted with by everybody."""
    uuid = device.uuid
    if not uuid or len(uuid) > _LONGEST_UUID or not uuid.isprintable() or _SEPARATORS.intersection(uuid):
        return "id", uuid, "names no device"
    if uuid in before:
        return "id", uuid, "stands there twice"
    if len(before) >= MOST_DEVICES:
        return "id", uuid, f"is one of more than {MOST_DEVICES} devices"
    for field in ("memory", "cores", "slots"):
        number = getattr(device, field)
        if not 0 <= number <= INT32_MAX:
            return field, str(number), f"is not within 0 and {INT32_MAX}"
    return None
