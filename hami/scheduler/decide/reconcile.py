"""What the API says against what the log says: events that make the log true again.

Runs over one snapshot and one complete list of pods. Safe to run on every replica: each event is appended on the expected
version of its pod, so the second one conflicts and is dropped.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from hami.domain.allocation import Allocation, ContainerShares, DeviceShare, Phase, PodOwner, Reservation, usage_of
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import InvalidInput
from hami.domain.request import ContainerKind
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.journal import Corrected
from hami.vendors import annotations, identity
from hami.vendors.vendor import Vendor

_MOST_SURPLUS: Final = 64
_MOST_SHARES: Final = 4096

Action = (
    AllocationReserved
    | AllocationBound
    | AllocationReleased
    | AllocationLapsed
    | AllocationFailed
    | AllocationShrunk
    | Corrected
)


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as the API lists it. `containers`: names and kinds, init containers first. `init_done`: they all ended well.

    `asks`: its containers ask for devices. Only then can the annotations of an allocation be anything but forged.
    `bind_phase`: as its annotation has it. `waiting`: positions of containers that a plugin has yet to serve by its to-allocate
    annotations, None where there is nothing to tell. `admitted`: its kubelet runs it, so that its devices were given out.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    init_done: bool = False
    containers: tuple[tuple[str, ContainerKind], ...] = ()
    asks: bool = True
    annotations: Mapping[str, str] = {}
    bind_phase: str = ""
    waiting: tuple[int, ...] | None = None
    admitted: bool = False

    @property
    def finished(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}


def reconcile(
    snapshot: ClusterSnapshot,
    api_pods: Mapping[str, PodFacts],
    vendors: Sequence[Vendor],
    *,
    now_ms: int,
    settle_ms: int = 0,
    taken: Container[str] | None = None,
) -> list[Action]:
    """Events in order of allocation id, then adoptions in order of pod uid. The list must be younger than the snapshot.

    `taken`: ids of all live allocations, where the snapshot shows some of them only.
    A pod absent from the list counts as gone, except that a reservation not yet bound has until its deadline plus `settle_ms`.
    """
    found: list[Action] = []
    for key in sorted(snapshot.allocations):
        allocation = snapshot.allocations[key]
        if allocation.live:
            found.extend(_settle(allocation, api_pods.get(allocation.reservation.owner.uid), now_ms, settle_ms))
    for uid in sorted(api_pods):
        pod = api_pods[uid]
        if pod.node and not pod.finished and snapshot.allocation_of(uid) is None:
            found.extend(_adopt(pod, vendors, now_ms, snapshot.allocations if taken is None else taken))
    return found


def _settle(allocation: Allocation, pod: PodFacts | None, now_ms: int, settle_ms: int) -> list[Action]:
    reservation = allocation.reservation
    named = {"reservation": allocation.id, "owner_uid": reservation.owner.uid, "namespace": reservation.owner.namespace}
    overdue = now_ms > reservation.deadline_ms + settle_ms
    if not isinstance(reservation.owner, PodOwner):
        return []
    if pod is None:
        if allocation.phase is Phase.RESERVED:
            return [AllocationLapsed(**named, reason="deadline")] if overdue else []
        return [AllocationReleased(**named, reason="pod_absent")]
    if pod.finished:
        return [AllocationReleased(**named, reason="pod_succeeded" if pod.phase == "Succeeded" else "pod_failed")]
    if pod.node and pod.node != reservation.node:
        what = f"pod {pod.namespace}/{pod.name}"
        return [
            Corrected(what=what, fold_said=reservation.node, api_said=pod.node),
            AllocationFailed(**named, reason=f"the API has the pod on {pod.node}"),
        ]
    if allocation.phase is Phase.RESERVED:
        if pod.node:
            return [AllocationBound(**named, adopted="the API has the pod on its node")]
        return [AllocationLapsed(**named, reason="deadline")] if overdue else []
    if pod.init_done and not allocation.init_done and _shrinks(reservation):
        return [AllocationShrunk(**named)]
    return []


def _shrinks(reservation: Reservation) -> bool:
    return usage_of(reservation.containers) != usage_of(reservation.containers, init_done=True)


def _adopt(pod: PodFacts, vendors: Sequence[Vendor], now_ms: int, taken: Container[str]) -> list[Action]:
    """A running pod that carries an allocation we do not know: from before a wipe, or placed by HAMi itself.

    Its annotations may be a tenant's own, where he kept the pod away from the webhook: what they say is checked, and an id that
    is another pod's is not believed.
    """
    try:
        containers = adopted_containers(pod, vendors)
    except InvalidInput as error:
        return [Corrected(what=f"pod {pod.namespace}/{pod.name}", fold_said="no allocation", api_said=str(error))]
    if not any(each.shares for each in containers):
        return []
    if pod.bind_phase == "failed" and not pod.admitted:
        return []  # no plugin will serve it any more
    if not pod.asks:
        why = "annotations of an allocation on a pod that asks for no device"
        return [Corrected(what=f"pod {pod.namespace}/{pod.name}", fold_said="no allocation", api_said=why)]
    carried = pod.annotations.get(identity.RESERVATION, "")
    reservation = Reservation(
        id=carried if carried and carried not in taken else f"adopted-{pod.uid}",
        owner=PodOwner(pod.uid, pod.namespace, pod.name),
        node=pod.node,
        containers=containers,
        scheduler="adopted",
        deadline_ms=EpochMs(now_ms),
        annotations=dict(pod.annotations),
    )
    named = {"reservation": reservation.id, "owner_uid": pod.uid, "namespace": pod.namespace}
    events: list[Action] = [
        AllocationReserved(reservation=reservation),
        AllocationBound(**named, adopted="annotations of a pod already bound"),
    ]
    if pod.init_done and _shrinks(reservation):
        events.append(AllocationShrunk(**named))
    return events


def _check(entries: Sequence[Sequence[annotations.DeviceEntry]], field: str) -> None:
    """What HAMi's format can say and no scheduler ever wrote. Raises InvalidInput."""
    count = 0
    for position, container in enumerate(entries):
        for each in container:
            count += 1
            if not each.uuid or each.memory < 0 or each.cores < 0:
                shown = f"{each.uuid[:80]},{each.memory},{each.cores}"
                raise InvalidInput(f"{field}, container {position}", shown, "needs a uuid and amounts that are not negative")
    if count > _MOST_SHARES:
        raise InvalidInput(field, count, f"more than {_MOST_SHARES} devices")


