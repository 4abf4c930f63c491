"""HAMi's handshake with third-party plugins: asked once a report, silence on record, and back with the next word."""

import json
from pathlib import Path
from typing import Any

import pytest

from hami.domain.device import Health
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.handshake import HandshakeExpired, HandshakeReported
from hami.events.catalog.journal import InputRejected
from hami.events.catalog.node import NodeRegistered
from hami.kube.kinds import NODES
from hami.scheduler.decide import door
from hami.sim.annotation_plugin import AnnotationPlugin
from tests.support.builders import a_device
from tests.support.objects import node as node_object
from tests.support.plugins_by_annotation import HALF, QUICK, a_plugin, dcu, notes, registered, vendor
from tests.support.scheduler import Caller, World
from tests.support.waiting import wait_until

CASES: dict[str, Any] = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data/pain-cases.json").read_text())
}
HANDSHAKE = "hami.io/node-handshake-dcu"
AWAKE = {**QUICK, "compat_silence_s": 600.0}


async def fits(world: World, caller: Caller, name: str = "p1") -> bool:
    there = await world.kube.get_pod("default", name) is not None
    pod = await world.pod_of(name) if there else await world.add_pod(name, limits=HALF)
    return bool((await caller.filter(pod, ["n1"]))["NodeNames"])


async def fits_soon(world: World, caller: Caller) -> None:
    async def there() -> bool:
        return await fits(world, caller)

    await wait_until(there, "the pod to fit")


@pytest.mark.simulated
async def test_each_report_is_answered_once(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="a", **AWAKE), world.scheduler(id="b", **AWAKE):
        await plugin.register()
        await wait_until(plugin.asked, "the first answer")
        asked = (await notes(world, "n1"))[HANDSHAKE]
        before = world.sim.revision
        for _ in range(3):
            await plugin.report()
            await wait_until(plugin.asked, "the next answer")
        # Each time one write of the plugin, and one of ours.
        assert world.sim.revision == before + 6
        assert (await notes(world, "n1"))[HANDSHAKE].startswith("Requesting_20")
        assert asked.startswith("Requesting_20")


async def test_reports_that_come_faster_are_not_all_answered(world: World) -> None:
    """Every write to a node wakes kube-scheduler's pending pods."""
    plugin = await a_plugin(world)
    async with world.scheduler(compat_answer_s=600.0) as caller:
        await plugin.register()
        await wait_until(plugin.asked, "the first answer")
        await plugin.report()
        plugin.devices = (*plugin.devices, dcu(2))
        await plugin.register()
        await registered(world, caller, 2)
        assert not await plugin.asked()


