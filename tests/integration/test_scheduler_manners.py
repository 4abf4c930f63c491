"""Manners towards kube-scheduler: few calls, no spinning, nobody woken without a reason."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from hami.events.catalog.allocation import AllocationReserved
from hami.kube.kinds import EVENTS
from hami.sim.kubeapi import ClusterAccess
from hami.sim.kubescheduler import Extender, KubeScheduler
from tests.support.builders import a_device
from tests.support.objects import pod as pod_object
from tests.support.scheduler import Caller, World
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


async def test_kubernetes_events_tell_the_story_once(world: World) -> None:
    await world.add_node("n1")
    pod, big = await world.add_pod("p1"), await world.add_pod("big", limits={"nvidia.com/gpu": "4"})
    async with world.scheduler() as caller:
        for _ in range(3):
            await caller.filter(big, ["n1"])
        await caller.filter(pod, ["n1"])
        await caller.bind(pod, "n1")

        about = {each["metadata"]["uid"] for each in (pod, big)}
        told: list[dict[str, Any]] = []

        async def three() -> bool:
            told[:] = [each for each in await world.kube.list(EVENTS) if each["involvedObject"]["uid"] in about]
            return len(told) >= 3

        await wait_until(three, "the events")
        assert sorted(each["reason"] for each in told) == ["BindingSucceed", "FilteringFailed", "FilteringSucceed"]
        notes = {each["reason"]: each["message"] for each in told}
        assert notes["FilteringFailed"] == "no available node, 1 nodes do not meet"
        assert notes["BindingSucceed"] == "Successfully binding node [n1] to default/p1"
