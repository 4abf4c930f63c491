"""Names that the log knows, for whoever asked for one that it does not."""

from difflib import get_close_matches

from hami.domain.errors import InvalidInput
from hami.events.catalog.allocation import AllocationReserved
from hami.events.catalog.governance import PlacementRefused, PlacementRequested
from hami.events.catalog.node import NodeRegistered
from hami.events.log import Record

SHOWN = 5

_FORMS = {
    "pod": "NAMESPACE/NAME or the pod's uid",
    "device": "the card's uuid",
    "node": "the node's name",
    "reservation": "the reservation's id, NAMESPACE/NAME of a pod, or its uid",
}


def named(kind: str, name: str) -> str:
    """The name as it was given. Raises InvalidInput when there is none: a shell variable that was empty, mostly."""
    if not name.strip():
        raise InvalidInput(kind, name, f"must not be empty: give {_FORMS[kind]}")
    return name


class Known:
    """Fed every record; remembers the names of one kind (`pod`, `device` or `node`), newest last."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._names: dict[str, None] = {}

    def take(self, record: Record) -> None:
        event = record.event
        if self._kind == "node":
            self._learn(record.envelope.node)
        elif self._kind == "device" and isinstance(event, NodeRegistered):
            self._learn(*(device.uuid for device in event.devices))
        elif self._kind == "pod" and isinstance(event, AllocationReserved):
            owner = event.reservation.owner
            self._learn(f"{owner.namespace}/{owner.name}", owner.uid)
        elif self._kind == "pod" and isinstance(event, PlacementRefused | PlacementRequested):
            self._learn(f"{event.namespace}/{event.name}", event.owner_uid)

    def _learn(self, *names: str) -> None:
        self._names.update(dict.fromkeys(name for name in names if name))

    def nearby(self, name: str) -> str:
        """Names like the one asked for, else the newest few."""
        known = [*self._names]
        if not known:
            return "it knows none at all"
        alike = get_close_matches(name, known, n=SHOWN, cutoff=0.5) or [each for each in known if name in each][:SHOWN]
        return "similar: " + ", ".join(alike) if alike else "among others: " + ", ".join(known[-SHOWN:])
