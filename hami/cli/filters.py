"""Which events a person wants to see."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from hami.domain.errors import InvalidInput
from hami.events.catalog.allocation import AllocationEvent, AllocationReserved
from hami.events.catalog.governance import PlacementRefused, PlacementRequested
from hami.events.catalog.union import EVENT_TYPES
from hami.events.log import Record


class EventFilter:
    """Every given condition must hold. Types are patterns (`allocation.*`), with or without the leading `hami.`.

    A pod is a uid or `namespace/name`. Later events of an allocation carry only the uid, so the filter remembers the uids
    that it saw under the name.
    """

    def __init__(self, *, node: str = "", types: Sequence[str] = (), subject: str = "", pod: str = "") -> None:
        self._node, self._subject, self._pod = node, subject, pod
        self._types = tuple(known_pattern(each) for each in types)
        self._uids = {pod}

    def wants(self, record: Record) -> bool:
        envelope = record.envelope
        if self._node and envelope.node != self._node:
            return False
        if self._subject and envelope.subject != self._subject:
            return False
        if self._types and not any(fnmatchcase(envelope.type, pattern) for pattern in self._types):
            # The name of a pod must be learnt from its reservation even when reservations are not shown.
            self._about_pod(record)
            return False
        return not self._pod or self._about_pod(record)

    def _about_pod(self, record: Record) -> bool:
        event = record.event
        uid = record.envelope.subject
        if isinstance(event, AllocationReserved):
            owner = event.reservation.owner
            uid = owner.uid
            self._learn(owner.uid, f"{owner.namespace}/{owner.name}")
        elif isinstance(event, PlacementRequested | PlacementRefused):
            uid = event.owner_uid
            self._learn(event.owner_uid, f"{event.namespace}/{event.name}")
        elif isinstance(event, AllocationEvent):
            uid = event.owner_uid
        return uid in self._uids

    def _learn(self, uid: str, key: str) -> None:
        if self._pod == key:
            self._uids.add(uid)


def known_pattern(pattern: str) -> str:
    """The full pattern. Raises InvalidInput when no event type of this version matches it."""
    full = pattern if pattern.startswith("hami.") else f"hami.{pattern}"
    names = [each.TYPE for each in EVENT_TYPES]
    if any(fnmatchcase(name, full) for name in names):
        return full
    family = full.split(".")[1]
    near = [name.removeprefix("hami.") for name in names if name.split(".")[1] == family]
    families = sorted({name.split(".")[1] for name in names})
    raise InvalidInput("--type", pattern, "no such event; there are " + ", ".join(near or [f"{each}.*" for each in families]))
