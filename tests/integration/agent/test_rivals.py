"""A second device plugin on the same kubelet: noticed, named, and over when it is over."""

from pathlib import Path

import anyio
import msgspec
import pytest

from hami.domain.errors import InvalidInput
from hami.events.catalog.device import FaultKind, FaultObserved
from hami.nodeagent.backends.simulated import SimulatedBackend
from hami.nodeagent.board import Offer
from hami.nodeagent.kubelet import register
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import World, agent_on, connected, settings_for, settled
from tests.support.plugins import CARDS, RESOURCE, ScriptedPlugin
from tests.support.waiting import wait_until


async def registered(plugin: ScriptedPlugin, kubelet: SimKubelet) -> None:
    await plugin.start()
    assert await register(kubelet.socket, plugin.socket.name, RESOURCE, 2.0) == ""


async def test_a_plugin_that_takes_our_resource_is_reported_and_its_end_too(world: World, kubelet: SimKubelet) -> None:
    await connected(kubelet, world)
    other = ScriptedPlugin(kubelet.plugin_dir / "nvidia-gpu.sock")
    await registered(other, kubelet)
    try:
        await wait_until(lambda: world.agent.rivals.trouble, "the other plugin to be noticed")
        assert CARDS[0] in world.agent.rivals.trouble
        await settled(world)
        [event] = world.publisher.of(FaultObserved)
        assert (event.device, event.kind) == ("", FaultKind.PROBE)
        assert "another device plugin has registered" in event.detail
        assert await register(kubelet.socket, world.agent.plugin.socket.name, RESOURCE, 2.0) == ""
        await wait_until(lambda: not world.agent.rivals.trouble, "the trouble to be over")
        await settled(world)
        assert (len(world.publisher.of(FaultObserved)), world.agent.rivals.found) == (1, 1)
    finally:
        await other.stop()


async def test_a_plugin_that_names_its_devices_as_we_do_shows_by_a_health_that_we_did_not_tell(
    world: World, kubelet: SimKubelet, backend: SimulatedBackend
) -> None:
    await connected(kubelet, world)
    other = ScriptedPlugin(kubelet.plugin_dir / "nvidia-gpu.sock")
    other.board.show(Offer(uuid=offer.uuid, slots=offer.slots) for offer in world.agent.board.offers)
    await registered(other, kubelet)
    try:
        backend.strike(world.agent.board.offers[0].uuid, 79)
        await wait_until(lambda: world.agent.rivals.trouble, "the other plugin to be noticed")
        assert "20 healthy devices of nvidia.com/gpu where we told of 10" in world.agent.rivals.trouble
    finally:
        await other.stop()


async def test_faults_and_restarts_of_the_kubelet_are_no_rivals(
    world: World, kubelet: SimKubelet, backend: SimulatedBackend
) -> None:
    await connected(kubelet, world)
    backend.strike(world.agent.board.offers[0].uuid, 79)
    await wait_until(lambda: kubelet.books.capacity().get(RESOURCE) == (20, 10), "the fault")
    await kubelet.restart()
    await wait_until(lambda: world.agent.link.registrations == 2, "another registration")
    await wait_until(lambda: kubelet.books.capacity().get(RESOURCE) == (20, 10), "the list")
    (kubelet.plugin_dir / "kubelet_internal_checkpoint").write_text("not one")
    for _ in range(3):
        world.agent.rivals.look()
    assert world.agent.rivals.found == 0


@pytest.mark.parametrize("name", ["Bad_Name", "a..b", "-a", "a" * 254, "node 1"])
async def test_a_name_that_no_node_can_have_is_refused(folder: Path, backend: SimulatedBackend, name: str) -> None:
    settings = msgspec.structs.replace(settings_for(folder), node_name=name)
    with pytest.raises(InvalidInput, match=r"agent\.node_name: .*no Kubernetes node has such a name"):
        async with agent_on(folder, backend, settings=settings):
            await anyio.lowlevel.checkpoint()
