"""What the cluster fold remembers.

`Facts` is what a checkpoint holds and what two processes compare: it follows from the log alone. `ClusterState` adds the two
journals that the shell drains after every batch. Outer dicts are owned and changed in place; every value in them is frozen
(inner dicts of `quota_used` are replaced, never changed, so that a reader may keep one).
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from hami.domain.allocation import Allocation
from hami.domain.cluster import NamespaceQuota, NodeState
from hami.domain.device import DeviceState, DeviceUsage, Health, MigSlice
from hami.events.envelope import START, Position

KEPT_ODDITIES: Final = 256


class Held(msgspec.Struct, frozen=True, gc=False):
    """What live allocations hold of one device, whether or not it is registered now."""

    used: DeviceUsage = DeviceUsage()
    mig: tuple[MigSlice, ...] = ()
    notes: tuple[str, ...] = ()


NOTHING_HELD: Final = Held()


class Holding(msgspec.Struct, frozen=True, gc=False):
    """What one allocation holds: usage, MIG slices, note by device; memory and cores by vendor. Follows from the allocation."""

    usage: dict[str, DeviceUsage]
    sums: dict[str, tuple[int, int]]
    mig: dict[str, tuple[MigSlice, ...]]
    notes: dict[str, str]


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


class _Kept(msgspec.Struct, kw_only=True):
    """What a checkpoint and a running state have in common.

    `previous` is the position before it, so that a reader can ask the log whether `position` still stands.
    `seen` is producer -> (epoch, seq) last applied. `retired` is pod entity -> time of its release, `sweep_at_ms` when those
    are looked through next (see allocations.py).
    `stuck` is node -> why it stays quarantined until somebody acts (see nodes.py).
    """

    position: Position = START
    previous: Position = START
    incarnation: str = ""
    policy_version: str = ""
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
    sweep_at_ms: int = 0
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    undecodable: dict[str, int] = msgspec.field(default_factory=dict)
    odd: dict[str, int] = msgspec.field(default_factory=dict)


class Facts(_Kept, kw_only=True):
    """Everything that follows from the log up to `position`."""

    nodes: dict[str, NodeState] = msgspec.field(default_factory=dict)


class ClusterState(_Kept, kw_only=True):
    """The facts as they are kept while events arrive, plus the journals: `touched` nodes and the last oddities.

    An allocation changes `held`; what the devices of its node show of that (`used`, `mig_in_use`) follows when somebody reads
    `nodes`, once for however many events came in between. `behind` names the nodes in `shown` that this is still due for.
    Both are for `nodes` alone: everybody else, the fold included, reads `nodes`, which is never behind.

    `holdings` keeps by allocation id what was worked out when it began to count, for when it ends.
    """

    shown: dict[str, NodeState] = msgspec.field(default_factory=dict)
    behind: dict[str, None] = msgspec.field(default_factory=dict)
    holdings: dict[str, Holding] = msgspec.field(default_factory=dict)
    touched: dict[str, None] = msgspec.field(default_factory=dict)
    oddities: deque[Oddity] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT_ODDITIES))

    @property
    def nodes(self) -> dict[str, NodeState]:
        for name in self.behind:
            node = self.shown.get(name)
            if node is not None:
                self.shown[name] = showing(node, self.held.get(name) or {})
        self.behind.clear()
        return self.shown

    def held_changed(self, name: str) -> None:
        """What is held of this node's devices is another now."""
        if name in self.shown:
            self.behind[name] = self.touched[name] = None

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


def showing(node: NodeState, held: Mapping[str, Held]) -> NodeState:
    """The node with its devices' usage in line with what is held of them."""
    devices = []
    for each in node.devices:
        now = held.get(each.device.uuid, NOTHING_HELD)
        same = each.used is now.used and each.mig_in_use is now.mig and each.notes is now.notes
        devices.append(each if same else with_held(each, now))
    return replace(node, devices=tuple(devices))


def with_held(each: DeviceState, held: Held) -> DeviceState:
    return DeviceState(
        device=each.device,
        health=each.health,
        health_reason=each.health_reason,
        cordoned=each.cordoned,
        used=held.used,
        mig_in_use=held.mig,
        notes=held.notes,
    )


def facts_of(state: ClusterState) -> Facts:
    """The same dicts without the journals; valid until the next event is applied."""
    fields: dict[str, Any] = {name: getattr(state, name) for name in Facts.__struct_fields__}
    return Facts(**fields)


def state_of(facts: Facts) -> ClusterState:
    """Takes over the dicts of `facts`. Every node counts as touched: whoever follows changes has seen none of them."""
    fields: dict[str, Any] = {name: getattr(facts, name) for name in _Kept.__struct_fields__}
    return ClusterState(**fields, shown=facts.nodes, touched=dict.fromkeys(facts.nodes))
