"""What the log says about one pod, one device or one node: records in, the matching ones out, in order. Pure.

Each teller is fed every record of the log once, and learns on the way what its subject is called and whom it met.
"""

from typing import Protocol

import msgspec

from hami.domain.allocation import PodOwner, Reservation
from hami.events.catalog.allocation import (
    AllocationEvent,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
)
from hami.events.catalog.device import (
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    FaultObserved,
    MigApplyFailed,
    MigInstanceCreated,
    MigInstanceDestroyed,
)
from hami.events.catalog.governance import LockReclaimed, LockRefused, LockWaitTimedOut, PlacementRefused, PlacementRequested
from hami.events.catalog.node import NodeRegistered, NodeRemoved
from hami.events.catalog.union import Event
from hami.events.log import Record, Undecodable, Unknown


class Line(msgspec.Struct, frozen=True):
    """One record of a story; `who` is the pod that it is about, where that is not the subject itself."""

    record: Record
    who: str = ""


class Teller(Protocol):
    """`take` answers the line that a record adds, None when it is none of the subject's business.

    `known` are the names of this kind that the log knows, for whoever asked for one that it does not.
    """

    known: dict[str, None]

    def take(self, record: Record) -> Line | None: ...


def named(reservation: Reservation) -> str:
    return f"{reservation.owner.namespace}/{reservation.owner.name}"


class PodStory:
    """By uid or `namespace/name`; a name may have belonged to several pods.

    What befell its devices while it held them is part of its story.
    """

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self.uids: dict[str, None] = {}
        self.known: dict[str, None] = {}
        self._devices: dict[str, frozenset[str]] = {}

    def take(self, record: Record) -> Line | None:
        return Line(record) if self._about(record.event) else None

    def _about(self, event: Event | Unknown | Undecodable) -> bool:
        match event:
            case AllocationReserved(reservation=reservation):
                return self._reserved(reservation)
            case PlacementRequested() | PlacementRefused():
                return self._is_ours(event.owner_uid, f"{event.namespace}/{event.name}")
            case AllocationEvent():
                return self._moved(event)
            case LockReclaimed(owner=uid) | LockWaitTimedOut(waiter=uid) | LockRefused(by=uid):
                return uid in self.uids
            case (
                FaultObserved(device=device)
                | DeviceHealthChanged(device=device)
                | DeviceCordoned(device=device)
                | DeviceUncordoned(device=device)
                | MigInstanceCreated(device=device)
                | MigInstanceDestroyed(device=device)
                | MigApplyFailed(device=device)
            ):
                return any(device in held for held in self._devices.values())
            case _:
                return False

    def _reserved(self, reservation: Reservation) -> bool:
        ours = isinstance(reservation.owner, PodOwner) and self._is_ours(reservation.owner.uid, named(reservation))
        if ours:
            shares = [share.uuid for container in reservation.containers for share in container.shares]
            self._devices[reservation.id] = frozenset(shares)
        return ours

    def _moved(self, event: AllocationEvent) -> bool:
        if event.owner_uid not in self.uids:
            return False
        if isinstance(event, AllocationReleased | AllocationLapsed | AllocationFailed):
            self._devices.pop(event.reservation, None)
        return True

    def _is_ours(self, uid: str, name: str) -> bool:
        self.known.update(dict.fromkeys((name, uid)))
        if self._pod in {uid, name}:
            self.uids[uid] = None
            return True
        return False


class DeviceStory:
    """What was seen of a device, what was decided about it, and every tenant it had."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self.known: dict[str, None] = {}
        self._tenants: dict[str, str] = {}
        self._registered: object = None

    def take(self, record: Record) -> Line | None:
        event = record.event
        match event:
            case NodeRegistered():
                return Line(record) if self._changed(event, record.envelope.node) else None
            case AllocationReserved(reservation=reservation):
                return self._reserved(record, reservation)
            case AllocationEvent():
                who = self._tenants.get(event.reservation)
                return Line(record, who) if who else None
            case (
                FaultObserved(device=device)
                | DeviceHealthChanged(device=device)
                | DeviceCordoned(device=device)
                | DeviceUncordoned(device=device)
                | MigInstanceCreated(device=device)
                | MigInstanceDestroyed(device=device)
                | MigApplyFailed(device=device)
            ):
                return Line(record) if device == self._uuid else None
            case _:
                return None

    def _changed(self, event: NodeRegistered, node: str) -> bool:
        """Agents register often; only a registration that says something new of this device is told."""
        self.known.update((device.uuid, None) for device in event.devices)
        found = next((device for device in event.devices if device.uuid == self._uuid), None)
        says = found and (node, event.boot_id, found)
        new = says is not None and says != self._registered
        self._registered = says or self._registered
        return new

    def _reserved(self, record: Record, reservation: Reservation) -> Line | None:
        shares = (share.uuid for container in reservation.containers for share in container.shares)
        if self._uuid not in shares:
            return None
        self._tenants[reservation.id] = named(reservation)
        return Line(record, named(reservation))


class NodeStory:
    """Everything recorded of a node, and of the locks that carry its name."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.known: dict[str, None] = {}
        self._pods: dict[str, str] = {}

    def take(self, record: Record) -> Line | None:
        event, node = record.event, record.envelope.node
        if node and not isinstance(event, NodeRemoved):
            self.known[node] = None
        if isinstance(event, LockReclaimed | LockWaitTimedOut | LockRefused) and event.lock.endswith(f"/{self._node}"):
            return Line(record)
        if node != self._node:
            return None
        if isinstance(event, AllocationReserved):
            self._pods[event.reservation.id] = named(event.reservation)
        who = self._pods.get(event.reservation, "") if isinstance(event, AllocationEvent) else ""
        return Line(record, who)
