"""Third-party device plugins that speak HAMi's annotations: a simulated one against a whole scheduler, in all it may do wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from hami.domain.cluster import Source
from hami.domain.device import Device, Health
from hami.events.catalog.allocation import AllocationBound, AllocationFailed, AllocationPrepared, AllocationReserved
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.handshake import HandshakeExpired, HandshakeReported
from hami.events.catalog.journal import InputRejected
from hami.events.catalog.node import NodeRegistered
from hami.kube.kinds import NODES
from hami.sim.annotation_plugin import AnnotationPlugin, Killed, NoPod, Step
from hami.vendors import identity
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.vendor import Vendor
from tests.support.builders import a_device
from tests.support.objects import node as node_object
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until

VENDORS = vendors_of(DeviceConfig())
HALF = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "1000", "hygon.com/dcucores": "10"}
MUTEX = "hami.io/mutex.lock"
QUICK = {"compat_answer_s": 0.2, "compat_silence_s": 0.6}


def vendor(word: str) -> Vendor:
    found = by_word(VENDORS, word)
    assert found is not None
    return found


def dcu(number: int, health: Health = Health.HEALTHY) -> Device:
    return a_device(f"DCU-{number}", vendor="DCU", model="Z100", memory=16000, slots=4, index=0, health=health)


async def a_plugin(world: World, name: str = "n1", *devices: Device) -> AnnotationPlugin:
    """A Hygon plugin on a new node."""
    await world.kube.create(NODES, node_object(name))
    return AnnotationPlugin(world.kube, name, vendor("DCU"), devices or (dcu(0), dcu(1)), colon=True)


async def bound(world: World, caller: Caller, name: str, limits: dict[str, str] | None = None, node: str = "n1") -> Obj:
    made = await world.add_pod(name, limits=HALF if limits is None else limits)
    found = await caller.filter(made, [node])
    assert found["NodeNames"] == [node], found
    assert await caller.bind(made, node) == ""
    return made


def notes(world: World, name: str, plural: str = "nodes") -> dict[str, str]:
    found = next(each for each in world.sim.objects(plural) if each["metadata"]["name"] == name)
    return found["metadata"].get("annotations") or {}


async def registered(world: World, caller: Caller, count: int = 1) -> list[NodeRegistered]:
    found = await world.seen(NodeRegistered, count)
    await world.settled(caller)
    return found


async def test_a_plugin_registers_serves_a_pod_and_releases_the_lock(world: World) -> None:
    plugin = await a_plugin(world)
    async with world.scheduler() as caller:
        await plugin.register()
        [event] = await registered(world, caller)
        assert (event.source, [each.uuid for each in event.devices]) == (Source.DOOR, ["DCU-0", "DCU-1"])
        await wait_until(plugin.asked, "the scheduler's answer to the handshake")
        await bound(world, caller, "p1")
        assert notes(world, "n1")[MUTEX].split(",")[1:] == ["default", "p1"]
        written = notes(world, "p1", "pods")
        assert written["hami.io/dcu-devices-to-allocate"] == "DCU-1,DCU,1000,10:;"
        assert written["hami.io/dcu-devices-allocated"] == written["hami.io/dcu-devices-to-allocate"]
        assert (written[identity.BIND_PHASE], written[identity.NODE]) == ("allocating", "n1")
        assert await plugin.allocate() == ["DCU-1"]
        [prepared] = await world.seen(AllocationPrepared)
        assert prepared.container == "main"
        assert MUTEX not in notes(world, "n1")
