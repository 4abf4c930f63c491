"""What the cluster fold remembers.

`Facts` is what a checkpoint holds and what two processes compare: it follows from the log alone. `ClusterState` adds the two
journals that the shell drains after every batch. Outer dicts are owned and changed in place; every value in them is frozen
(inner dicts of `quota_used` are replaced, never changed, so that a reader may keep one).
"""

from collections import deque
from typing import Any, Final

import msgspec

from hami.domain.allocation import Allocation
from hami.domain.cluster import NamespaceQuota, NodeState
from hami.domain.device import DeviceUsage, Health, MigSlice
from hami.events.envelope import START, Position

KEPT_ODDITIES: Final = 256


class Held(msgspec.Struct, frozen=True, gc=False):
    """What live allocations hold of one device, whether or not it is registered now."""

    used: DeviceUsage = DeviceUsage()
    mig: tuple[MigSlice, ...] = ()


class Mark(msgspec.Struct, frozen=True, gc=False):
    """What is known against a device that is not registered now: it comes back with it."""

    health: Health = Health.HEALTHY
    reason: str = ""
    cordoned: bool = False


class Oddity(msgspec.Struct, frozen=True, gc=False):
    """Something in the log that the fold did not apply, with the reason in words."""

    position: Position
    kind: str
    text: str


class Facts(msgspec.Struct, kw_only=True):
    """Everything that follows from the log up to `position`.

    `previous` is the position before it, so that a reader can ask the log whether `position` still stands.
    `seen` is producer -> (epoch, seq) last applied. `retired` is pod entity -> time of its release (see allocations.py).
    `stuck` is node -> why it stays quarantined until somebody acts (see nodes.py).
    """

    position: Position = START
    previous: Position = START
    incarnation: str = ""
    policy_version: str = ""
    nodes: dict[str, NodeState] = msgspec.field(default_factory=dict)
    allocations: dict[str, Allocation] = msgspec.field(default_factory=dict)
    by_owner: dict[str, str] = msgspec.field(default_factory=dict)
    quotas: dict[str, NamespaceQuota] = msgspec.field(default_factory=dict)
    quota_used: dict[str, dict[str, tuple[int, int]]] = msgspec.field(default_factory=dict)
    versions: dict[str, int] = msgspec.field(default_factory=dict)
    held: dict[str, dict[str, Held]] = msgspec.field(default_factory=dict)
    marks: dict[str, dict[str, Mark]] = msgspec.field(default_factory=dict)
    stuck: dict[str, str] = msgspec.field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    retired: dict[str, int] = msgspec.field(default_factory=dict)
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    undecodable: dict[str, int] = msgspec.field(default_factory=dict)
    odd: dict[str, int] = msgspec.field(default_factory=dict)


class ClusterState(Facts, kw_only=True):
    """Facts plus the journals: `touched` nodes (an ordered set) and the last oddities."""

    touched: dict[str, None] = msgspec.field(default_factory=dict)
    oddities: deque[Oddity] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT_ODDITIES))

    def report(self, kind: str, text: str) -> None:
        """Count something that was not applied, and keep it for the shell to log."""
        self.odd[kind] = self.odd.get(kind, 0) + 1
        self.oddities.append(Oddity(self.position, kind, text))

    def drain_touched(self) -> tuple[str, ...]:
        """Nodes changed since the last call, each once."""
        names = tuple(self.touched)
        self.touched.clear()
        return names

    def drain_oddities(self) -> tuple[Oddity, ...]:
        found = tuple(self.oddities)
        self.oddities.clear()
        return found


def facts_of(state: ClusterState) -> Facts:
    """The same dicts without the journals; valid until the next event is applied."""
    fields: dict[str, Any] = {name: getattr(state, name) for name in Facts.__struct_fields__}
    return Facts(**fields)


def state_of(facts: Facts) -> ClusterState:
    """Takes over the dicts of `facts`. Every node counts as touched: whoever follows changes has seen none of them."""
    fields: dict[str, Any] = {name: getattr(facts, name) for name in Facts.__struct_fields__}
    return ClusterState(**fields, touched=dict.fromkeys(facts.nodes))
