"""Pods that third-party device plugins serve by HAMi's annotations and lock, and plugins that die at it."""

from pathlib import Path

import anyio
import pytest

from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationPrepared,
    AllocationReleased,
)
from hami.events.catalog.node import NodeRegistered
from hami.events.lease import Held
from hami.kube.kinds import NODES, PODS
from hami.scheduler import texts
from hami.scheduler.decide import door
from hami.scheduler.deviceconfig import read_device_config
from hami.sim.annotation_plugin import AnnotationPlugin, Killed, Step
from hami.vendors import identity
from hami.vendors.registers import listed_by_colon
from hami.vendors.registry import by_word, vendors_of
from tests.support.builders import a_device
from tests.support.objects import node as node_object
from tests.support.plugins_by_annotation import (
    HALF,
    MUTEX,
    a_plugin,
    bound,
    dcu,
    kubelet_says,
    locked,
    notes,
    on_its_node,
    registered,
    unlocked,
    vendor,
)
from tests.support.scheduler import World
from tests.support.waiting import wait_until


async def test_while_one_pod_waits_for_its_plugin_the_next_bind_on_that_node_is_refused(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(bind_wait_s=0.2) as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        second = await world.add_pod("p2", limits=HALF)
        assert (await caller.filter(second, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(second, "n1") == texts.LOCK_BUSY
        await plugin.allocate()
        await world.seen(AllocationPrepared)

        async def binds() -> bool:
            return await caller.bind(second, "n1") == ""

        await wait_until(binds, "the second pod's turn")
        assert await plugin.allocate() == ["DCU-0"]
        await world.seen(AllocationPrepared, 2)


@pytest.mark.parametrize("step", list(Step))
async def test_a_plugin_that_dies_in_allocate_leaves_nothing_behind(world: World, step: Step) -> None:
    """The kubelet's call fails with it, so the kubelet fails the pod; that frees the devices and the lock."""
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        plugin.kill_after = step
        with pytest.raises(Killed):
            await plugin.allocate()
        assert MUTEX in (await notes(world, "n1"))
        await kubelet_says(world, "p1", "Failed")
        await world.seen(AllocationReleased)
        await unlocked(world)
        await plugin.register()
        await bound(world, caller, "p2")
        assert await plugin.allocate()
        await world.seen(AllocationPrepared)
    assert len(await world.events(AllocationReleased)) == 1


async def test_a_plugin_that_answers_and_dies_before_the_release_is_not_waited_for(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        plugin.kill_after = Step.SAID
        with pytest.raises(Killed):
            await plugin.allocate()
        await kubelet_says(world, "p1", "Running")
        await world.seen(AllocationPrepared)
        await unlocked(world)


async def test_the_pods_own_word_does_not_free_the_lock(world: World) -> None:
    """Whoever may write a pod may write its bind-phase: the next pod must not be bound on that."""
    plugin = await a_plugin(world)
    async with world.scheduler(bind_wait_s=0.2) as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        forged = {identity.BIND_PHASE: "success", "hami.io/dcu-devices-to-allocate": ";"}
        await world.kube.patch_pod("default", "p1", {"metadata": {"annotations": forged}})
        second = await world.add_pod("p2", limits=HALF)
        assert (await caller.filter(second, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(second, "n1") == texts.LOCK_BUSY
        assert (await notes(world, "n1"))[MUTEX].endswith(",default,p1")
        assert not await world.events(AllocationPrepared)


async def test_a_plugin_that_refuses_fails_the_allocation(world: World) -> None:
    plugin = await a_plugin(world, "n1", dcu(0))
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        await plugin.refuse()
        [failed] = await world.seen(AllocationFailed)
        assert failed.reason == door.PLUGIN_FAILED
        await world.settled(caller)
        await bound(world, caller, "p2")
        await plugin.allocate()
        await world.seen(AllocationPrepared)
    assert len(await world.events(AllocationFailed)) == 1
    assert len(await world.events(AllocationBound)) == 2


async def test_a_pod_that_is_never_served_fails_and_the_lock_is_freed(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="a", reservation_ttl_s=4.0, compat_serve_s=0.1) as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        [failed] = await world.seen(AllocationFailed)
        assert failed.reason == door.TOO_LATE
        await unlocked(world)
        assert (await notes(world, "p1", PODS))[identity.BIND_PHASE] == "failed"
    async with world.scheduler(id="b") as caller:
        await bound(world, caller, "p2")
        assert await plugin.allocate()
        await world.seen(AllocationPrepared)
    assert len(await world.events(AllocationFailed)) == 1


async def test_a_pod_deleted_before_it_was_served_frees_the_lock(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
        await world.kube.delete_pod("default", "p1", grace=0)
        await world.seen(AllocationReleased)
        await unlocked(world)


async def test_another_scheduler_carries_on_where_one_died(world: World) -> None:
    """The binder's lock in the store runs out; the log and the node's annotation still say who is waiting."""
    plugin = await a_plugin(world)
    async with world.scheduler(id="a") as a:
        await plugin.register()
        await registered(world, a)
        await bound(world, a, "p1")
    await world.store.locks.evict("n1", (await world.pod_of("p1"))["metadata"]["uid"])
    async with world.scheduler(id="b") as b:
        second = await world.add_pod("p2", limits=HALF)
        assert (await b.filter(second, ["n1"]))["NodeNames"] == ["n1"]
        assert await b.bind(second, "n1") == texts.NODE_LOCKED
        await plugin.allocate()
        await world.seen(AllocationPrepared)
        await world.settled(b)
        assert await b.bind(second, "n1") == ""
        assert await plugin.allocate()
        await world.seen(AllocationPrepared, 2)


async def test_a_release_that_nobody_saw_is_found_at_start(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="a") as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
    await plugin.allocate()
    async with world.scheduler(id="b"):
        [prepared] = await world.seen(AllocationPrepared)
        assert prepared.owner_uid == (await world.pod_of("p1"))["metadata"]["uid"]


async def test_a_lock_left_by_a_dead_binder_is_taken_away(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="a") as caller:
        await plugin.register()
        await registered(world, caller)
        await bound(world, caller, "p1")
    async with world.scheduler(id="b"):
        await kubelet_says(world, "p1", "Running")
        await world.seen(AllocationPrepared)
        await unlocked(world)


async def test_a_binder_that_died_before_the_pod_was_bound_stands_in_nobodys_way(world: World) -> None:
    """Its lock annotation is there, and its pod is no further than reserved."""
    plugin = await a_plugin(world)
    async with world.scheduler(id="a", reservation_ttl_s=4.0) as caller:
        await plugin.register()
        await registered(world, caller)
        left = await world.add_pod("left", limits=HALF)
        assert (await caller.filter(left, ["n1"]))["NodeNames"] == ["n1"]
        text = {MUTEX: "2001-01-01T00:00:00Z,default,left"}
        await world.kube.patch_node("n1", {"metadata": {"annotations": text}})
        await bound(world, caller, "p1")
        assert (await notes(world, "n1"))[MUTEX].endswith(",default,p1")
        await plugin.allocate()
        await world.seen(AllocationPrepared)
        await world.kube.patch_node("n1", {"metadata": {"annotations": text}})
        await world.seen(AllocationLapsed)
        await unlocked(world)


async def test_a_strangers_lock_is_respected_until_its_pod_is_gone(world: World) -> None:
    """HAMi's own scheduler may still run beside ours."""
    plugin = await a_plugin(world)
    await world.add_pod("foreign", limits={"cpu": "1"})
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        text = "2001-01-01T00:00:00Z,default,foreign"
        await world.kube.patch_node("n1", {"metadata": {"annotations": {MUTEX: text}}})
        pod = await world.add_pod("p1", limits=HALF)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == texts.NODE_LOCKED
        assert (await notes(world, "n1"))[MUTEX] == text
        await world.kube.delete_pod("default", "foreign", grace=0)
        assert await caller.bind(pod, "n1") == ""
        assert (await notes(world, "n1"))[MUTEX].endswith(",default,p1")
        assert not isinstance(await world.store.locks.acquire("n1", "other", ttl_ms=1000), Held)


async def test_a_binding_that_the_api_refuses_takes_the_lock_annotation_back(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        pod = await world.add_pod("p1", limits=HALF)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        await world.kube.delete_pod("default", "p1", grace=0)
        await world.add_pod("p1", limits=HALF)
        assert await caller.bind(pod, "n1") != ""
        await unlocked(world)


async def test_many_pods_on_one_node_one_after_the_other(world: World) -> None:
    """Plugin and schedulers in step; nothing is left over, nothing happens twice."""
    plugin = await a_plugin(world, "n1", *[dcu(number) for number in range(8)])
    number = 20
    async with world.scheduler(id="a", bind_wait_s=5.0) as a, world.scheduler(id="b", bind_wait_s=5.0) as b:
        await plugin.register()
        await registered(world, a)
        await world.settled(b)
        pods = [await world.add_pod(f"p{at}", limits=HALF) for at in range(number)]
        for at, pod in enumerate(pods):
            assert (await (a, b)[at % 2].filter(pod, ["n1"]))["NodeNames"] == ["n1"]

        async def bind(at: int) -> None:
            async def binds() -> bool:
                return await (a, b)[at % 2].bind(pods[at], "n1") == ""

            await wait_until(binds, f"p{at} to be bound", timeout=30)

        async def serve() -> None:
            for _ in range(number):
                await locked(world)
                name = (await notes(world, "n1"))[MUTEX].split(",")[2]
                await on_its_node(world, name)
                await plugin.allocate()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            for at in range(number):
                tasks.start_soon(bind, at)
        await world.seen(AllocationPrepared, number)
        await unlocked(world)
    assert len(await world.events(AllocationPrepared)) == number
    assert len(await world.events(AllocationBound)) == number


async def test_capacity_is_an_announcement_too_and_its_lock_names_nobody(world: World) -> None:
    """Cambricon: cards counted up from what the kubelet advertises; its plugin knows no bind-phase, only its lock."""
    await world.kube.create(NODES, node_object("n1"))
    plugin = AnnotationPlugin(world.kube, "n1", vendor("MLU"))
    lock = "cambricon.com/dsmlu.lock"
    amounts = {"cambricon.com/mlu.smlu.vcore": "200", "cambricon.com/mlu.smlu.vmemory": "96", "cambricon.com/vmlu": "20"}
    async with world.scheduler() as caller:
        await plugin.advertise(amounts)
        [event] = await registered(world, caller)
        assert [each.uuid for each in event.devices] == ["n1-cambricon-mlu-0", "n1-cambricon-mlu-1"]
        wants = {"cambricon.com/vmlu": "1", "cambricon.com/mlu.smlu.vmemory": "4", "cambricon.com/mlu.smlu.vcore": "10"}
        await bound(world, caller, "p1", wants)
        assert "," not in (await notes(world, "n1"))[lock]
        assert (await notes(world, "p1", PODS))["CAMBRICON_DSMLU_PROFILE"] == "1_10_4"
        await plugin.release_lock()
        await world.seen(AllocationPrepared)
        await bound(world, caller, "p2", wants)
        await kubelet_says(world, "p2", "Running")
        await world.seen(AllocationPrepared, 2)
        await unlocked(world, key=lock)
        await plugin.advertise({**amounts, "cambricon.com/mlu.smlu.vcore": "0", "cambricon.com/vmlu": "0"})
        second = (await registered(world, caller, 2))[1]
        assert second.devices == ()


async def test_a_vendor_without_a_lock_is_served_when_the_kubelet_says_so(world: World) -> None:
    await world.kube.create(NODES, node_object("n1"))
    plugin = AnnotationPlugin(world.kube, "n1", vendor("Mthreads"))
    async with world.scheduler() as caller:
        await plugin.advertise({"mthreads.com/vgpu": "20", "mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"})
        await registered(world, caller)
        for name in ("p1", "p2"):
            await bound(
                world, caller, name, {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "8", "mthreads.com/sgpu-core": "2"}
            )
        await kubelet_says(world, "p2", "Running")
        [prepared] = await world.seen(AllocationPrepared)
        assert prepared.owner_uid == (await world.pod_of("p2"))["metadata"]["uid"]


async def test_an_announcement_in_a_form_of_its_own(world: World) -> None:
    """Enflame's: neither a list nor colons, and no lock."""
    page = vendor("Enflame")
    await world.kube.create(NODES, node_object("n1"))
    plugin = AnnotationPlugin(world.kube, "n1", page)
    async with world.scheduler() as caller:
        await plugin.register('{"devices":[{"index":"0","minor":"0","capacity":6}],"profiles":{"1g.6gb":"0"}}')
        [event] = await registered(world, caller)
        assert [each.vendor for each in event.devices] == ["Enflame"]
        await bound(world, caller, "p1", {"enflame.com/drs-gcu": "1"})
        await kubelet_says(world, "p1", "Running")
        await world.seen(AllocationPrepared)


LOCKING = {
    "NVIDIA": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"},
    "AMD": {"amd.com/gpu": "1", "amd.com/gpumem": "1000", "amd.com/gpucores": "10"},
    "Biren": {"birentech.com/gpu": "1"},
    "Vastai": {"vastaitech.com/va": "1"},
    "XPU": {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "24576"},
}


@pytest.mark.parametrize("word", list(LOCKING))
async def test_every_vendor_that_locks_is_served(world: World, word: str) -> None:
    page = vendor(word)
    count = page.resources.count
    amount = {"capacity": {count: "4"}, "allocatable": {count: "4"}}
    await world.kube.create(NODES, node_object("n1", **amount))
    plugin = AnnotationPlugin(world.kube, "n1", page, [a_device(f"{word}-0", vendor=word, model=word, memory=98304)])
    async with world.scheduler() as caller:
        await plugin.register()
        [event] = await registered(world, caller)
        assert [each.vendor for each in event.devices] == [word]
        await bound(world, caller, "p1", LOCKING[word])
        assert await plugin.allocate() == [f"{word}-0"]
        await world.seen(AllocationPrepared)
        if page.keys.handshake:
            await wait_until(plugin.asked, "the scheduler's answer to the handshake")


CHIPS = """
hygon: {resourceCountName: hygon.com/dcunum, resourceMemoryName: hygon.com/dcumem, resourceCoreName: hygon.com/dcucores}
iluvatars:
  - {commonWord: MR-V100, resourceCountName: iluvatar.ai/MR-V100-vgpu, resourceMemoryName: iluvatar.ai/MR-V100.vMem}
vnpus:
  configs:
    - {commonWord: Ascend910B3, chipName: 910B3, resourceName: huawei.com/Ascend910B3,
       resourceMemoryName: huawei.com/Ascend910B3-memory, memoryAllocatable: 65536, memoryCapacity: 65536, aiCore: 20, aiCPU: 7,
       templates: [{name: vir05_1c_16g, memory: 16384, aiCore: 5, aiCPU: 1}]}
"""


@pytest.mark.parametrize(
    ("word", "limits"),
    [
        ("MR-V100", {"iluvatar.ai/MR-V100-vgpu": "1", "iluvatar.ai/MR-V100.vMem": "4"}),
        ("Ascend910B3", {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"}),
    ],
)
async def test_chips_of_the_device_configuration_are_served(
    world: World, tmp_path: Path, word: str, limits: dict[str, str]
) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text(CHIPS)
    page = by_word(vendors_of(read_device_config(str(path))), word)
    assert page is not None
    await world.kube.create(NODES, node_object("n1"))
    card = a_device(f"{word}-0", vendor=word, model=word, memory=65536)
    plugin = AnnotationPlugin(world.kube, "n1", page, [card], colon=page.discover is listed_by_colon)
    async with world.scheduler(device_config=str(path)) as caller:
        await plugin.register()
        await registered(world, caller)
        await wait_until(plugin.asked, "the scheduler's answer to the handshake")
        await bound(world, caller, "p1", limits)
        assert await plugin.allocate() == [f"{word}-0"]
        await world.seen(AllocationPrepared)
        await unlocked(world)


async def test_the_next_replica_takes_the_door_over(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="b") as b:
        async with world.scheduler(id="a") as a:
            await plugin.register()
            await registered(world, a)
            await bound(world, a, "p1")
        await plugin.allocate()
        await world.seen(AllocationPrepared)
        await world.settled(b)
        await bound(world, b, "p2")
        await plugin.allocate()
        await world.seen(AllocationPrepared, 2)
    assert len(await world.events(NodeRegistered)) == 1
