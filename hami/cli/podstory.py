"""What the log says about one pod, as far as an explanation needs it. Fed record by record."""

from collections.abc import Mapping

from hami.domain.allocation import PodOwner, Reservation
from hami.events.catalog.allocation import (
    AllocationEvent,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
)
from hami.events.catalog.governance import LockWaitTimedOut, PlacementRefused, PlacementRequested, PolicyChanged
from hami.events.envelope import Position
from hami.events.log import Record

Ending = AllocationReleased | AllocationLapsed | AllocationFailed


class PodStory:
    """`name` is a uid, `namespace/name` or the id of a reservation. Of several pods of one name the newest counts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.uid = ""
        self.key = ""
        self.requested: PlacementRequested | None = None
        self.refused: PlacementRefused | None = None
        self.refused_at: Position | None = None
        self.reservation: Reservation | None = None
        self.reserved_at: Position | None = None
        self.ended: Ending | None = None
        self.timed_out: LockWaitTimedOut | None = None
        self.policies: dict[str, Mapping[str, str]] = {}
        """By version, the one in force last."""
        self._requests: dict[str, PlacementRequested] = {}

    def take(self, record: Record) -> None:
        event = record.event
        match event:
            case PolicyChanged():
                self.policies.pop(event.version, None)
                self.policies[event.version] = event.settings
            case PlacementRequested():
                self._requests[event.owner_uid] = event
                self._is(event.owner_uid, f"{event.namespace}/{event.name}")
            case PlacementRefused() if self._is(event.owner_uid, f"{event.namespace}/{event.name}"):
                self.refused, self.refused_at = event, record.position
            case AllocationReserved():
                self._reserved(event.reservation, record.position)
            case LockWaitTimedOut() if event.waiter == self.uid:
                self.timed_out = event
            case AllocationReleased() | AllocationLapsed() | AllocationFailed() if self._mine(event):
                self.ended = event
            case _:
                pass

    def _mine(self, event: AllocationEvent) -> bool:
        return self.reservation is not None and event.reservation == self.reservation.id

    def _reserved(self, made: Reservation, position: Position) -> None:
        owner = made.owner
        key = f"{owner.namespace}/{owner.name}"
        if isinstance(owner, PodOwner) and self._name in {made.id, owner.uid, key}:
            self._become(owner.uid, key)
            self.reservation, self.reserved_at, self.ended, self.refused = made, position, None, None

    def _is(self, uid: str, key: str) -> bool:
        """Whether an event is about the pod; a newer pod of the name takes the place of an older one."""
        if self._name in {uid, key}:
            self._become(uid, key)
        return uid == self.uid

    def _become(self, uid: str, key: str) -> None:
        if uid != self.uid:
            self.refused = self.refused_at = self.reservation = self.reserved_at = self.ended = self.timed_out = None
        self.uid, self.key, self.requested = uid, key, self._requests.get(uid)
