"""Allocations: what each holds from its reservation to its one terminal event, and the usage that follows.

An allocation counts whether or not its node or its devices are known. Usage per device is kept by adding and taking back what
the domain says the allocation holds, so each allocation adds once and gives back once. An edge that the table does not have
is reported and not applied.

A container may be seen prepared before `Bound` is in the log (the agent was faster): that is kept, and the phase follows when
`Bound` arrives. The phase is PREPARED once every container that has devices is prepared.

The version of a pod is forgotten a day or a little more (of the log's time) after its release: its uid never returns.
"""

from typing import Final, TypeVar

from msgspec.structs import replace

from hami.domain.allocation import Allocation, ContainerShares, Phase, PodOwner, Reservation, notes_of, usage_of
from hami.domain.device import DeviceUsage, MigSlice
from hami.domain.errors import IllegalTransition
from hami.domain.request import ContainerKind
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationEvent,
    AllocationFailed,
    AllocationLapsed,
    AllocationPrepared,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.device import MigInstanceCreated
from hami.projections.folds.quotas import charge, give_back
from hami.projections.folds.state import ClusterState, Held, Holding

RETIRED_FOR_MS: Final = 24 * 60 * 60 * 1000
SWEEP_EVERY_MS: Final = 10 * 60 * 1000

_T = TypeVar("_T")
_NO_SLICES: Final[dict[str, tuple[MigSlice, ...]]] = {}
_NO_NOTES: Final[dict[str, str]] = {}


def realised(state: ClusterState, event: MigInstanceCreated, node: str) -> None:
    """The instance that a reservation asked for exists: its shares carry the uuid from now on."""
    old = state.allocations.get(event.reservation)
    if old is None or _foreign(state, old, event, node):
        return
    containers = tuple(_with_instance(each, event) for each in old.reservation.containers)
    new = replace(old, reservation=replace(old.reservation, containers=containers))
    state.allocations[new.id] = new
    _give_back(state, old)
    _take(state, new)


def reserved(state: ClusterState, event: AllocationReserved) -> None:
    reservation = event.reservation
    if reservation.id in state.allocations:
        state.report("reserved_twice", f"allocation {reservation.id} is reserved again while it is live")
        return
    allocation = Allocation(reservation=reservation)
    owner = reservation.owner.uid
    other = state.by_owner.get(owner)
    if other is not None:
        state.report("owner_has_two", f"{owner} gets {reservation.id} while {other} is live; both count")
    state.allocations[allocation.id] = allocation
    state.by_owner[owner] = allocation.id
    state.retired.pop(_entity(reservation), None)
    _take(state, allocation)


def bound(state: ClusterState, event: AllocationBound) -> None:
    moved = _moved(state, event, Phase.BOUND)
    if moved is not None:
        state.allocations[moved.id] = _settled(moved)


def prepared(state: ClusterState, event: AllocationPrepared, node: str) -> None:
    old = _live(state, event)
    if old is None or _foreign(state, old, event, node):
        return
    if event.difference:
        state.report("served_differs", f"allocation {old.id}, container {event.container}: {event.difference}")
    if event.container not in old.prepared:
        state.allocations[old.id] = _settled(replace(old, prepared=old.prepared | {event.container}))


def _foreign(state: ClusterState, held: Allocation, event: AllocationPrepared | MigInstanceCreated, node: str) -> bool:
    if held.reservation.node == node:
        return False
    state.report("other_node", f"{node} says {event.TYPE} of allocation {held.id}, which is on {held.reservation.node}")
    return True


def _settled(allocation: Allocation) -> Allocation:
    if allocation.phase is not Phase.BOUND or not allocation.prepared:
        return allocation
    wanted = {each.name for each in allocation.reservation.containers if each.shares}
    return allocation.moved_to(Phase.PREPARED) if wanted <= allocation.prepared else allocation


def shrunk(state: ClusterState, event: AllocationShrunk) -> None:
    old = _live(state, event)
    if old is None or old.init_done:
        return
    new = replace(old, init_done=True)
    state.allocations[new.id] = new
    _give_back(state, old)
    _take(state, new)


def released(state: ClusterState, event: AllocationReleased) -> None:
    if _ended(state, event, Phase.RELEASED):
        _retire(state, event)


def lapsed(state: ClusterState, event: AllocationLapsed) -> None:
    _ended(state, event, Phase.LAPSED)


def failed(state: ClusterState, event: AllocationFailed) -> None:
    _ended(state, event, Phase.FAILED)


def _ended(state: ClusterState, event: AllocationEvent, phase: Phase) -> bool:
    ended = _moved(state, event, phase)
    if ended is None:
        return False
    del state.allocations[ended.id]
    owner = ended.reservation.owner.uid
    if state.by_owner.get(owner) == ended.id:
        del state.by_owner[owner]
    _give_back(state, ended)
    return True


def _live(state: ClusterState, event: AllocationEvent) -> Allocation | None:
    found = state.allocations.get(event.reservation)
    if found is None:
        state.report("not_live", f"{type(event).__name__} of allocation {event.reservation}, which is not live")
    return found


