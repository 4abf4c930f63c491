"""The reservation: one pod's devices, from the decision until they are free again.

                    .--------> Lapsed      (deadline passed, or replaced by a new decision)
                    |
    Reserved ----> Bound ----> Prepared ----> Released
        |            |             |
        '------------'-------------'--------> Failed / Released

Every allocation reaches exactly one terminal phase; TRANSITIONS is the whole truth about the edges.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from hami.domain.device import DeviceUsage, MigSlice
from hami.domain.errors import IllegalTransition
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, EpochMs, MiB


class Phase(StrEnum):
    RESERVED = "reserved"
    BOUND = "bound"
    PREPARED = "prepared"
    RELEASED = "released"
    LAPSED = "lapsed"
    FAILED = "failed"

    # Enum's own hash is Python code; every edge of a replay is looked up by it.
    __hash__ = str.__hash__


TERMINAL: Final = frozenset({Phase.RELEASED, Phase.LAPSED, Phase.FAILED})

TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.RESERVED: frozenset({Phase.BOUND, Phase.RELEASED, Phase.LAPSED, Phase.FAILED}),
        Phase.BOUND: frozenset({Phase.PREPARED, Phase.RELEASED, Phase.FAILED}),
        Phase.PREPARED: frozenset({Phase.RELEASED, Phase.FAILED}),
        Phase.RELEASED: frozenset(),
        Phase.LAPSED: frozenset(),
        Phase.FAILED: frozenset(),
    }
)


class PodOwner(msgspec.Struct, frozen=True, gc=False, tag="pod", tag_field="kind"):
    """Owner by uid; namespace and name are for people."""

    uid: str
    namespace: str
    name: str


class ClaimOwner(msgspec.Struct, frozen=True, gc=False, tag="claim", tag_field="kind"):
    """A Dynamic Resource Allocation claim (used when hami speaks DRA)."""

    uid: str
    share: str
    namespace: str
    name: str


Owner = PodOwner | ClaimOwner


class DeviceShare(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one container gets of one device. `memory` and `cores` are resolved for that very device."""

    vendor: str
    uuid: str
    memory: MiB
    cores: CorePercent
    model: str = ""
    """The type word written into HAMi's annotation for this share (vendor word for most vendors)."""
    index: int = 0
    mig: MigSlice | None = None
    note: str = ""
    """What later pods on the card have to know of this one, in the words of its vendor's page; empty for most vendors."""


class ContainerShares(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One container by position and name; position i counts init containers first, as HAMi's annotations do."""

    name: str
    kind: ContainerKind
    shares: tuple[DeviceShare, ...] = ()


class Reservation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A decision as it stands in the log. `score` is the node's score at the time, for `explain`."""

    id: str
    owner: Owner
    node: str
    containers: tuple[ContainerShares, ...]
    scheduler: str
    deadline_ms: EpochMs
    node_uid: str = ""
    node_epoch: int = 0
    policy_version: str = ""
    request_digest: str = ""
    score: float = 0.0
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """What the Binding will carry onto the pod."""


class Allocation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A reservation and how far it has come. `init_done`: only what runs steadily still counts."""

    reservation: Reservation
    phase: Phase = Phase.RESERVED
    prepared: frozenset[str] = frozenset()
    init_done: bool = False

    @property
    def id(self) -> str:
        return self.reservation.id

    @property
    def live(self) -> bool:
        return self.phase not in TERMINAL

    def moved_to(self, phase: Phase) -> "Allocation":
        """Raises IllegalTransition where TRANSITIONS has no such edge; nothing happens then."""
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalTransition(f"allocation {self.id}: {self.phase} -> {phase} is not an edge")
        return msgspec.structs.replace(self, phase=phase)


def shares_of(containers: tuple[ContainerShares, ...]) -> Iterator[DeviceShare]:
    for container in containers:
        yield from container.shares


def usage_of(containers: tuple[ContainerShares, ...], *, init_done: bool = False) -> dict[str, DeviceUsage]:
    """What these containers hold of each device (by uuid) at their peak, as Kubernetes itself counts.

    Before init is done: the largest of every init step (that init container plus the sidecars started before it) and the
    steady state (all sidecars and apps together). Afterwards: the steady state. Slots, memory and cores each peak on their own.
    """
    steady: dict[str, DeviceUsage] = {}
    peak: dict[str, DeviceUsage] = {}
    for container in containers:
        if container.kind is ContainerKind.INIT:
            if not init_done:
                step = dict(steady)
                _add(step, container)
                for uuid, usage in step.items():
                    peak[uuid] = _largest(peak.get(uuid), usage)
        else:
            _add(steady, container)
    if not peak:
        return steady
    for uuid, usage in steady.items():
        peak[uuid] = _largest(peak.get(uuid), usage)
    return peak


def notes_of(containers: tuple[ContainerShares, ...], *, init_done: bool = False) -> dict[str, str]:
    """What these containers say of themselves on each device (by uuid): one note a pod, the last container's."""
    return {
        share.uuid: share.note
        for container in containers
        if not (init_done and container.kind is ContainerKind.INIT)
        for share in container.shares
        if share.note
    }


def _add(into: dict[str, DeviceUsage], container: ContainerShares) -> None:
    for share in container.shares:
        one = DeviceUsage(1, share.memory, share.cores)
        held = into.get(share.uuid)
        into[share.uuid] = one if held is None else held.plus(one)


def _largest(a: DeviceUsage | None, b: DeviceUsage) -> DeviceUsage:
    if a is None:
        return b
    return DeviceUsage(max(a.slots, b.slots), max(a.memory, b.memory), max(a.cores, b.cores))
