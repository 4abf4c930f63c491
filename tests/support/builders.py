"""Things to test with: devices, registrations, reservations, records. Every argument has a plain default."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from hami.domain.allocation import ContainerShares, DeviceShare, PodOwner, Reservation
from hami.domain.device import Device, Health, MigPlacement, MigSlice
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, EpochMs, MiB, Slots
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationPrepared,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event, entities_of
from hami.events.codec import seal
from hami.events.envelope import START, Envelope, Position
from hami.events.log import Draft, Record, Undecodable, Unknown

E = TypeVar("E", bound=Event)

FIRST_MS = 1_700_000_000_000
"""When the records built here begin, by the store's clock."""


def a_device(
    uuid: str = "GPU-a",
    *,
    vendor: str = "NVIDIA",
    model: str = "NVIDIA A100",
    memory: int = 40960,
    cores: int = 100,
    slots: int = 10,
    index: int = 0,
    numa: int = 0,
    health: Health = Health.HEALTHY,
) -> Device:
    return Device(
        uuid=uuid,
        vendor=vendor,
        model=model,
        memory=MiB(memory),
        cores=CorePercent(cores),
        slots=Slots(slots),
        index=index,
        numa=numa,
        health=health,
    )


def a_node_registered(
    *devices: Device, vendor: str = "NVIDIA", node_uid: str = "node-uid-1", boot_id: str = "boot-1"
) -> NodeRegistered:
    """Without devices: a vendor's devices are gone."""
    return NodeRegistered(vendor=vendor, devices=devices, node_uid=node_uid, boot_id=boot_id)


def a_share(
    uuid: str = "GPU-a", memory: int = 1000, cores: int = 10, *, vendor: str = "NVIDIA", mig: MigSlice | None = None
) -> DeviceShare:
    return DeviceShare(vendor=vendor, uuid=uuid, memory=MiB(memory), cores=CorePercent(cores), mig=mig)


def a_mig_slice(profile: str = "1g.5gb", start: int = 0, size: int = 1, uuid: str = "") -> MigSlice:
    return MigSlice(profile, MigPlacement(start, size), uuid)


def a_container(*shares: DeviceShare, name: str = "main", kind: ContainerKind = ContainerKind.APP) -> ContainerShares:
    return ContainerShares(name=name, kind=kind, shares=shares)


def a_reservation(
    reservation: str = "r1",
    *containers: ContainerShares,
    pod: str = "u1",
    namespace: str = "default",
    node: str = "n1",
    name: str = "",
    deadline_ms: int = FIRST_MS + 60_000,
) -> Reservation:
    """One container with one share of GPU-a unless containers are given."""
    return Reservation(
        id=reservation,
        owner=PodOwner(pod, namespace, name or f"pod-{pod}"),
        node=node,
        containers=containers or (a_container(a_share()),),
        scheduler="scheduler-1",
        deadline_ms=EpochMs(deadline_ms),
        node_uid="node-uid-1",
    )


def a_reserved(reservation: Reservation | None = None) -> AllocationReserved:
    return AllocationReserved(reservation=reservation or a_reservation())


def a_bound(reservation: Reservation) -> AllocationBound:
    return AllocationBound(reservation=reservation.id, owner_uid=reservation.owner.uid, namespace=reservation.owner.namespace)


def a_prepared(reservation: Reservation, container: str = "main", *, difference: str = "") -> AllocationPrepared:
    return AllocationPrepared(
        reservation=reservation.id,
        owner_uid=reservation.owner.uid,
        namespace=reservation.owner.namespace,
        container=container,
        difference=difference,
    )


def a_shrunk(reservation: Reservation) -> AllocationShrunk:
    return AllocationShrunk(reservation=reservation.id, owner_uid=reservation.owner.uid, namespace=reservation.owner.namespace)


def a_released(reservation: Reservation, reason: str = "pod_deleted") -> AllocationReleased:
    return AllocationReleased(
        reservation=reservation.id, owner_uid=reservation.owner.uid, namespace=reservation.owner.namespace, reason=reason
    )


