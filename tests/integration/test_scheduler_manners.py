"""Manners towards kube-scheduler: few calls, no spinning, nobody woken without a reason."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from hami.events.catalog.allocation import AllocationFailed, AllocationReserved
from hami.events.catalog.device import DeviceCordoned
from hami.events.catalog.node import NodeRegistered
from hami.kube.kinds import EVENTS, NODES
from hami.scheduler import texts
from hami.sim.apiserver.faults import Fault
from hami.sim.kubeapi import ClusterAccess
from hami.sim.kubescheduler import Extender, KubeScheduler
from tests.support.builders import a_device
from tests.support.objects import node
from tests.support.objects import pod as pod_object
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until


@asynccontextmanager
async def _scheduling(world: World, caller: Caller) -> AsyncIterator[KubeScheduler]:
    async with anyio.create_task_group() as tasks:
        made = KubeScheduler(ClusterAccess(world.kube), Extender(url=caller.url), name="hami-scheduler")
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


def _pod(name: str, **limits: str) -> dict[str, object]:
    made = pod_object(name, namespace="default", **({"limits": limits} if limits else {}))
    made["spec"]["schedulerName"] = "hami-scheduler"
    return made


async def _comparisons(caller: Caller, more: int) -> None:
    """Let every loop come round a few times."""
    until = await caller.metric("hami_comparisons_total") + more

    async def done() -> bool:
        return await caller.metric("hami_comparisons_total") >= until

    await wait_until(done, "the loops to come round")


async def test_a_pod_that_fits_nowhere_is_filtered_at_most_three_times_then_silence(world: World) -> None:
    for name in ("n1", "n2"):
        await world.add_node(name, a_device(f"GPU-{name}", memory=10))
    async with world.scheduler() as caller, _scheduling(world, caller) as kube_scheduler:
        await world.kube.create_pod(_pod("big"))
        await wait_until(lambda: kube_scheduler.calls["filter"], "the first filter call")
        await _comparisons(caller, 4)
        assert kube_scheduler.calls["filter"] <= 3
        condition = (await world.pod_of("big"))["status"]["conditions"][0]
        assert condition["message"] == "0/2 nodes are available: 2 1/1 CardInsufficientMemory."


async def test_pods_flow_from_pending_to_bound_and_a_freed_card_goes_to_the_one_that_waits(world: World) -> None:
    whole = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}
    await world.add_node("n1")
    async with world.scheduler() as caller, _scheduling(world, caller) as kube_scheduler:
        await world.kube.create_pod(_pod("first", **whole))
        await wait_until(partial(world.node_of, "first"), "the first pod bound")
        await world.kube.create_pod(_pod("second", **whole))
        await wait_until(lambda: kube_scheduler.calls["filter"] >= 2, "the second pod tried")
        assert "nodeName" not in (await world.pod_of("second"))["spec"]
        await world.kube.delete_pod("default", "first", grace=0)
        await world.seen(AllocationReserved, 1)
        # The deletion wakes the pod; should its filter come before the release is in the log, the next change wakes it again.
        await _comparisons(caller, 1)
        await world.kube.create_pod(_pod("nudge", **{"nvidia.com/gpu": "9"}))
        await wait_until(partial(world.node_of, "second"), "the second pod bound", timeout=15)


def _hit(fault: Fault) -> int:
    return fault.hits


Told = list[tuple[str, str, str]]


async def _told(world: World, pod: Obj) -> Told:
    """Type, reason and sentence of every Event about a pod."""
    uid, found = pod["metadata"]["uid"], await world.kube.list(EVENTS)
    return sorted((each["type"], each["reason"], each["message"]) for each in found if each["involvedObject"]["uid"] == uid)


async def _tells(world: World, pod: Obj, wanted: Callable[[Told], bool]) -> Told:
    """Wait for the Events about a pod to be what is wanted of them."""
    told: Told = []

    async def there() -> bool:
        told[:] = await _told(world, pod)
        return wanted(told)

    await wait_until(there, "the Events")
    return told


async def test_kubernetes_events_tell_the_story_once(world: World) -> None:
    """HAMi's reasons and sentences, on the pod, from the scheduler's name; the same sentence is said once."""
    for name, memory in (("n1", 40_000), ("n2", 40_000), ("n3", 10)):
        await world.add_node(name, a_device(f"GPU-{name}", memory=memory))
    names = ["n1", "n2", "n3", "absent"]
    pod, big = (
        await world.add_pod("p1"),
        await world.add_pod("big", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "50000"}),
    )
    refused = [
        ("Warning", "FilteringFailed", "3 nodes CardInsufficientMemory(n1,n2,n3)"),
        ("Warning", "FilteringFailed", "no available node, 4 nodes do not meet"),
    ]
    placed = [
        ("Normal", "BindingSucceed", "Successfully binding node [n1] to default/p1"),
        ("Normal", "FilteringSucceed", "find fit node(n1), 2 nodes not fit, 2 nodes fit(n2:0.00,n1:0.00)"),
    ]
    async with world.scheduler() as caller:
        for _ in range(3):
            await caller.filter(big, names)
        assert (await caller.filter(pod, names))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""
        await _tells(world, big, lambda told: told == refused)
        await _tells(world, pod, lambda told: told == placed)
        components = {
            each["reportingComponent"]
            for each in await world.kube.list(EVENTS)
            if each["involvedObject"]["name"] in {"p1", "big"}
        }
        assert components == {"hami-scheduler"}
        assert await caller.bind(big, "n1") == texts.NO_RESERVATION
        failed = ("Warning", "BindingFailed", texts.NO_RESERVATION)
        await _tells(world, big, lambda told: failed in told)
        await world.write(DeviceCordoned(device="GPU-n2", actor="kim"), node_name="n2", subject="GPU-n2")
        await world.settled(caller)
        await caller.filter(big, names)
        changed = [
            ("Warning", "FilteringFailed", "1 nodes CardCordoned(n2)"),
            ("Warning", "FilteringFailed", "2 nodes CardInsufficientMemory(n1,n3)"),
        ]
        await _tells(world, big, lambda told: told == sorted([*refused, failed, *changed]))


async def test_an_event_names_as_many_nodes_as_it_can_hold(world: World) -> None:
    names = [f"node-{number:03d}-{'x' * 40}" for number in range(60)]
    for name in names:
        await world.write(NodeRegistered(vendor="NVIDIA", devices=(a_device(f"GPU-{name}", memory=2000),)), node_name=name)
        await world.store.leases.keep(name, "agent", ttl_ms=600_000)
        await world.kube.create(NODES, node(name))
    big, small = await world.add_pod("big", limits={"nvidia.com/gpu": "2"}), await world.add_pod("small")
    async with world.scheduler() as caller:
        await caller.filter(big, names)
        await caller.filter(small, names)
        await _tells(
            world, big, lambda told: told == [("Warning", "FilteringFailed", "no available node, 60 nodes do not meet")]
        )
        [(_, _, note)] = await _tells(world, small, bool)
        assert note.startswith(f"find fit node({names[0]}), 0 nodes not fit, 60 nodes fit(...,{names[9]}:0.00,")
        assert note.endswith(f"{names[0]}:0.00)")
        huge = await world.add_pod("huge", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})
        await caller.filter(huge, names)
        note = (await _tells(world, huge, lambda told: len(told) == 2))[0][2]
        assert note.startswith(f"60 nodes CardInsufficientMemory({names[0]},{names[1]},")
        assert note.endswith(" more)")
        assert len(note) <= 1024


@pytest.mark.simulated
async def test_a_409_for_the_wanted_node_is_a_success_and_for_another_a_failure(world: World) -> None:
    """Somebody else's binding lands while ours is on its way."""
    await world.add_node("n1")
    await world.add_node("n2")
    answers: dict[str, str] = {}

    async def bind(caller: Caller, pod: Obj) -> None:
        answers[pod["metadata"]["name"]] = await caller.bind(pod, "n1")

    async with world.scheduler() as caller:
        for name, where in (("wanted", "n1"), ("elsewhere", "n2")):
            pod = await world.add_pod(name)
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            ours = world.sim.faults.add(Fault(method="POST", path="/pods/.*/binding", delay=0.5, times=1))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bind, caller, pod)
                await wait_until(partial(_hit, ours), "our binding on its way")
                await world.kube.bind(uid=pod["metadata"]["uid"], namespace="default", name=name, node=where)
    assert answers == {"wanted": "", "elsewhere": texts.BOUND_ELSEWHERE}
    assert [each.owner_uid for each in await world.events(AllocationFailed)] == [pod["metadata"]["uid"]]
    assert [await world.node_of(name) for name in answers] == ["n1", "n2"]


@pytest.mark.simulated
@pytest.mark.parametrize("mark", ["label", "spec"])
async def test_members_of_a_pod_group_bound_at_once_on_one_node_all_get_there(world: World, mark: str) -> None:
    """HAMi binds one pod of a node at a time and has the others poll; here each waits its turn, as every pod does."""
    await world.add_node("n1")
    pods = []
    for number in range(8):
        made = pod_object(f"p{number}", namespace="default")
        if mark == "label":
            made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
        else:
            made["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        pods.append(await world.kube.create_pod(made))
    slow = Fault(method="POST", path="/pods/.*/binding", delay=0.05)
    answers: list[str] = []
    async with world.scheduler(bind_wait_s=10.0) as caller:
        for pod in pods:
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        world.sim.faults.add(slow)

        async def bind(pod: Obj) -> None:
            answers.append(await caller.bind(pod, "n1"))

        async with anyio.create_task_group() as tasks:
            for pod in pods:
                tasks.start_soon(bind, pod)
        assert answers == [""] * len(pods)
        assert await caller.metric("hami_lock_wait_seconds_count") == len(pods)
    assert {await world.node_of(f"p{number}") for number in range(8)} == {"n1"}
