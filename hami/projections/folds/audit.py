"""What happened to one pod, one device or one node: a filter over the log in one pass, an entry for each event about it.

A timeline remembers only what it needs to know its own: the reservations of its pod, or those that hold its device.
"""

from collections.abc import Iterable, Iterator

import msgspec

from hami.domain.allocation import shares_of
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import AllocationEvent, AllocationReserved
from hami.events.catalog.device import (
    DeviceClearRequested,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    FaultObserved,
    MigApplyFailed,
    MigInstanceCreated,
    MigInstanceDestroyed,
)
from hami.events.catalog.governance import LockReclaimed, LockRefused, LockWaitTimedOut, PlacementRefused, PlacementRequested
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event
from hami.events.envelope import Position
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.folds.words import words_of

_OneDevice = (
    FaultObserved
    | DeviceHealthChanged
    | DeviceCordoned
    | DeviceUncordoned
    | DeviceClearRequested
    | MigInstanceCreated
    | MigInstanceDestroyed
    | MigApplyFailed
)

_Decided = DeviceHealthChanged | DeviceCordoned | DeviceUncordoned | DeviceClearRequested


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a timeline. `by` is who decided where the event says so, else the producer.

    `recorded_ms` is the store's clock and orders; `occurred_ms` is the producer's, for display.
    """

    position: Position
    recorded_ms: EpochMs
    occurred_ms: EpochMs
    type: str
    what: str
    by: str
    node: str = ""
    subject: str = ""
    correlation: str = ""
    causation: str = ""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Whose story: exactly one of a pod (uid, or namespace/name), a device (uuid), a node (name)."""

    pod: str = ""
    device: str = ""
    node: str = ""


class Timeline:
    """Feed it the log in order; `take` gives an entry where the record is about its subject."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._reservations: set[str] = set()
        self._owners: set[str] = {about.pod} if about.pod else set()
        self._home = ("", "")

    def take(self, record: Record) -> Entry | None:
        if self._about.node:
            found = self._of_node(record)
        elif self._about.device:
            found = self._of_device(record.event, record.envelope.node)
        else:
            found = self._of_pod(record.event)
        return entry_of(record) if found or self._names_subject(record) else None

    def _names_subject(self, record: Record) -> bool:
        """What cannot be decoded is still part of the story its envelope names."""
        subject = record.envelope.subject
        return (
            isinstance(record.event, Unknown | Undecodable) and bool(subject) and subject in {*self._owners, self._about.device}
        )

    def _of_node(self, record: Record) -> bool:
        event, name = record.event, self._about.node
        if isinstance(event, LockReclaimed | LockWaitTimedOut | LockRefused) and event.lock in {name, f"node/{name}"}:
            return True
        return record.envelope.node == name

    def _of_device(self, event: Event | Unknown | Undecodable, node: str) -> bool:
        uuid = self._about.device
        if isinstance(event, _OneDevice):
            return event.device == uuid
        if isinstance(event, NodeRegistered):
            return self._came_or_went(event, node, uuid)
        if isinstance(event, AllocationReserved):
            if any(share.uuid == uuid for share in shares_of(event.reservation.containers)):
                self._reservations.add(event.reservation.id)
                return True
            return False
        return isinstance(event, AllocationEvent) and event.reservation in self._reservations

    def _came_or_went(self, event: NodeRegistered, node: str, uuid: str) -> bool:
        """Registering again, as agents do, is no news; coming and going is. `_home` is (node, vendor), empty when away."""
        here = (node, event.vendor)
        there = any(each.uuid == uuid for each in event.devices)
        if there == (self._home == here):
            return False
        self._home = here if there else ("", "")
        return True

    def _of_pod(self, event: Event | Unknown | Undecodable) -> bool:
        if isinstance(event, AllocationReserved):
            owner = event.reservation.owner
            if owner.uid in self._owners or f"{owner.namespace}/{owner.name}" == self._about.pod:
                self._owners.add(owner.uid)
                self._reservations.add(event.reservation.id)
                return True
            return False
        if isinstance(event, AllocationEvent):
            return event.owner_uid in self._owners or event.reservation in self._reservations
        if isinstance(event, PlacementRequested | PlacementRefused):
            if f"{event.namespace}/{event.name}" == self._about.pod:
                self._owners.add(event.owner_uid)
            return event.owner_uid in self._owners
        if isinstance(event, MigInstanceCreated | MigApplyFailed):
            return event.reservation in self._reservations
        if isinstance(event, LockReclaimed):
            return event.owner in self._owners
        if isinstance(event, LockWaitTimedOut):
            return event.waiter in self._owners
        return isinstance(event, LockRefused) and event.by in self._owners


def timeline(records: Iterable[Record], about: About) -> Iterator[Entry]:
    """The entries of these records that are about one subject, in order."""
    taker = Timeline(about)
    for record in records:
        entry = taker.take(record)
        if entry is not None:
            yield entry


def entry_of(record: Record) -> Entry:
    envelope, event = record.envelope, record.event
    actor = event.actor if isinstance(event, _Decided) else ""
    return Entry(
        position=record.position,
        recorded_ms=record.position.recorded_ms,
        occurred_ms=envelope.occurred_ms,
        type=envelope.type,
        what=words_of(event),
        by=actor if actor and actor != "policy" else envelope.producer,
        node=envelope.node,
        subject=envelope.subject,
        correlation=envelope.correlation,
        causation=envelope.causation,
    )