def a_lapsed(reservation: Reservation, reason: str = "deadline") -> AllocationLapsed:
    return AllocationLapsed(
        reservation=reservation.id, owner_uid=reservation.owner.uid, namespace=reservation.owner.namespace, reason=reason
    )


def a_failed(reservation: Reservation, reason: str = "binding refused") -> AllocationFailed:
    return AllocationFailed(
        reservation=reservation.id, owner_uid=reservation.owner.uid, namespace=reservation.owner.namespace, reason=reason
    )


def a_draft(event: Event, node: str = "n1", subject: str = "") -> Draft:
    """An allocation's node is its own; every other event is about `node`."""
    if isinstance(event, AllocationReserved):
        node = event.reservation.node
    return Draft(event=event, node=node, subject=subject)


def an_envelope(
    event: Event,
    *,
    seq: int = 1,
    epoch: int = 1,
    producer: str = "test",
    node: str = "n1",
    subject: str = "",
    at_ms: int = FIRST_MS,
) -> Envelope:
    return seal(a_draft(event, node, subject), producer=producer, epoch=epoch, seq=seq, occurred_ms=EpochMs(at_ms))


def a_position(g: int, *, every_ms: int = 10) -> Position:
    return START if g == 0 else Position(g, f"{FIRST_MS + g * every_ms}-0")


def records_of(
    events: Iterable[Event | Unknown | Undecodable | tuple[Event | Unknown | Undecodable, str]],
    *,
    after: int = 0,
    seq: int | None = None,
    epoch: int = 1,
    producer: str = "test",
    node: str = "n1",
    every_ms: int = 10,
    versions: Mapping[str, int] | None = None,
) -> tuple[Record, ...]:
    """The records a log would hold of these events, written by one producer, beginning at g = after + 1.

    An event may come with its node as `(event, "n2")`. Versions count up from `versions` as the store would count them.
    """
    counted = dict(versions or {})
    first = after + 1 if seq is None else seq
    records = []
    for i, each in enumerate(events):
        event, at = each if isinstance(each, tuple) else (each, node)
        moved: dict[str, int] = {}
        if isinstance(event, Unknown | Undecodable):
            envelope = _unreadable(event, producer=producer, epoch=epoch, seq=first + i, node=at)
        else:
            envelope = an_envelope(event, producer=producer, epoch=epoch, seq=first + i, node=at)
            for entity in entities_of(event, envelope.node):
                moved[entity] = counted[entity] = counted.get(entity, 0) + 1
        position = a_position(after + 1 + i, every_ms=every_ms)
        records.append(Record(position=position, envelope=envelope, event=event, versions=moved))
    return tuple(records)


def again(records: Sequence[Record], *, after: int) -> tuple[Record, ...]:
    """The same events appended once more at new places: what a failover and a re-sending producer make of them."""
    return tuple(
        Record(position=a_position(after + 1 + i), envelope=each.envelope, event=each.event, versions=each.versions)
        for i, each in enumerate(records)
    )


def _unreadable(event: Unknown | Undecodable, *, producer: str, epoch: int, seq: int, node: str) -> Envelope:
    envelope = an_envelope(a_node_registered(), producer=producer, epoch=epoch, seq=seq, node=node)
    return Envelope(id=envelope.id, type=event.type, producer=producer, epoch=epoch, seq=seq, node=node, data=envelope.data)


def an_example_of(kind: type[E]) -> E:
    """Any event type, every field filled with something of its kind."""
    return msgspec.convert(_example(inspect.type_info(kind)), kind)


def _example(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            made = {each.encode_name: _example(each.type) for each in fields}
            return made if tag_field is None else {tag_field: tag, **made}
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.VarTupleType(item_type=item):
            return [_example(item)]
        case inspect.DictType(key_type=key, value_type=value):
            return {_example(key): _example(value)}
        case inspect.UnionType(types=types):
            return _example(types[0])
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 0.5
        case inspect.BoolType():
            return True
        case _:
            return None if isinstance(kind, inspect.NoneType) else "word"
