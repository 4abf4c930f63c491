"""What happens in Kubernetes reaches the log: pods end, nodes go, quotas and cordons change, and the log is made true again."""

import pytest

from hami.domain.cluster import NamespaceQuota, QuotaLimit
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.device import DeviceCordoned, DeviceUncordoned
from hami.events.catalog.governance import QuotaChanged
from hami.events.catalog.journal import InputRejected
from hami.events.catalog.node import NodeRemoved
from hami.kube.kinds import NODES, QUOTAS
from hami.sim.apiserver.faults import Fault
from tests.integration.test_scheduler import WHOLE
from tests.support.builders import a_device
from tests.support.objects import pod as pod_object
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until


async def _placed(caller: Caller, pod: Obj, name: str = "n1") -> None:
    assert (await caller.filter(pod, [name]))["NodeNames"] == [name]
    assert await caller.bind(pod, name) == ""


async def test_a_deleted_pod_gives_its_devices_back_once(world: World) -> None:
    await world.add_node("n1")
    pod, other = await world.add_pod("p1", limits=WHOLE), await world.add_pod("p2", limits=WHOLE)
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        await _placed(a, pod)
        await world.kube.delete_pod("default", "p1", grace=0)
        [released] = await world.seen(AllocationReleased)
        assert released.reason == "pod_deleted"
        await world.settled(b)
        await _placed(b, other)
    assert len(await world.events(AllocationReleased)) == 1


async def test_a_finished_pod_gives_its_devices_back(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await _placed(caller, pod)
        await world.kube.patch_pod("default", "p1", {"status": {"phase": "Succeeded"}}, subresource="status")
        [released] = await world.seen(AllocationReleased)
        assert released.reason == "pod_succeeded"


async def test_a_terminating_pod_keeps_its_devices_until_it_is_gone(world: World) -> None:
    await world.add_node("n1")
    pod, other = await world.add_pod("p1", limits=WHOLE), await world.add_pod("p2", limits=WHOLE)
    async with world.scheduler() as caller:
        await _placed(caller, pod)
        await world.kube.delete_pod("default", "p1", grace=30)
        assert not (await caller.filter(other, ["n1"]))["NodeNames"]
        await world.kube.delete_pod("default", "p1", grace=0)
        await world.seen(AllocationReleased)


async def test_a_pod_that_went_while_no_scheduler_ran_is_found_absent(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await _placed(caller, pod)
    await world.kube.delete_pod("default", "p1", grace=0)
    async with world.scheduler():
        [released] = await world.seen(AllocationReleased)
    assert released.reason == "pod_absent"


async def test_when_init_containers_have_ended_only_the_steady_state_counts(world: World) -> None:
    await world.add_node("n1")
    made = pod_object("p1", namespace="default")
    big = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "40000"}}
    made["spec"]["initContainers"] = [{"name": "init", "image": "i", "resources": big}]
    pod = await world.kube.create_pod(made)
    other = await world.add_pod("p2", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "30000"})
    async with world.scheduler() as caller:
        await _placed(caller, pod)
        assert not (await caller.filter(other, ["n1"]))["NodeNames"]
        ended = {"name": "init", "ready": True, "state": {"terminated": {"exitCode": 0}}}
        await world.kube.patch_pod("default", "p1", {"status": {"initContainerStatuses": [ended]}}, subresource="status")
        await world.seen(AllocationShrunk)
        await world.settled(caller)
        await _placed(caller, other)


async def test_a_removed_node_takes_its_devices_along(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await world.kube.delete(NODES, "", "n1")
        await world.seen(NodeRemoved)
        await world.settled(caller)
        found = await caller.filter(pod, ["n1", "n2"])
        assert found["NodeNames"] == ["n2"]
        assert found["FailedNodes"] == {"n1": "node unregistered"}


async def test_a_node_removed_while_no_scheduler_ran_is_noticed_at_start(world: World) -> None:
    await world.add_node("n1")
    await world.kube.delete(NODES, "", "n1")
    async with world.scheduler():
        await world.seen(NodeRemoved)


async def test_the_cordon_annotation_moves_cordons_and_only_when_it_changes(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await world.kube.patch_node("n1", {"metadata": {"annotations": {"hami.io/device-cordon": "GPU-n1, "}}})
        [cordoned] = await world.seen(DeviceCordoned)
        assert (cordoned.device, cordoned.actor) == ("GPU-n1", "annotation")
        await world.settled(caller)
        assert (await caller.filter(pod, ["n1"]))["FailedNodes"] == {"n1": "1/1 CardCordoned"}
        await world.kube.patch_node("n1", {"metadata": {"labels": {"other": "change"}}})
        await world.kube.patch_node("n1", {"metadata": {"annotations": {"hami.io/device-cordon": None}}})
        await world.seen(DeviceUncordoned)
        await world.settled(caller)
        await _placed(caller, pod)
    assert len(await world.events(DeviceCordoned)) == 1


async def test_a_quota_that_kubernetes_does_not_enforce_is_enforced_here(world: World) -> None:
    await world.add_node("n1")
    first, second = await world.add_pod("p1"), await world.add_pod("p2")
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "1500"}}}
    await world.kube.create(QUOTAS, quota)
    async with world.scheduler() as caller:
        [changed] = await world.seen(QuotaChanged)
        assert changed.quota == NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 1500, "q"),))
        await world.settled(caller)
        await _placed(caller, first)
        assert (await caller.filter(second, ["n1"]))["FailedNodes"] == {"n1": "1/1 ResourceQuotaNotFit"}
        patched = {"spec": {"hard": {"limits.nvidia.com/gpumem": "2k"}}}
        await world.kube.patch(QUOTAS, "default", "q", patched)
        await world.seen(QuotaChanged, 2)
        await world.settled(caller)
        await _placed(caller, second)
        await world.kube.delete(QUOTAS, "default", "q")
        assert (await world.seen(QuotaChanged, 3))[2].quota == NamespaceQuota()


