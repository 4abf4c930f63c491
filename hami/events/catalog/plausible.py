"""What an agent's event may say at all: values that every reader can hold, count with and write into an annotation.

The log is for ever. A number that no checkpoint can store, or a device whose name breaks the annotation it is written into,
would hurt every reader on every start; it is refused at the door, and costs only the node that sent it.
"""

import re
from typing import Any, Final

import msgspec

from hami.domain.cluster import Source
from hami.events.catalog.device import MigInstanceCreated
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event

LARGEST: Final = 2**31 - 1
"""Of any quantity of a device; memory in MiB is two million GiB then."""

MOST_DEVICES: Final = 256
"""Of one vendor on one node."""

_WIDEST: Final = 2**53
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_WORDS: Final = frozenset({"all", "none", "void"})
"""What the container runtime understands as something other than one device."""


def objection(event: Event) -> str | None:
    """Why this event of an agent may not enter the log; None when nothing speaks against it."""
    wide = _widest(msgspec.to_builtins(event), "")
    if wide is not None:
        return f"{wide}: a number beyond 2**53"
    match event:
        case NodeRegistered():
            return _registration(event)
        case MigInstanceCreated(instance=instance) if _bad_name(instance.uuid):
            return f"instance.uuid: {instance.uuid[:80]!r} names no MIG instance"
    return None


def _widest(value: Any, path: str) -> str | None:
    """The path of a number that not every reader could hold."""
    match value:
        case bool():
            return None
        case int():
            return None if -_WIDEST <= value <= _WIDEST else path
        case dict():
            found = (_widest(each, f"{path}.{key}" if path else str(key)) for key, each in value.items())
        case list() | tuple():
            found = (_widest(each, f"{path}[{at}]") for at, each in enumerate(value))
        case _:
            return None
    return next((each for each in found if each is not None), None)


def _registration(event: NodeRegistered) -> str | None:
    if not event.vendor:
        return "vendor: is empty"
    if event.source is not Source.AGENT or event.unread:
        return "source: an agent registers as an agent"
    if len(event.devices) > MOST_DEVICES:
        return f"devices: {len(event.devices)} are more than {MOST_DEVICES}"
    seen: set[str] = set()
    for at, device in enumerate(event.devices):
        where = f"devices[{at}]"
        if _bad_name(device.uuid):
            return f"{where}.uuid: {device.uuid[:80]!r} names no device"
        if device.uuid in seen:
            return f"{where}.uuid: {device.uuid} stands there twice"
        seen.add(device.uuid)
        if device.vendor != event.vendor:
            return f"{where}.vendor: {device.vendor[:80]!r} is not the registration's {event.vendor[:80]!r}"
        for field in ("memory", "cores", "slots"):
            number = getattr(device, field)
            if not 0 <= number <= LARGEST:
                return f"{where}.{field}: {number} is not within 0 and {LARGEST}"
    return None


def _bad_name(uuid: str) -> bool:
    return _NAME.fullmatch(uuid) is None or uuid in _WORDS
