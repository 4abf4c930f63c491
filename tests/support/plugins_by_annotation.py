"""Nodes whose devices come from a plugin that speaks HAMi's annotations, and what tests do with them."""

from functools import partial
from typing import Any

from hami.domain.device import Device, Health
from hami.events.catalog.node import NodeRegistered
from hami.kube.kinds import NODES, Kind
from hami.sim.annotation_plugin import AnnotationPlugin
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
QUICK: dict[str, Any] = {"compat_answer_s": 0.2, "compat_silence_s": 0.6}


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


async def notes(world: World, name: str, kind: Kind[Any] = NODES) -> dict[str, str]:
    found = await world.kube.read(kind, "default" if kind.namespaced else "", name)
    return found["metadata"].get("annotations") or {}


async def registered(world: World, caller: Caller, count: int = 1) -> list[NodeRegistered]:
    found = await world.seen(NodeRegistered, count)
    await world.settled(caller)
    return found


async def kubelet_says(world: World, name: str, phase: str) -> None:
    """The node's kubelet has taken the pod in (Running) or turned it away (Failed)."""
    await world.kube.patch_pod("default", name, {"status": {"phase": phase}}, subresource="status")


async def locked(world: World, node: str = "n1", key: str = MUTEX) -> None:
    await wait_until(partial(_has, world, node, key), f"a lock on {node}")


async def unlocked(world: World, node: str = "n1", key: str = MUTEX) -> None:
    async def free() -> bool:
        return not await _has(world, node, key)

    await wait_until(free, f"{node} to be without its lock")


async def _has(world: World, node: str, key: str) -> bool:
    return key in await notes(world, node)


async def on_its_node(world: World, name: str) -> None:
    await wait_until(partial(world.node_of, name), f"the binding of {name}")
