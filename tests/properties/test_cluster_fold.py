"""Whatever the log holds: replay equals the running state, checkpoints change nothing, usage is what live allocations hold."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hami.domain.allocation import DeviceShare, Phase, Reservation, usage_of
from hami.domain.device import DeviceUsage, Health, MigSlice
from hami.domain.request import ContainerKind
from hami.events.catalog.device import DeviceCordoned, DeviceHealthChanged, DeviceUncordoned, MigInstanceCreated
from hami.events.catalog.node import NodeBack, NodeLost, NodeRemoved
from hami.events.catalog.union import Event
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.checkpoint import decode_state, digest_of, encode_state
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.projections.folds.errors import LogGap
from hami.projections.folds.state import ClusterState, facts_of
from tests.support.builders import (
    a_bound,
    a_container,
    a_device,
    a_failed,
    a_lapsed,
    a_mig_slice,
    a_node_registered,
    a_prepared,
    a_released,
    a_reservation,
    a_reserved,
    a_share,
    a_shrunk,
    again,
    records_of,
)

NODES = ("n1", "n2")
UUIDS = {"NVIDIA": ("GPU-0", "GPU-1", "GPU-2"), "Ascend": ("NPU-0", "NPU-1")}
VENDOR_OF = {uuid: vendor for vendor, uuids in UUIDS.items() for uuid in uuids}
Written = tuple[Event | Unknown | Undecodable, str]

nodes = st.sampled_from(NODES)
uuids = st.sampled_from(tuple(VENDOR_OF))


mig_slices = st.none() | st.builds(a_mig_slice, st.just("1g.5gb"), st.integers(0, 3))


def _share(uuid: str, memory: int, cores: int, mig: MigSlice | None, note: str) -> DeviceShare:
    return replace(a_share(uuid, memory, cores, vendor=VENDOR_OF[uuid], mig=mig), note=note)


shares = st.builds(_share, uuids, st.integers(0, 3000), st.integers(0, 50), mig_slices, st.sampled_from(("", "", "a", "b")))
containers = st.builds(
    lambda found, name, kind: a_container(*found, name=name, kind=kind),
    st.lists(shares, max_size=3, unique_by=lambda each: each.uuid),
    st.sampled_from(("c0", "c1", "c2")),
    st.sampled_from(ContainerKind),
)
reservations = st.builds(
    lambda at, found, pod, node: a_reservation(f"r{at}", *found, pod=f"u{pod}", namespace=f"ns{pod % 2}", node=node),
    st.integers(0, 6),
    st.lists(containers, min_size=1, max_size=3),
    st.integers(0, 4),
    nodes,
)


def _registered(vendor: str, places: set[int], health: Health, uid: int) -> Event:
    devices = [a_device(UUIDS[vendor][i], vendor=vendor, health=health) for i in places if i < len(UUIDS[vendor])]
    return a_node_registered(*devices, vendor=vendor, node_uid=f"uid-{uid}")


healths = st.sampled_from(Health)
on_node: st.SearchStrategy[Written] = st.tuples(
    st.builds(_registered, st.sampled_from(tuple(UUIDS)), st.sets(st.integers(0, 2)), healths, st.integers(1, 2))
    | st.builds(lambda d, was, now: DeviceHealthChanged(device=d, was=was, now=now, reason="xid"), uuids, healths, healths)
    | st.builds(lambda d: DeviceCordoned(device=d, actor="op"), uuids)
    | st.builds(lambda d: DeviceUncordoned(device=d, actor="op"), uuids)
    | st.sampled_from((NodeLost(), NodeBack(), NodeRemoved(), NodeRemoved(node_uid="uid-1")))
    | st.sampled_from(
        (
            Unknown("hami.future", 1),
            Undecodable("hami.node.registered", "bad"),
            Undecodable("hami.allocation.reserved", "bad"),
            Undecodable("hami.device.health_changed", "bad"),
        )
    ),
    nodes,
)

FURTHER: Sequence[Callable[[Reservation], Event]] = (
    a_bound,
    a_bound,
    lambda one: a_prepared(one, "c0"),
    lambda one: a_prepared(one, "c1"),
    a_shrunk,
    a_released,
    a_lapsed,
    a_failed,
    lambda one: MigInstanceCreated(device="GPU-0", instance=a_mig_slice("1g.5gb", 1, 1, "MIG-x"), reservation=one.id),
)


def _story(steps: Sequence[Written | Reservation | tuple[int, int]]) -> tuple[Record, ...]:
    """A pair of numbers is a further event of an earlier reservation: mostly along the edges, sometimes not."""
    known: list[Reservation] = []
    written: list[Written] = []
    for step in steps:
        if isinstance(step, Reservation):
            known.append(step)
            written.append((a_reserved(step), step.node))
        elif isinstance(step[0], int):
            which, what = step
            if known:
                one = known[which % len(known)]
                written.append((FURTHER[what](one), one.node))
        else:
            written.append(step)
    return records_of(written)


further = st.tuples(st.integers(0, 9), st.integers(0, len(FURTHER) - 1))
beginnings = st.sampled_from(
    (
        [],
        [(_registered("NVIDIA", {0, 1, 2}, Health.HEALTHY, 1), "n1")],
        [(_registered("Ascend", {0, 1}, Health.HEALTHY, 1), "n1"), (_registered("NVIDIA", {0, 1}, Health.HEALTHY, 2), "n2")],
    )
)
continued = st.lists(reservations | further | further | on_node, max_size=40)
histories = st.builds(lambda begun, rest: _story([*begun, *rest]), beginnings, continued)
checked = settings(max_examples=80, deadline=None)


def replayed(records: Sequence[Record], onto: ClusterState | None = None) -> ClusterState:
    state = onto or new_cluster()
    for record in records:
        apply(state, record)
    return state


@checked
@given(histories)
def test_usage_is_what_the_live_allocations_hold(history: tuple[Record, ...]) -> None:
    state = new_cluster()
    for record in history:
        apply(state, record)
        expected = dict(_usage_from_scratch(state))
        assert {(node, uuid): held.used for node, by in state.held.items() for uuid, held in by.items()} == expected
        for node in state.nodes.values():
            for each in node.devices:
                at = (node.name, each.device.uuid)
                assert each.used == expected.get(at, DeviceUsage())
                assert sorted(each.mig_in_use, key=str) == sorted(_slices_from_scratch(state, *at), key=str)
                assert sorted(each.notes) == sorted(_notes_from_scratch(state, *at))
        assert state.quota_used == _quota_from_scratch(state)


@checked
@given(histories)
def test_owners_lead_to_live_allocations_only(history: tuple[Record, ...]) -> None:
    state = replayed(history)
    assert all(allocation.live for allocation in state.allocations.values())
    assert set(state.by_owner.values()) <= set(state.allocations)
    assert all(state.allocations[id_].reservation.owner.uid == owner for owner, id_ in state.by_owner.items())
    for allocation in state.allocations.values():
        wanted = {each.name for each in allocation.reservation.containers if each.shares}
        complete = bool(allocation.prepared) and wanted <= allocation.prepared
        assert (allocation.phase is Phase.PREPARED) == (complete and allocation.phase is not Phase.RESERVED)


@checked
@given(histories, st.data())
def test_a_checkpoint_anywhere_and_the_tail_give_what_a_full_replay_gives(
    history: tuple[Record, ...], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    restored = decode_state(encode_state(replayed(history[:cut])))
    full = replayed(history)
    assert facts_of(replayed(history[cut:], onto=restored)) == facts_of(full)
    assert digest_of(restored) == digest_of(full)
    assert encode_state(restored) == encode_state(full)


@checked
@given(histories, st.data())
def test_delivering_again_changes_nothing(history: tuple[Record, ...], data: st.DataObject) -> None:
    state = replayed(history)
    before = facts_of(decode_state(encode_state(state)))
    first = data.draw(st.integers(0, len(history)))
    replayed(history[first:], onto=state)
    assert facts_of(state) == before


@checked
@given(histories, st.data())
def test_appending_again_at_new_places_changes_nothing_but_the_place(history: tuple[Record, ...], data: st.DataObject) -> None:
    state = replayed(history)
    before = digest_of(state)
    repeated = again(history[data.draw(st.integers(0, len(history))) :], after=len(history))
    replayed([_without_versions(each) for each in repeated], onto=state)
    assert digest_of(state) == before
    assert state.position.g == len(history) + len(repeated)


@checked
@given(histories, st.data())
def test_leaving_out_any_record_but_the_last_is_an_error(history: tuple[Record, ...], data: st.DataObject) -> None:
    if len(history) < 2:
        return
    gone = data.draw(st.integers(0, len(history) - 2))
    state = replayed(history[:gone])
    before = facts_of(decode_state(encode_state(state)))
    with pytest.raises(LogGap):
        replayed(history[gone + 1 :], onto=state)
    assert facts_of(state) == before


@checked
@given(histories)
def test_touched_nodes_are_exactly_what_a_follower_needs(history: tuple[Record, ...]) -> None:
    state, mirror = new_cluster(), dict[str, object]()
    for record in history:
        apply(state, record)
        for name in state.drain_touched():
            if name in state.nodes:
                mirror[name] = state.nodes[name]
            else:
                mirror.pop(name, None)
        assert mirror == state.nodes


@checked
@given(histories, st.sets(st.integers(0, 40)))
def test_it_does_not_matter_when_or_how_often_the_nodes_are_read(history: tuple[Record, ...], reads: set[int]) -> None:
    """Devices catch up with what is held of them when somebody reads: each reader must see what a constant reader sees."""
    constant, seldom = new_cluster(), new_cluster()
    for at, record in enumerate(history):
        apply(constant, record)
        apply(seldom, record)
        seen = dict(constant.nodes)
        if at in reads:
            assert snapshot(seldom).nodes == seen
    assert encode_state(seldom) == encode_state(constant)
    assert seldom.drain_touched() == constant.drain_touched()


@checked
@given(histories)
def test_only_a_decision_clears_a_fault(history: tuple[Record, ...]) -> None:
    state = new_cluster()
    faulty: dict[tuple[str, str], Health] = {}
    for record in history:
        apply(state, record)
        event = record.event
        if isinstance(event, DeviceHealthChanged):
            faulty.pop((record.envelope.node, event.device), None)
        found = {(n.name, d.device.uuid): d.health for n in state.nodes.values() for d in n.devices}
        faulty.update({at: now for at, now in found.items() if now in {Health.SUSPECT, Health.UNHEALTHY}})
        assert all(found.get(at, Health.UNHEALTHY) in {Health.SUSPECT, Health.UNHEALTHY} for at in faulty)
        assert found.keys().isdisjoint({(name, uuid) for name, marks in state.marks.items() for uuid in marks})


def _usage_from_scratch(state: ClusterState) -> Iterator[tuple[tuple[str, str], DeviceUsage]]:
    sums: dict[tuple[str, str], DeviceUsage] = {}
    for allocation in state.allocations.values():
        for uuid, used in usage_of(allocation.reservation.containers, init_done=allocation.init_done).items():
            at = (allocation.reservation.node, uuid)
            sums[at] = sums.get(at, DeviceUsage()).plus(used)
    yield from sums.items()


def _slices_from_scratch(state: ClusterState, node: str, uuid: str) -> Iterator[MigSlice]:
    for allocation in state.allocations.values():
        if allocation.reservation.node == node:
            mine: dict[int, MigSlice] = {}
            for container in allocation.reservation.containers:
                if not (allocation.init_done and container.kind is ContainerKind.INIT):
                    mine.update({s.mig.placement.start: s.mig for s in container.shares if s.uuid == uuid and s.mig})
            yield from mine.values()


def _notes_from_scratch(state: ClusterState, node: str, uuid: str) -> Iterator[str]:
    for each in state.allocations.values():
        if each.reservation.node == node:
            running = [c for c in each.reservation.containers if not (each.init_done and c.kind is ContainerKind.INIT)]
            said = [share.note for container in running for share in container.shares if share.uuid == uuid and share.note]
            yield from said[-1:]


def _quota_from_scratch(state: ClusterState) -> dict[str, dict[str, tuple[int, int]]]:
    sums: dict[str, dict[str, tuple[int, int]]] = {}
    for allocation in state.allocations.values():
        used_here = usage_of(allocation.reservation.containers, init_done=allocation.init_done)
        by = sums.setdefault(allocation.reservation.owner.namespace, {})
        for uuid, used in used_here.items():
            memory, cores = by.get(VENDOR_OF[uuid], (0, 0))
            by[VENDOR_OF[uuid]] = (memory + used.memory, cores + used.cores)
    clean = {ns: {vendor: sum_ for vendor, sum_ in by.items() if sum_ != (0, 0)} for ns, by in sums.items()}
    return {ns: by for ns, by in clean.items() if by}


def _without_versions(record: Record) -> Record:
    """Versions are the store's: an entry written again moves them; here it must be shown that nothing else moves."""
    return Record(position=record.position, envelope=record.envelope, event=record.event)