@pytest.mark.simulated
async def test_silence_stops_placement_and_the_next_report_brings_it_back(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(id="a", **QUICK) as caller:
        await plugin.register()
        [expired] = await world.seen(HandshakeExpired)
        assert expired.vendor == "DCU"
        changes = await world.seen(DeviceHealthChanged, 2)
        assert {(each.device, each.was, each.now, each.reason) for each in changes} == {
            (f"DCU-{number}", Health.HEALTHY, Health.UNKNOWN, door.SILENT) for number in range(2)
        }
        await world.settled(caller)
        version = (await world.versions(NODES))["n1"]
        assert not await fits(world, caller)
        # A silent plugin is not asked again and again.
        assert (await world.versions(NODES))["n1"] == version
    async with world.scheduler(id="b", **AWAKE) as caller:
        await plugin.report()
        [back] = await world.seen(HandshakeReported)
        assert back.vendor == "DCU"
        await fits_soon(world, caller)
    assert len(await world.events(NodeRegistered)) == 1


async def test_silence_is_the_same_to_the_next_scheduler(world: World) -> None:
    """One that has just started does not take the plugin for alive because it does not know better."""
    plugin = await a_plugin(world)
    async with world.scheduler(id="a", **QUICK):
        await plugin.register()
        await world.seen(HandshakeExpired)
    async with world.scheduler(id="b", **AWAKE) as caller:
        assert not await fits(world, caller)
        await plugin.report()
        await world.seen(HandshakeReported)
        await fits_soon(world, caller)
    assert len(await world.events(HandshakeExpired)) == 1


async def test_a_plugin_whose_devices_the_kubelet_still_counts_is_not_silent(world: World) -> None:
    """As in HAMi: some plugins never answer (HAMi's own for NVIDIA); the kubelet knows whether they are there."""
    count = vendor("NVIDIA").resources.count
    await world.kube.create(NODES, node_object("n1", capacity={count: "10"}, allocatable={count: "10"}))
    plugin = AnnotationPlugin(world.kube, "n1", vendor("NVIDIA"), [a_device("GPU-a")])
    quiet = await a_plugin(world, "n2")
    async with world.scheduler(**QUICK):
        await plugin.register()
        await quiet.register()
        await world.seen(HandshakeExpired)
        assert {each.envelope.node for each in await world.records() if isinstance(each.event, HandshakeExpired)} == {"n2"}
        await world.kube.patch_node("n1", {"status": {"allocatable": {count: "0"}}}, subresource="status")
        await world.seen(HandshakeExpired, 2)
        await world.kube.patch_node("n1", {"status": {"allocatable": {count: "10"}}}, subresource="status")
        reported = await world.seen(HandshakeReported)
        assert reported[0].vendor == "NVIDIA"


async def test_a_plugin_without_a_handshake_is_gone_when_its_capacity_is(world: World) -> None:
    page = vendor("AMD")
    count = page.resources.count
    await world.kube.create(NODES, node_object("n1", capacity={count: "4"}, allocatable={count: "4"}))
    plugin = AnnotationPlugin(world.kube, "n1", page, [a_device("AMD-0", vendor="AMD")])
    async with world.scheduler():
        await plugin.register()
        await world.seen(NodeRegistered)
        await world.kube.patch_node("n1", {"status": {"capacity": {count: "0"}}}, subresource="status")
        [gone] = await world.seen(DeviceHealthChanged)
        assert (gone.device, gone.now) == ("AMD-0", Health.UNKNOWN)
        await world.kube.patch_node("n1", {"status": {"capacity": {count: "4"}}}, subresource="status")
        back = (await world.seen(DeviceHealthChanged, 2))[1]
        assert back.now is Health.HEALTHY


# --- what users reported ---


async def test_hs_01_a_plugin_that_was_given_up_is_back_without_anybodys_hand(world: World) -> None:
    case = CASES["hs-01-revive-after-deleted"]
    names = case["when"][0]["devices"]
    plugin = await a_plugin(world, "n1", *[a_device(each, vendor="DCU", model="Z100") for each in names])
    async with world.scheduler(id="a", **QUICK):
        await plugin.register()
        await world.seen(HandshakeExpired)
        # What older schedulers of HAMi wrote when they gave a plugin up: no word of the plugin's, so it is asked again.
        await world.kube.patch_node("n1", {"metadata": {"annotations": {HANDSHAKE: "Deleted_2026.01.01 00:00:00"}}})
        await wait_until(plugin.asked, "the question")
        assert not await world.events(HandshakeReported)
    async with world.scheduler(id="b", **AWAKE) as caller:
        await plugin.register()
        await world.seen(HandshakeReported)
        await fits_soon(world, caller)
    back = [each for each in await world.events(DeviceHealthChanged) if each.now is Health.HEALTHY]
    assert [each.device for each in back] == names
    assert len(back) == case["then"]["schedulable_devices"]


async def test_hs_03_a_time_that_is_none_is_named_and_keeps_nobody_alive(world: World) -> None:
    case = CASES["hs-03-bad-legacy-timestamp"]
    [bad] = case["given"]["annotations"].values()
    plugin = await a_plugin(world)
    async with world.scheduler(id="a", **QUICK) as caller:
        await plugin.register()
        await registered(world, caller)
        await world.kube.patch_node("n1", {"metadata": {"annotations": {HANDSHAKE: bad}}})
        [rejected] = await world.seen(InputRejected)
        assert (rejected.field, rejected.value) == (HANDSHAKE, bad)
        await world.seen(HandshakeExpired)
        await world.settled(caller)
        assert not await fits(world, caller)
        assert (await notes(world, "n1"))[HANDSHAKE] == bad
    async with world.scheduler(id="b", **AWAKE) as caller:
        await plugin.report()
        await fits_soon(world, caller)
    assert len(await world.events(InputRejected)) == 1


async def test_hs_04_a_vendor_that_vanished_leaves_the_others_alone(world: World) -> None:
    count = vendor("NVIDIA").resources.count
    await world.kube.create(NODES, node_object("n1", capacity={count: "10"}, allocatable={count: "10"}))
    first = AnnotationPlugin(world.kube, "n1", vendor("NVIDIA"), [a_device("GPU-x-0")])
    second = AnnotationPlugin(world.kube, "n1", vendor("DCU"), [dcu(0)], colon=True)
    async with world.scheduler() as caller:
        await first.register()
        await second.register()
        await registered(world, caller, 2)
        gone = {second.vendor.keys.register: None, second.vendor.keys.handshake: None}
        await world.kube.patch_node("n1", {"metadata": {"annotations": gone}})
        event = (await registered(world, caller, 3))[2]
        assert (event.vendor, event.devices) == ("DCU", ())
        assert not await fits(world, caller)
        assert (await caller.filter(await world.add_pod("p2"), ["n1"]))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("word", ["DCU", "NVIDIA"])
async def test_reg_01_one_bad_segment_costs_itself_only(world: World, word: str) -> None:
    """In HAMi's colon form, and the same in its JSON form."""
    case = CASES["reg-01-one-bad-segment"]
    [text] = case["given"]["annotations"].values()
    page, colon = vendor(word), word == "DCU"
    if not colon:
        rows = [each.split(",") for each in text.split(":") if each]
        text = json.dumps(
            [
                {
                    "id": each[0],
                    "count": int(each[1]) if each[1].isdigit() else each[1],
                    "devmem": 24576,
                    "devcore": 100,
                    "health": True,
                }
                for each in rows
            ]
        )
    await world.kube.create(NODES, node_object("n1"))
    plugin = AnnotationPlugin(world.kube, "n1", page, [], colon=colon)
    async with world.scheduler() as caller:
        await plugin.register(text)
        [event] = await registered(world, caller)
        assert [each.uuid for each in event.devices] == case["then"]["devices_accepted"]
        [rejected] = await world.seen(InputRejected)
        [quarantined] = case["then"]["quarantined"]
        at = quarantined["segment"] - 1
        assert rejected.source == "node n1"
        assert rejected.field.startswith(f"{page.keys.register}, device {at}, {quarantined['field']}")
        assert rejected.value == quarantined["value"]
        limits = HALF if colon else None
        assert (
            bool((await caller.filter(await world.add_pod("p1", limits=limits), ["n1"]))["NodeNames"])
            is case["then"]["node_schedulable"]
        )
        await plugin.register(text.replace("ten", "10") if colon else text.replace('"ten"', "10"))
        second = (await registered(world, caller, 2))[1]
        assert (len(second.devices), second.unread) == (3, ())
    assert len(await world.events(InputRejected)) == 1


async def test_an_announcement_that_cannot_be_read_at_all_takes_nothing_back(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler(**AWAKE) as caller:
        await plugin.register()
        await registered(world, caller)
        await plugin.register("nonsense")
        await world.seen(InputRejected)
        await world.settled(caller)
        assert await fits(world, caller)
    async with world.scheduler(id="b", **AWAKE) as caller:
        await world.settled(caller)
        assert await fits(world, caller)
    assert len(await world.events(InputRejected)) == 1
