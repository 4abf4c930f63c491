"""Nodes with cards of several vendors: the planes and the exact way agree, and what is given out is there."""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.domain.allocation import usage_of
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import PodRequest
from hami.scheduler.decide.place import Placement, Unschedulable, place, place_exactly
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.vendors.vendor import Size
from tests.support.clusters import policies
from tests.support.vendor_clusters import BY_WORD, VENDORS, WORDS, nodes, requests, snapshots

NOTED = ("NVIDIA", *(each.word for each in VENDORS if each.note is not None))
COMMON = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def planes_of(snapshot: ClusterSnapshot) -> Planes:
    planes = Planes(VENDORS)
    planes.sync(snapshot)
    return planes


def answer(result: Placement | Unschedulable) -> object:
    if isinstance(result, Unschedulable):
        return (result.reasons, result.counts)
    return (result.node, result.score, result.containers)


@COMMON
@given(snapshots(), st.data(), policies())
def test_planes_and_the_exact_way_agree_on_mixed_nodes(
    snapshot: ClusterSnapshot, data: st.DataObject, policy: SchedulingPolicy
) -> None:
    planes = planes_of(snapshot)
    names = [*snapshot.nodes, "ghost"]
    present = tuple(dict.fromkeys(each.device.vendor for node in snapshot.nodes.values() for each in node.devices))
    asked = [data.draw(requests(present)), data.draw(requests(WORDS))]
    for _ in range(2):
        for request in asked:
            fast = place(snapshot, planes, request, names, policy)
            exact = place_exactly(snapshot, VENDORS, request, names, policy)
            assert answer(fast) == answer(exact)
            if isinstance(fast, Placement) and isinstance(exact, Placement):
                assert fast.failed.items() <= exact.failed.items()
        snapshot = msgspec.structs.replace(snapshot, nodes={**snapshot.nodes, "n0": data.draw(nodes("n0"))})
        planes.sync(snapshot, ["n0"])


@COMMON
@given(snapshots(NOTED), requests(NOTED), policies())
def test_planes_and_the_exact_way_agree_where_pods_leave_notes_on_their_cards(
    snapshot: ClusterSnapshot, request: PodRequest, policy: SchedulingPolicy
) -> None:
    names = list(snapshot.nodes)
    fast = place(snapshot, planes_of(snapshot), request, names, policy)
    assert answer(fast) == answer(place_exactly(snapshot, VENDORS, request, names, policy))


@COMMON
@given(snapshots(), st.data(), policies())
def test_every_vendor_gets_what_it_was_asked_for_and_no_more_than_there_is(
    snapshot: ClusterSnapshot, data: st.DataObject, policy: SchedulingPolicy
) -> None:
    present = tuple(dict.fromkeys(each.device.vendor for node in snapshot.nodes.values() for each in node.devices))
    request: PodRequest = data.draw(requests(present))
    result = place(snapshot, planes_of(snapshot), request, list(snapshot.nodes), policy)
    if isinstance(result, Unschedulable):
        return
    by_uuid = {each.device.uuid: each for each in snapshot.nodes[result.node].devices}
    for asked, got in zip(request.containers, result.containers, strict=True):
        for each in asked.requests:
            own = [share for share in got.shares if share.vendor == each.vendor]
            assert len({share.uuid for share in own}) == each.count
            assert all(by_uuid[share.uuid].device.vendor == each.vendor for share in own)
    for uuid, usage in usage_of(result.containers).items():
        state = by_uuid[uuid]
        assert state.schedulable
        assert state.used.slots + usage.slots <= state.device.slots
        assert state.used.memory + usage.memory <= state.device.memory
        if BY_WORD[state.device.vendor].size is not Size.NEURON_CORES:
            assert state.used.cores + usage.cores <= max(state.device.cores, state.used.cores)
