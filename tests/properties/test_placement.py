"""What must hold of every decision, whatever the cluster."""

from random import Random

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.domain.allocation import shares_of, usage_of
from hami.domain.cluster import ClusterSnapshot, Liveness
from hami.domain.device import Health, MigSlice
from hami.domain.request import PodRequest
from hami.scheduler.decide.place import Placement, Unschedulable, place, place_exactly
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from tests.support.clusters import VENDORS, crowded_requests, nodes, policies, requests, snapshots, tight_snapshots

COMMON = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def planes_of(snapshot: ClusterSnapshot) -> Planes:
    planes = Planes(VENDORS)
    planes.sync(snapshot)
    return planes


def answer(result: Placement | Unschedulable) -> object:
    if isinstance(result, Unschedulable):
        return (result.reasons, result.counts)
    return (result.node, result.score, result.containers)


@COMMON
@given(snapshots(), st.lists(requests(), min_size=1, max_size=3), policies(), st.data())
def test_planes_and_the_exact_way_agree_through_changes(
    snapshot: ClusterSnapshot, asked: list[PodRequest], policy: SchedulingPolicy, data: st.DataObject
) -> None:
    planes = planes_of(snapshot)
    names = [*snapshot.nodes, "ghost"]
    for _ in range(3):
        for request in asked:
            fast = place(snapshot, planes, request, names, policy, exclude_owner="pod")
            exact = place_exactly(snapshot, VENDORS, request, names, policy, exclude_owner="pod")
            assert answer(fast) == answer(exact)
            if isinstance(fast, Placement) and isinstance(exact, Placement):
                assert fast.failed.items() <= exact.failed.items()
        changed = data.draw(st.sampled_from(("n0", "n1", "n7")))
        world = dict(snapshot.nodes)
        if data.draw(st.booleans()):
            world[changed] = data.draw(nodes(changed))
        else:
            world.pop(changed, None)
        snapshot = msgspec.structs.replace(snapshot, nodes=world)
        planes.sync(snapshot, [changed])


@COMMON
@given(tight_snapshots(), st.lists(crowded_requests(), min_size=3, max_size=6), policies())
def test_planes_explain_refusals_of_crowded_pods_as_the_exact_way_does(
    snapshot: ClusterSnapshot, asked: list[PodRequest], policy: SchedulingPolicy
) -> None:
    planes = planes_of(snapshot)
    names = list(snapshot.nodes)
    for request in asked:
        fast = place(snapshot, planes, request, names, policy)
        assert answer(fast) == answer(place_exactly(snapshot, VENDORS, request, names, policy))


@COMMON
@given(snapshots(), requests(), policies())
def test_nothing_is_given_out_twice_and_nothing_sick_is_given_out(
    snapshot: ClusterSnapshot, request: PodRequest, policy: SchedulingPolicy
) -> None:
    result = place(snapshot, planes_of(snapshot), request, list(snapshot.nodes), policy)
    if isinstance(result, Unschedulable):
        return
    node = snapshot.nodes[result.node]
    assert node.liveness is Liveness.LIVE
    assert not node.quarantine
    by_uuid = {each.device.uuid: each for each in node.devices}
    for uuid, usage in usage_of(result.containers).items():
        state = by_uuid[uuid]
        assert state.health is Health.HEALTHY
        assert not state.cordoned
        if state.device.mode == "mig":
            continue
        assert state.used.slots + usage.slots <= state.device.slots
        assert state.used.memory + usage.memory <= state.device.memory
        assert state.used.cores + usage.cores <= max(state.device.cores, state.used.cores)
    for asked, got in zip(request.containers, result.containers, strict=True):
        assert got.name == asked.name
        assert len(got.shares) == sum(each.count for each in asked.requests)
        wanted: dict[str, list[MigSlice]] = {}
        for share in got.shares:
            if share.mig is not None:
                wanted.setdefault(share.uuid, list(by_uuid[share.uuid].mig_in_use)).append(share.mig)
        for slices in wanted.values():
            taken = [at for each in slices for at in range(each.placement.start, each.placement.start + each.placement.size)]
            assert len(taken) == len(set(taken))


@COMMON
@given(snapshots(), requests(), policies(), st.randoms(use_true_random=False))
def test_the_order_of_candidates_changes_nothing(
    snapshot: ClusterSnapshot, request: PodRequest, policy: SchedulingPolicy, random: Random
) -> None:
    names = [*snapshot.nodes, "ghost"]
    shuffled = names.copy()
    random.shuffle(shuffled)
    planes = planes_of(snapshot)
    first = place(snapshot, planes, request, names, policy)
    again = place(snapshot, planes_of(snapshot), request, shuffled, policy)
    assert answer(first) == answer(again)


@COMMON
@given(snapshots(), requests(), policies())
def test_asking_twice_gives_the_same_text(snapshot: ClusterSnapshot, request: PodRequest, policy: SchedulingPolicy) -> None:
    planes = planes_of(snapshot)
    names = list(snapshot.nodes)
    assert answer(place(snapshot, planes, request, names, policy)) == answer(place(snapshot, planes, request, names, policy))


@COMMON
@given(snapshots(), requests(), policies())
def test_a_namespace_stays_within_its_quota_save_for_mig_rounding(
    snapshot: ClusterSnapshot, request: PodRequest, policy: SchedulingPolicy
) -> None:
    result = place(snapshot, planes_of(snapshot), request, list(snapshot.nodes), policy)
    quota = snapshot.quotas.get("team")
    if isinstance(result, Unschedulable) or quota is None or any(share.mig for share in shares_of(result.containers)):
        return
    if not request.asks_for_devices:
        return
    memory, cores = snapshot.quota_used.get("team", {}).get("NVIDIA", (0, 0))
    held = usage_of(result.containers).values()
    limits = {each.resource: each.limit for each in quota.limits}
    assert memory + sum(each.memory for each in held) <= limits.get("nvidia.com/gpumem", 10**9)
    assert cores + sum(each.cores for each in held) <= limits.get("nvidia.com/gpucores", 10**9)
