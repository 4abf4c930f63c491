"""Pods as the loops keep them: only those that matter here, and of them only what decisions read."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from hami.domain.allocation import PodOwner
from hami.domain.cluster import ClusterSnapshot
from hami.domain.pod import Pod
from hami.domain.request import ContainerKind
from hami.events.catalog.allocation import AllocationEvent, AllocationReserved
from hami.events.log import Draft
from hami.scheduler.core import Decision, at_versions
from hami.scheduler.decide.reconcile import Action, PodFacts, reconcile
from hami.vendors import identity
from hami.vendors.requests import containers_of
from hami.vendors.vendor import Vendor

T = TypeVar("T")

_SHARED: Final = 20_000
_ALLOCATING: Final = "allocating"
_LONGEST_PHASE: Final = 20
_NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})


class Relevance:
    """Which pods, and which of their annotations, are kept."""

    def __init__(self, vendors: Sequence[Vendor]) -> None:
        self._resources: Final = frozenset(name for vendor in vendors for name in vendor.resources.all())
        self._shared: dict[object, Any] = {}
        self._to_allocate: Final = tuple(dict.fromkeys(each.keys.to_allocate for each in vendors if each.keys.to_allocate))
        self._written: Final = tuple(key for vendor in vendors for key in (vendor.keys.allocated, vendor.keys.mig) if key)
        noted = tuple(key for vendor in vendors if vendor.note is not None for key in vendor.pod_keys)
        self._kept: Final = (identity.RESERVATION, *self._written, *noted)

    def matters(self, pod: Pod) -> bool:
        return any(key in pod.metadata.notes for key in self._written) or self._asks(pod)

    def _asks(self, pod: Pod) -> bool:
        for _, _, container in containers_of(pod):
            if container.resources is None:
                continue
            for given in (container.resources.limits, container.resources.requests):
                if given is not None and not self._resources.isdisjoint(given):
                    return True
        return False

    def facts(self, pod: Pod) -> PodFacts:
        notes = pod.metadata.notes
        kept = {key: notes[key] for key in self._kept if key in notes}
        share = self._one
        return PodFacts(
            uid=pod.metadata.uid,
            namespace=share(pod.metadata.namespace),
            name=pod.metadata.name,
            node=share(pod.spec.node_name or ""),
            phase=share(pod.status.phase if pod.status is not None else ""),
            init_done=init_done(pod),
            containers=share(tuple((container.name, kind) for _, kind, container in containers_of(pod))),
            asks=self._asks(pod),
            annotations=kept or _NO_ANNOTATIONS,
            bind_phase=share(notes.get(identity.BIND_PHASE, "")[:_LONGEST_PHASE]),
            waiting=share(self._waiting(notes)),
            admitted=admitted(pod),
        )

    def _waiting(self, notes: Mapping[str, str]) -> tuple[int, ...] | None:
        """Nobody but a plugin empties these annotations, and only while its pod is being allocated."""
        if notes.get(identity.BIND_PHASE, "") != _ALLOCATING:
            return None
        texts = [notes[key] for key in self._to_allocate if key in notes]
        left = {position for text in texts for position, part in enumerate(text.split(";")) if part}
        return tuple(sorted(left)) if texts else None

    def _one(self, value: T) -> T:
        """The same words come with thousands of pods: one copy of each is kept."""
        if len(self._shared) >= _SHARED:
            self._shared.clear()
        found: T = self._shared.setdefault(value, value)
        return found


def admitted(pod: Pod) -> bool:
    """Its kubelet took it in: that asks the device plugins first, and only then has anything to say of its containers."""
    status = pod.status
    if status is None or status.phase in {"Failed", "Succeeded"}:
        return False
    return status.phase == "Running" or bool(status.container_statuses or status.init_container_statuses)


def init_done(pod: Pod) -> bool:
    """There are init containers, and every one that ends (sidecars do not) has ended well."""
    ending = {container.name for _, kind, container in containers_of(pod) if kind is ContainerKind.INIT}
    statuses = (pod.status.init_container_statuses if pod.status is not None else None) or ()
    done = {
        each.name
        for each in statuses
        if each.state is not None and each.state.terminated is not None and each.state.terminated.exit_code == 0
    }
    return bool(ending) and ending <= done


def settle(snapshot: ClusterSnapshot, pod: PodFacts, vendors: Sequence[Vendor], now_ms: int) -> Decision | None:
    """What one pod's state, as last seen, means for its allocation.

    Adopts nothing that the log has heard of: another replica may have seen the pod's end already.
    """
    allocation = snapshot.allocation_of(pod.uid)
    if allocation is None and known(snapshot, pod.uid):
        return None
    narrowed = ClusterSnapshot(
        allocations={} if allocation is None else {allocation.id: allocation},
        by_owner={} if allocation is None else {pod.uid: allocation.id},
        versions=snapshot.versions,
    )
    actions = reconcile(narrowed, {pod.uid: pod}, vendors, now_ms=now_ms, taken=snapshot.allocations)
    return as_decision(snapshot, pod.uid, actions) if actions else None


def known(snapshot: ClusterSnapshot, uid: str) -> bool:
    """Whether the log ever said anything about this pod."""
    return snapshot.versions.get(f"pod/{uid}", 0) > 0


def by_pod(actions: Sequence[Action], pods: Mapping[str, PodFacts]) -> Iterator[tuple[str, list[Action]]]:
    """Actions in the order given, grouped by the pod they are about; those about no known pod under the empty uid."""
    names = {f"pod {pod.namespace}/{pod.name}": uid for uid, pod in pods.items()}
    groups: dict[str, list[Action]] = {}
    for action in actions:
        if isinstance(action, AllocationReserved):
            uid = action.reservation.owner.uid
        elif isinstance(action, AllocationEvent):
            uid = action.owner_uid
        else:
            uid = names.get(action.what, "")
        groups.setdefault(uid, []).append(action)
    yield from groups.items()


def as_decision(snapshot: ClusterSnapshot, uid: str, actions: Sequence[Action]) -> Decision:
    """Drafts that carry their node, conditioned on the pod."""
    nodes = {each.reservation.id: each.reservation.node for each in actions if isinstance(each, AllocationReserved)}
    drafts = []
    for action in actions:
        node = ""
        if isinstance(action, AllocationReserved):
            node = action.reservation.node
        elif isinstance(action, AllocationEvent):
            held = snapshot.allocations.get(action.reservation)
            node = held.reservation.node if held is not None else nodes.get(action.reservation, "")
        drafts.append(Draft(event=action, node=node, subject=uid))
    return drafts, at_versions(snapshot, f"pod/{uid}") if uid else {}


def owner_of(snapshot: ClusterSnapshot, uid: str) -> PodOwner | None:
    held = snapshot.allocation_of(uid)
    if held is None or not isinstance(held.reservation.owner, PodOwner):
        return None
    return held.reservation.owner
