"""From a line in the driver's mouth to the kubelet's books: real NVML bindings, real sockets, a scripted library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.domain.device import Health
from hami.events.catalog.device import DeviceHealthChanged, FaultObserved
from hami.events.catalog.node import NodeRegistered
from hami.nodeagent.backends.nvml import NvmlBackend
from hami.sim.kubelet.api import InMemoryApi
from tests.support.agents import agent_on, settled
from tests.support.fake_nvml.script import GPU_IS_LOST, XID, NvmlScript, build
from tests.support.plugins import RESOURCE, kubelet_on, socket_folder
from tests.support.waiting import wait_until

UUIDS = ("GPU-a", "GPU-b")


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlScript:
    monkeypatch.setenv("FAKE_NVML_DIR", str(tmp_path))
    made = NvmlScript(tmp_path)
    made.cards(*UUIDS)
    return made


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


async def allocatable(api: InMemoryApi, count: str) -> None:
    def seen() -> bool:
        return bool(api.nodes.get("node-1", {}).get("allocatable", {}).get(RESOURCE) == count)

    await wait_until(seen, f"{count} allocatable devices")


async def test_an_xid_of_the_driver_takes_the_card_from_the_kubelet(folder: Path, cards: NvmlScript, driver_root: Path) -> None:
    api = InMemoryApi()
    async with kubelet_on(folder, api), agent_on(folder, NvmlBackend(driver_root=str(driver_root))) as world:
        await allocatable(api, "20")
        cards.event(1, XID, 79)
        await allocatable(api, "10")
        await settled(world)
        [changed] = world.publisher.of(DeviceHealthChanged)
        assert (changed.device, changed.now) == ("GPU-b", Health.UNHEALTHY)


async def test_one_lost_card_of_two_and_a_restart_afterwards(folder: Path, cards: NvmlScript, driver_root: Path) -> None:
    api = InMemoryApi()
    async with kubelet_on(folder, api):
        async with agent_on(folder, NvmlBackend(driver_root=str(driver_root))):
            await allocatable(api, "20")
            cards.fail("*", 0, GPU_IS_LOST)
            cards.wait_error(GPU_IS_LOST)
            await allocatable(api, "10")
        await allocatable(api, "0")
        async with agent_on(folder, NvmlBackend(driver_root=str(driver_root))) as again:
            await allocatable(api, "10")
            await settled(again)
            [event] = again.publisher.of(NodeRegistered)
            assert [(device.uuid, device.health) for device in event.devices] == [
                ("GPU-a", Health.UNHEALTHY),
                ("GPU-b", Health.HEALTHY),
            ]


async def test_a_card_that_comes_late_is_listened_to(folder: Path, cards: NvmlScript, driver_root: Path) -> None:
    api = InMemoryApi()
    cards.cards(*UUIDS[:1])
    async with kubelet_on(folder, api), agent_on(folder, NvmlBackend(driver_root=str(driver_root))) as world:
        await allocatable(api, "10")
        cards.cards(*UUIDS)
        await allocatable(api, "20")
        await settled(world)
        assert world.publisher.of(FaultObserved) == []
        cards.event(1, XID, 79)
        await allocatable(api, "10")
        await settled(world)
        assert [(event.device, event.now) for event in world.publisher.of(DeviceHealthChanged)] == [("GPU-b", Health.UNHEALTHY)]


async def test_a_card_that_vanishes_is_no_reason_to_register_again(folder: Path, cards: NvmlScript, driver_root: Path) -> None:
    api = InMemoryApi()
    cards.cards("GPU-a", "GPU-b", "GPU-c")
    cards.topology(0, 1, 10)
    async with kubelet_on(folder, api), agent_on(folder, NvmlBackend(driver_root=str(driver_root))) as world:
        await allocatable(api, "30")
        cards.cards("GPU-a", "GPU-b")
        await allocatable(api, "20")
        looks = world.agent.registrar.looks
        await wait_until(lambda: world.agent.registrar.looks > looks + 2, "more looks at the cards")
        await settled(world)
        assert [event.device for event in world.publisher.of(FaultObserved)] == ["GPU-c"]
        assert len(world.publisher.of(NodeRegistered)) == 1
        cards.cards("GPU-b")
        await allocatable(api, "10")
        looks = world.agent.registrar.looks
        await wait_until(lambda: world.agent.registrar.looks > looks + 2, "more looks at the cards")
        await settled(world)
        assert len(world.publisher.of(NodeRegistered)) == 2, "the library counts the one that is left differently now"
        assert {each.uuid: each.index for each in world.publisher.of(NodeRegistered)[-1].devices}["GPU-b"] == 0
