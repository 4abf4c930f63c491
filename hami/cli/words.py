"""An event in one line for people, and as one JSON object for programs."""

from typing import Any

import msgspec

from hami.cli.when import shown
from hami.domain.allocation import Reservation
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationEvent,
    AllocationFailed,
    AllocationLapsed,
    AllocationPrepared,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.governance import PlacementRefused, PlacementRequested
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event
from hami.events.log import Record, Undecodable, Unknown


def in_words(event: Event | Unknown | Undecodable) -> str:
    """What happened, short. Fields at their default are left out."""
    match event:
        case Unknown(schema=schema):
            return f"written by a newer version (schema {schema}); shown with `hami events show`"
        case Undecodable(error=error):
            return f"cannot be read: {error}"
        case AllocationReserved(reservation=reservation):
            return reservation_in_words(reservation)
        case AllocationEvent():
            return _allocation_in_words(event)
        case PlacementRequested():
            return f"{event.namespace}/{event.name} asks for {event.request}"
        case PlacementRefused():
            why = ", ".join(f"{nodes}x {word}" for word, nodes in sorted(event.counts.items()))
            return f"{event.namespace}/{event.name} asked for {event.request}; of {event.nodes_seen} nodes: {why}"
        case DeviceHealthChanged():
            return f"{event.was} -> {event.now}: {event.reason}" + (f" ({event.evidence})" if event.evidence else "")
        case NodeRegistered(vendor=vendor, devices=devices):
            models = sorted({device.model for device in devices})
            return f"{len(devices)} {vendor} devices ({', '.join(models)})" if devices else f"no {vendor} devices"
        case _:
            return " ".join(f"{name}={value}" for name, value in _set_fields(event))


def _allocation_in_words(event: AllocationEvent) -> str:
    match event:
        case AllocationBound(adopted=adopted):
            return f"an existing binding was adopted: {adopted}" if adopted else "binding written"
        case AllocationPrepared(container=container, difference=difference):
            return f"{container} prepared" + (f", but {difference}" if difference else " as reserved")
        case AllocationShrunk():
            return "init containers done, the steady state counts from here"
        case AllocationReleased(reason=reason) | AllocationLapsed(reason=reason) | AllocationFailed(reason=reason):
            return reason
        case _:
            return " ".join(f"{name}={value}" for name, value in _set_fields(event))


def reservation_in_words(reservation: Reservation) -> str:
    """`team-a/train on node-1: main 2x NVIDIA-A100 8000MiB 50%`."""
    parts = [
        f"{container.name} {share.uuid} {share.memory}MiB {share.cores}%"
        for container in reservation.containers
        for share in container.shares
    ]
    return f"{reservation.owner.namespace}/{reservation.owner.name} on {reservation.node}: " + "; ".join(parts)


def _set_fields(event: msgspec.Struct) -> list[tuple[str, str]]:
    found = []
    for field in msgspec.structs.fields(event):
        value = getattr(event, field.name)
        if value in ("", (), None) or value == field.default:
            continue
        raw = msgspec.json.encode(value).decode()
        found.append((field.name, value if isinstance(value, str) else raw))
    return found


def as_json(record: Record) -> dict[str, Any]:
    """The whole record: where it stands, its envelope, its data as written."""
    envelope = msgspec.structs.asdict(record.envelope)
    data = envelope.pop("data")
    document: dict[str, Any] = {
        "g": record.position.g,
        "entry": record.position.entry,
        "recorded_at": shown(record.position.recorded_ms),
        **envelope,
        "occurred_at": shown(record.envelope.occurred_ms) if record.envelope.occurred_ms else None,
        "versions": dict(record.versions),
        "data": data,
    }
    if isinstance(record.event, Unknown):
        document["unreadable"] = "unknown type or newer schema"
    if isinstance(record.event, Undecodable):
        document["unreadable"] = record.event.error
    return document


def for_people(record: Record, who: str = "") -> str:
    """One line: place, time, type, node, and what happened (to whom, when `who` is given)."""
    when = shown(record.position.recorded_ms)
    envelope = record.envelope
    place = f"{record.position.g:>6}  {when}  {short_type(envelope.type):<22}  {envelope.node or '-':<16}"
    words = in_words(record.event)
    return f"{place}  {f'{who}: ' if who and not words.startswith(who) else ''}{words}".rstrip()


def short_type(event_type: str) -> str:
    return event_type.removeprefix("hami.")
