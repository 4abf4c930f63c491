"""Allocations: what each holds from its reservation to its one terminal event, and the usage that follows.

An allocation counts whether or not its node or its devices are known. Usage per device is kept by adding and taking back what
the domain says the allocation holds, so each allocation adds once and gives back once. An edge that the table does not have
is reported and not applied.

A container may be seen prepared before `Bound` is in the log (the agent was faster): that is kept, and the phase follows when
`Bound` arrives. The phase is PREPARED once every container that has devices is prepared.

The version of a pod is forgotten a day (of the log's time) after its release: its uid never returns.
"""

from collections.abc import Mapping
from typing import Final, assert_never

from msgspec.structs import replace

from hami.domain.allocation import Allocation, ContainerShares, Phase, PodOwner, Reservation, usage_of
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
from hami.events.catalog.union import AnyAllocationEvent
from hami.projections.folds.nodes import show_held
from hami.projections.folds.quotas import charge
from hami.projections.folds.state import ClusterState, Held

RETIRED_FOR_MS: Final = 24 * 60 * 60 * 1000

_NONE: Final[Mapping[str, Held]] = {}
_ZERO: Final = DeviceUsage()
_NOTHING: Final = Held(_ZERO)


def apply_allocation(state: ClusterState, event: AnyAllocationEvent, node: str) -> None:
    """`node`: the node of the envelope. What a node's agent says counts for allocations on that node only."""
    match event:
        case AllocationReserved():
            _reserved(state, event.reservation)
        case AllocationBound():
            _bound(state, event)
        case AllocationPrepared():
            _prepared(state, event, node)
        case AllocationShrunk():
            _shrunk(state, event)
        case AllocationReleased():
            if _ended(state, event, Phase.RELEASED):
                _retire(state, event)
        case AllocationLapsed():
            _ended(state, event, Phase.LAPSED)
        case AllocationFailed():
            _ended(state, event, Phase.FAILED)
        case _:
            assert_never(event)


def realised(state: ClusterState, event: MigInstanceCreated, node: str) -> None:
    """The instance that a reservation asked for exists: its shares carry the uuid from now on."""
    old = state.allocations.get(event.reservation)
    if old is None or _foreign(state, old, event, node):
        return
    containers = tuple(_with_instance(each, event) for each in old.reservation.containers)
    new = replace(old, reservation=replace(old.reservation, containers=containers))
    state.allocations[new.id] = new
    _exchange(state, new.reservation, holding_of(old), holding_of(new))


def holding_of(allocation: Allocation) -> dict[str, Held]:
    """What the allocation holds now of each device: usage at its peak and MIG slices, each slice once."""
    containers, init_done = allocation.reservation.containers, allocation.init_done
    slices: dict[str, dict[tuple[str, int], MigSlice]] = {}
    for container in containers:
        if init_done and container.kind is ContainerKind.INIT:
            continue
        for share in container.shares:
            if share.mig is not None:
                slices.setdefault(share.uuid, {})[share.mig.profile, share.mig.placement.start] = share.mig
    usage = usage_of(containers, init_done=init_done)
    if not slices:
        return {uuid: Held(used) for uuid, used in usage.items()}
    return {uuid: Held(used, tuple(slices.get(uuid, {}).values())) for uuid, used in usage.items()}


def _reserved(state: ClusterState, reservation: Reservation) -> None:
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
    _exchange(state, reservation, _NONE, holding_of(allocation))


def _bound(state: ClusterState, event: AllocationBound) -> None:
    moved = _moved(state, event, Phase.BOUND)
    if moved is not None:
        state.allocations[moved.id] = _settled(moved)


def _prepared(state: ClusterState, event: AllocationPrepared, node: str) -> None:
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


def _shrunk(state: ClusterState, event: AllocationShrunk) -> None:
    old = _live(state, event)
    if old is None or old.init_done:
        return
    new = replace(old, init_done=True)
    state.allocations[new.id] = new
    _exchange(state, new.reservation, holding_of(old), holding_of(new))


def _ended(state: ClusterState, event: AllocationEvent, phase: Phase) -> bool:
    ended = _moved(state, event, phase)
    if ended is None:
        return False
    del state.allocations[ended.id]
    owner = ended.reservation.owner.uid
    if state.by_owner.get(owner) == ended.id:
        del state.by_owner[owner]
    _exchange(state, ended.reservation, holding_of(ended), _NONE)
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


def _exchange(state: ClusterState, reservation: Reservation, before: Mapping[str, Held], after: Mapping[str, Held]) -> None:
    """One allocation's holding changes from `before` to `after`: devices, node and quota follow."""
    changed = {**before, **after} if before and after else before or after
    if not changed:
        return
    held = state.held.setdefault(reservation.node, {})
    for uuid in changed:
        now = _replaced(held.get(uuid, _NOTHING), before.get(uuid, _NOTHING), after.get(uuid, _NOTHING))
        if now.used.slots:
            held[uuid] = now
        else:
            held.pop(uuid, None)
    if not held:
        del state.held[reservation.node]
    show_held(state, reservation.node, changed)
    charge(state, reservation.owner.namespace, _difference(reservation.containers, before, after))


def _replaced(total: Held, old: Held, new: Held) -> Held:
    if total is _NOTHING:
        return new
    was, gone, come = total.used, old.used, new.used
    used = DeviceUsage(
        was.slots - gone.slots + come.slots, was.memory - gone.memory + come.memory, was.cores - gone.cores + come.cores
    )
    if not (total.mig or new.mig):
        return Held(used)
    slices = list(total.mig)
    for each in old.mig:
        slices.remove(each)
    return Held(used, (*slices, *new.mig))


def _difference(
    containers: tuple[ContainerShares, ...], before: Mapping[str, Held], after: Mapping[str, Held]
) -> dict[str, tuple[int, int]]:
    """Memory and cores per vendor that `after` holds beyond `before`."""
    vendors: dict[str, str] = {}
    for container in containers:
        for share in container.shares:
            vendors[share.uuid] = share.vendor
    sums: dict[str, tuple[int, int]] = {}
    for sign, holding in ((-1, before), (1, after)):
        for uuid, held in holding.items():
            vendor, used = vendors[uuid], held.used
            memory, cores = sums.get(vendor, (0, 0))
            sums[vendor] = (memory + sign * used.memory, cores + sign * used.cores)
    return sums


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
    now = state.position.recorded_ms
    state.retired[f"pod/{event.owner_uid}"] = now
    while state.retired:
        entity, since = next(iter(state.retired.items()))
        if now - since < RETIRED_FOR_MS:
            return
        del state.retired[entity]
        state.versions.pop(entity, None)