def _moved(state: ClusterState, event: AllocationEvent, phase: Phase) -> Allocation | None:
    old = _live(state, event)
    if old is None:
        return None
    try:
        return old.moved_to(phase)
    except IllegalTransition as refused:
        state.report("illegal_edge", str(refused))
        return None


def _take(state: ClusterState, allocation: Allocation) -> None:
    """What the allocation holds counts from now on: on its devices and against its namespace."""
    reservation = allocation.reservation
    holding = state.holdings[allocation.id] = _holding_of(allocation)
    if not holding.usage:
        return
    held, mig, notes = state.held.setdefault(reservation.node, {}), holding.mig, holding.notes
    for uuid, more in holding.usage.items():
        was = held.get(uuid)
        if was is None:
            held[uuid] = Held(more, mig.get(uuid, ()), (notes[uuid],) if uuid in notes else ())
        else:
            told = (*was.notes, notes[uuid]) if uuid in notes else was.notes
            held[uuid] = Held(was.used.plus(more), (*was.mig, *mig[uuid]) if uuid in mig else was.mig, told)
    state.held_changed(reservation.node)
    charge(state, reservation.owner.namespace, holding.sums)


def _give_back(state: ClusterState, allocation: Allocation) -> None:
    """Undoes `_take` of the same allocation."""
    reservation = allocation.reservation
    holding = state.holdings.pop(allocation.id, None) or _holding_of(allocation)
    if not holding.usage:
        return
    held, mig, notes = state.held[reservation.node], holding.mig, holding.notes
    for uuid, less in holding.usage.items():
        was = held[uuid]
        if was.used.slots == less.slots:
            del held[uuid]
        else:
            told = _without(was.notes, (notes[uuid],)) if uuid in notes else was.notes
            held[uuid] = Held(was.used.minus(less), _without(was.mig, mig[uuid]) if uuid in mig else was.mig, told)
    if not held:
        del state.held[reservation.node]
    state.held_changed(reservation.node)
    give_back(state, reservation.owner.namespace, holding.sums)


def _holding_of(allocation: Allocation) -> Holding:
    containers, init_done = allocation.reservation.containers, allocation.init_done
    if len(containers) == 1 and len(containers[0].shares) == 1 and not init_done:
        # One container with one share: nearly every pod.
        share = containers[0].shares[0]
        instance: dict[str, tuple[MigSlice, ...]] = _NO_SLICES if share.mig is None else {share.uuid: (share.mig,)}
        used = DeviceUsage(1, share.memory, share.cores)
        notes = {share.uuid: share.note} if share.note else _NO_NOTES
        return Holding({share.uuid: used}, {share.vendor: (share.memory, share.cores)}, instance, notes)
    usage = usage_of(containers, init_done=init_done)
    mig: dict[str, dict[tuple[str, int], MigSlice]] = {}
    vendors: dict[str, str] = {}
    for container in containers:
        counts = not (init_done and container.kind is ContainerKind.INIT)
        for share in container.shares:
            vendors[share.uuid] = share.vendor
            if counts and share.mig is not None:
                mig.setdefault(share.uuid, {})[share.mig.profile, share.mig.placement.start] = share.mig
    sums: dict[str, tuple[int, int]] = {}
    for uuid, each in usage.items():
        memory, cores = sums.get(vendors[uuid], (0, 0))
        sums[vendors[uuid]] = (memory + each.memory, cores + each.cores)
    instances = {uuid: tuple(found.values()) for uuid, found in mig.items()} if mig else _NO_SLICES
    return Holding(usage, sums, instances, notes_of(containers, init_done=init_done))


def _without(held: tuple[_T, ...], gone: tuple[_T, ...]) -> tuple[_T, ...]:
    left = list(held)
    for each in gone:
        left.remove(each)
    return tuple(left)


def _with_instance(container: ContainerShares, event: MigInstanceCreated) -> ContainerShares:
    wanted = event.instance
    shares = tuple(
        replace(share, mig=wanted)
        if share.uuid == event.device
        and share.mig is not None
        and (share.mig.profile, share.mig.placement) == (wanted.profile, wanted.placement)
        else share
        for share in container.shares
    )
    return container if shares == container.shares else replace(container, shares=shares)


def _entity(reservation: Reservation) -> str:
    owner = reservation.owner
    return f"pod/{owner.uid}" if isinstance(owner, PodOwner) else f"claim/{owner.uid}"


def _retire(state: ClusterState, event: AllocationReleased) -> None:
    """Looks for pods to forget now and then only: a dict that loses its head each time gets slow at its head."""
    now = state.position.recorded_ms
    state.retired[f"pod/{event.owner_uid}"] = now
    if now < state.sweep_at_ms:
        return
    state.sweep_at_ms = now + SWEEP_EVERY_MS
    for entity in [entity for entity, since in state.retired.items() if now - since >= RETIRED_FOR_MS]:
        del state.retired[entity]
        state.versions.pop(entity, None)
