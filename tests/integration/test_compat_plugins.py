"""Third-party device plugins that speak HAMi's annotations: what they announce."""

import pytest

from hami.domain.cluster import Source
from hami.domain.device import Health
from hami.events.catalog.allocation import AllocationFailed, AllocationPrepared
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.node import NodeLost, NodeRegistered
from hami.kube.kinds import NODES, PODS
from hami.scheduler.decide import door
from hami.sim.annotation_plugin import AnnotationPlugin
from hami.vendors import identity
from tests.support.builders import a_device
from tests.support.plugins_by_annotation import (
    HALF,
    MUTEX,
    QUICK,
    a_plugin,
    bound,
    dcu,
    notes,
    registered,
    vendor,
)
from tests.support.scheduler import World
from tests.support.waiting import wait_until


async def test_a_plugin_registers_serves_a_pod_and_releases_the_lock(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        [event] = await registered(world, caller)
        assert (event.source, [each.uuid for each in event.devices]) == (Source.DOOR, ["DCU-0", "DCU-1"])
        await wait_until(plugin.asked, "the scheduler's answer to the handshake")
        await bound(world, caller, "p1")
        assert (await notes(world, "n1"))[MUTEX].split(",")[1:] == ["default", "p1"]
        written = await notes(world, "p1", PODS)
        assert written["hami.io/dcu-devices-to-allocate"] == "DCU-1,DCU,1000,10:;"
        assert written["hami.io/dcu-devices-allocated"] == written["hami.io/dcu-devices-to-allocate"]
        assert (written[identity.BIND_PHASE], written[identity.NODE]) == ("allocating", "n1")
        assert await plugin.allocate() == ["DCU-1"]
        [prepared] = await world.seen(AllocationPrepared)
        assert prepared.container == "main"
        assert MUTEX not in (await notes(world, "n1"))


async def test_two_schedulers_write_each_thing_once(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        await plugin.register()
        await registered(world, a)
        await world.settled(b)
        await wait_until(plugin.asked, "the scheduler's answer to the handshake")
        await bound(world, a, "p1")
        await plugin.allocate()
        await world.seen(AllocationPrepared)
        await world.settled(b)
        await bound(world, b, "p2")
        await plugin.allocate()
        await world.seen(AllocationPrepared, 2)
        await world.settled(a)
        assert MUTEX not in await notes(world, "n1")
    assert len(await world.events(NodeRegistered)) == 1
    assert len(await world.events(AllocationPrepared)) == 2
    assert not await world.events(AllocationFailed)


async def test_what_was_announced_before_is_no_news(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(compat_answer_s=0.2) as caller:
        await plugin.register()
        await registered(world, caller)
        plugin.devices = plugin.devices[::-1]
        await plugin.register()
        await wait_until(plugin.asked, "the scheduler's answer to the handshake")
        plugin.devices = (*plugin.devices, dcu(2))
        await plugin.register()
        second = (await registered(world, caller, 2))[1]
        assert {each.uuid for each in second.devices} == {"DCU-0", "DCU-1", "DCU-2"}
    async with world.scheduler(id="b") as caller:
        await world.settled(caller)
    assert len(await world.events(NodeRegistered)) == 2


async def test_the_health_that_a_plugin_announces_counts_both_ways(world: World) -> None:
    plugin = await a_plugin(world, "n1", dcu(0))
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        plugin.devices = (dcu(0, Health.UNHEALTHY),)
        await plugin.register()
        [sick] = await world.seen(DeviceHealthChanged)
        assert (sick.was, sick.now, sick.actor) == (Health.HEALTHY, Health.UNHEALTHY, door.ACTOR)
        await world.settled(caller)
        pod = await world.add_pod("p1", limits=HALF)
        assert (await caller.filter(pod, ["n1"]))["FailedNodes"] == {"n1": "1/1 CardNotHealth"}
        plugin.devices = (dcu(0),)
        await plugin.register()
        well = (await world.seen(DeviceHealthChanged, 2))[1]
        assert (well.was, well.now) == (Health.UNHEALTHY, Health.HEALTHY)
        await world.settled(caller)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]


async def test_what_the_nodes_own_agent_registers_is_not_touched(world: World) -> None:
    """A node may have an agent of hami for one vendor and a plugin of somebody else for another."""
    await world.add_node("n1", a_device("GPU-own"))
    stranger = AnnotationPlugin(world.kube, "n1", vendor("NVIDIA"), [a_device("GPU-stranger")])
    plugin = AnnotationPlugin(world.kube, "n1", vendor("DCU"), [dcu(0)], colon=True)
    async with world.scheduler(**QUICK) as caller:
        await stranger.register()
        await plugin.register()
        second = (await registered(world, caller, 2))[1]
        assert second.vendor == "DCU"
        await wait_until(plugin.asked, "the scheduler's answer to the DCU handshake")
        assert not await stranger.asked()
        pod = await world.add_pod("p1")
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""
        assert (await notes(world, "p1", PODS))[identity.BIND_PHASE] == "success"
        assert MUTEX not in (await notes(world, "n1"))
    assert len(await world.events(NodeRegistered)) == 2


async def test_a_node_of_plugins_only_needs_no_lease(world: World) -> None:
    plugin = await a_plugin(world)
    await world.add_node("n2", lease=False)
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller, 2)
        await world.lost(1)
        await world.settled(caller)
        assert (await caller.filter(await world.add_pod("p1", limits=HALF), ["n1"]))["NodeNames"] == ["n1"]
    [lost] = [each.envelope.node for each in await world.records() if isinstance(each.event, NodeLost)]
    assert lost == "n2"


async def test_a_vendor_that_is_withdrawn_takes_its_devices_along(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        await registered(world, caller)
        await world.kube.patch_node("n1", {"metadata": {"annotations": {"hami.io/node-dcu-register": None}}})
        second = (await registered(world, caller, 2))[1]
        assert second.devices == ()
        pod = await world.add_pod("p1", limits=HALF)
        assert (await caller.filter(pod, ["n1"]))["FailedNodes"] == {"n1": "node unregistered"}


@pytest.mark.simulated
async def test_nodes_without_such_plugins_are_never_written(world: World) -> None:
    await world.add_node("n1")
    plugin = await a_plugin(world, "n2")
    before = (await world.versions(NODES))["n1"]
    async with world.scheduler(**QUICK):
        await plugin.register()
        await wait_until(plugin.asked, "the scheduler's answer to the handshake")
        assert (await world.versions(NODES))["n1"] == before


async def test_switched_off_the_door_is_shut(world: World) -> None:
    plugin = await a_plugin(world)
    await plugin.register()
    async with world.scheduler(compat=False) as caller:
        found = await caller.filter(await world.add_pod("p1", limits=HALF), ["n1"])
        assert found["FailedNodes"] == {"n1": "node unregistered"}
        assert not await plugin.asked()