def adopted_containers(pod: PodFacts, vendors: Sequence[Vendor]) -> tuple[ContainerShares, ...]:
    """Every vendor's `allocated` annotation back into shares. Positions beyond the spec count as apps. Raises InvalidInput."""
    found = list(pod.containers)
    held: list[tuple[Vendor, list[tuple[annotations.DeviceEntry, ...]]]] = []
    for vendor in vendors:
        text = pod.annotations.get(vendor.keys.allocated, "")
        if text:
            entries = annotations.decode_pod(text, vendor.keys.allocated)
            held.append((vendor, entries))
            _check(entries, vendor.keys.allocated)
            surplus = max((n + 1 for n, each in enumerate(entries) if each), default=0) - len(found)
            if surplus > _MOST_SURPLUS:
                raise InvalidInput(vendor.keys.allocated, text[:80], f"names {surplus} containers more than the pod has")
            found += [("", ContainerKind.APP)] * max(surplus, 0)
    containers = []
    for position, (name, kind) in enumerate(found):
        shares: list[DeviceShare] = []
        for vendor, entries in held:
            mig = annotations.decode_mig(pod.annotations.get(vendor.keys.mig, "")) if vendor.keys.mig else ()
            if position < len(entries):
                note = "" if vendor.note is None else vendor.note(pod.annotations, None)
                shares += annotations.shares_from(entries[position], vendor.word, mig, position, note)
        containers.append(ContainerShares(name=name, kind=kind, shares=tuple(shares)))
    return tuple(containers)