async def test_a_quota_that_cannot_be_read_is_named_and_costs_nobody_else(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    hard = {"limits.nvidia.com/gpumem": "1500m", "limits.nvidia.com/gpucores": "50"}
    await world.kube.create(QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}})
    async with world.scheduler() as caller:
        [rejected] = await world.seen(InputRejected)
        assert rejected.field == 'spec.hard["limits.nvidia.com/gpumem"]'
        [changed] = await world.seen(QuotaChanged)
        assert [each.resource for each in changed.quota.limits] == ["nvidia.com/gpucores"]
        await world.settled(caller)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]


async def test_a_running_pod_that_the_log_does_not_know_is_adopted_from_its_annotations(world: World) -> None:
    """As after a wiped store, or beside pods that HAMi placed."""
    await world.add_node("n1", a_device("GPU-n1", memory=1000))
    notes = {"hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,900,10:;"}
    pod = await world.add_pod("old", annotations=notes)
    await world.kube.bind(uid=pod["metadata"]["uid"], namespace="default", name="old", node="n1")
    fresh = await world.add_pod("fresh", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "200"})
    async with world.scheduler() as caller:
        [bound] = await world.seen(AllocationBound)
        assert bound.adopted
        await world.settled(caller)
        assert not (await caller.filter(fresh, ["n1"]))["NodeNames"]
    [reserved] = await world.events(AllocationReserved)
    assert reserved.reservation.owner.name == "old"


async def test_a_reserved_pod_that_somebody_else_bound_there_is_adopted_not_lapsed(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler(reservation_ttl_s=0.5) as caller:
        await caller.filter(pod, ["n1"])
        await world.kube.bind(uid=pod["metadata"]["uid"], namespace="default", name="p1", node="n1")
        [bound] = await world.seen(AllocationBound)
        assert bound.adopted


async def test_a_pod_bound_elsewhere_corrects_the_log(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        await world.kube.bind(uid=pod["metadata"]["uid"], namespace="default", name="p1", node="n2")
        [failed] = await world.seen(AllocationFailed)
        assert "n2" in failed.reason


WATCH = "/pods\\?.*watch="


async def _three_comparisons(caller: Caller) -> None:
    until = await caller.metric("hami_comparisons_total") + 3

    async def done() -> bool:
        return await caller.metric("hami_comparisons_total") >= until

    await wait_until(done, "three comparisons")


async def _ended_by_another_replica(world: World) -> None:
    [bound] = await world.events(AllocationBound)
    event = AllocationReleased(
        reservation=bound.reservation, owner_uid=bound.owner_uid, namespace="default", reason="pod_deleted"
    )
    await world.write(event, node_name="n1")


@pytest.mark.simulated
async def test_a_deletion_while_the_watch_was_broken_is_heard_when_it_is_back(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await _placed(caller, pod)
    broken = world.sim.faults.add(Fault(path=WATCH, watch=True, status=500))
    async with world.scheduler():
        await wait_until(lambda: broken.hits, "a watch that failed")
        await world.kube.delete_pod("default", "p1", grace=0)
        world.sim.faults.remove(broken)
        [released] = await world.seen(AllocationReleased)
        assert released.reason == "pod_deleted"


@pytest.mark.simulated
async def test_what_was_seen_last_does_not_bring_a_released_pod_back(world: World) -> None:
    """A replica whose watch lags still has the pod among the running ones when another has written its end."""
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await _placed(caller, pod)
    world.sim.faults.add(Fault(path=WATCH, watch=True, status=500))
    async with world.scheduler() as caller:
        await world.kube.delete_pod("default", "p1", grace=0)
        await _ended_by_another_replica(world)
        await _three_comparisons(caller)
    assert len(await world.events(AllocationReserved)) == 1
    assert len(await world.events(AllocationReleased)) == 1


async def test_a_pod_that_runs_although_the_log_says_it_ended_is_adopted_again(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await _placed(caller, pod)
        await _ended_by_another_replica(world)
        bound = await world.seen(AllocationBound, 2)
    assert bound[1].adopted
