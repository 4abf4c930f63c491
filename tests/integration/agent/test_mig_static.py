"""Instances that an operator cut, on the real NVML bindings: each kind a resource of its own, exact for whoever gets one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.domain.device import Health
from hami.events.catalog.device import DeviceHealthChanged, FaultObserved, MigInstanceDestroyed
from hami.events.catalog.node import NodeRegistered
from hami.nodeagent.backends.nvml import NvmlBackend
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import World, agent_on, running, settings_for, settled
from tests.support.fake_nvml import script as nvml
from tests.support.fake_nvml.script import NvmlScript, build
from tests.support.plugins import RESOURCE, pod
from tests.support.waiting import wait_until

ONE, TWO = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
CARDS = ("GPU-whole", "GPU-cut")


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlScript:
    """The second card is cut: two instances of one kind, one of another."""
    monkeypatch.setenv("FAKE_NVML_DIR", str(tmp_path))
    made = NvmlScript(tmp_path)
    made.cards(*CARDS)
    made.mig(1)
    made.cut(1, 1, 19, 6, 1, slices=[1])
    made.cut(1, 2, 19, 5, 1, slices=[1])
    made.cut(1, 3, 14, 0, 2, slices=[2])
    return made


@asynccontextmanager
async def agent(folder: Path, driver_root: Path, strategy: str, **more: Any) -> AsyncIterator[World]:
    backend = NvmlBackend(driver_root=str(driver_root))
    settings = msgspec.structs.replace(settings_for(folder), mig_strategy=strategy, **more)
    async with agent_on(folder, backend, settings=settings) as world:
        yield world


async def shelves(kubelet: SimKubelet, wanted: dict[str, tuple[int, int]]) -> None:
    await wait_until(lambda: kubelet.books.capacity() == wanted, f"{wanted} at the kubelet, not {kubelet.books.capacity()}")


def asking(name: str, resource: str, count: int = 1) -> dict[str, Any]:
    return pod(name, {"name": "main", "image": "nvidia/cuda", "resources": {"limits": {resource: str(count)}}})


def seen_by(kubelet: SimKubelet, name: str) -> tuple[str, ...]:
    view = kubelet.runtime.view(name, "main")
    assert view is not None
    return view.visible_devices


async def test_mixed_each_kind_is_a_resource_and_a_pod_gets_what_the_kubelet_counted(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, api: InMemoryApi, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "mixed") as world:
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
        sockets = {path.name for path in (folder / "device-plugins").glob("hami-*.sock")}
        assert sockets == {"hami-gpu.sock", "hami-mig-1g.10gb.sock", "hami-mig-2g.20gb.sock"}
        await settled(world)
        [told] = world.publisher.of(NodeRegistered)
        assert [device.uuid for device in told.devices] == ["GPU-whole"]
        for name, resource in (("a", ONE), ("b", ONE), ("c", TWO)):
            api.create(asking(name, resource), node="node-1")
            await running(api, name)
        small, large = {*seen_by(kubelet, "a"), *seen_by(kubelet, "b")}, seen_by(kubelet, "c")
        assert small == {f"MIG-00000001-0000-0000-0000-00000{number}000000" for number in (1, 2)}
        assert large == ("MIG-00000001-0000-0000-0000-000003000000",)
        api.create(asking("d", ONE), node="node-1")
        await wait_until(lambda: api.status("d").get("phase") == "Failed", "the third to be refused")


async def test_mixed_an_instance_that_goes_is_offered_no_more_and_a_new_kind_is(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path, tmp_path: Path
) -> None:
    async with agent(folder, driver_root, "mixed"):
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
        (tmp_path / "cuts").unlink()
        cards.cut(1, 1, 9, 4, 4, slices=[3])
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (0, 0), TWO: (0, 0), "nvidia.com/mig-3g.40gb": (1, 1)})


async def test_mixed_all_kinds_are_back_after_the_kubelet_restarts(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "mixed"):
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
        await kubelet.restart()
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})


async def test_mixed_with_device_nodes_a_container_gets_those_of_its_instance_only(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, api: InMemoryApi, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "mixed", device_list_strategy="volume-mounts") as world:
        await wait_until(lambda: ONE in world.agent.kinds.links and world.agent.kinds.links[ONE].registered, "the kind")
        await wait_until(lambda: kubelet.books.capacity().get(ONE) == (2, 2), "the kind at the kubelet")
        api.create(asking("a", ONE), node="node-1")
        await running(api, "a")
        view = kubelet.runtime.view("a", "main")
        assert view is not None
        [(inside, host, _)] = view.mounts
        assert inside.startswith("/var/run/nvidia-container-devices/MIG-")
        assert host == "/dev/null"


async def test_single_instances_are_the_nodes_devices(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path, tmp_path: Path
) -> None:
    cards.cards("GPU-cut")
    (tmp_path / "cuts").unlink()
    cards.mig(0)
    for number, start in ((1, 6), (2, 5)):
        cards.cut(0, number, 19, start, 1, slices=[1])
    async with agent(folder, driver_root, "single") as world:
        await shelves(kubelet, {RESOURCE: (2, 2)})
        await settled(world)
        [told] = world.publisher.of(NodeRegistered)
        assert [(device.uuid, device.slots, device.memory) for device in told.devices] == [
            (f"MIG-00000000-0000-0000-0000-00000{number}000000", 1, 9728) for number in (1, 2)
        ]
        ids = {each for offer in world.agent.board.offers for each in offer.ids}
        assert ids == {device.uuid for device in told.devices}


async def test_single_on_a_node_with_a_whole_card_offers_nothing(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "single") as world:
        await shelves(kubelet, {RESOURCE: (0, 0)})
        await settled(world)
        assert world.publisher.of(NodeRegistered)[-1].devices == ()


async def test_none_lists_the_cut_card_as_a_card(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "none"):
        await shelves(kubelet, {RESOURCE: (20, 20)})


async def test_a_fault_of_one_instance_takes_that_one_and_a_fault_of_the_card_takes_all(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "mixed") as world:
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
        cards.event(1, nvml.XID, 78, instance=(2, 0))
        await wait_until(lambda: world.publisher.of(DeviceHealthChanged), "the instance to be suspect")
        [changed] = world.publisher.of(DeviceHealthChanged)
        assert (changed.device, changed.now) == ("MIG-00000001-0000-0000-0000-000002000000", Health.SUSPECT)
        await settled(world)
        [observed] = world.publisher.of(FaultObserved)
        assert (observed.device, observed.gpu_instance, observed.compute_instance) == (changed.device, 2, 0)
        cards.event(1, nvml.XID, 79)
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 0), TWO: (1, 0)})
        await settled(world)
        sick = {each.device for each in world.publisher.of(DeviceHealthChanged) if each.now is Health.UNHEALTHY}
        assert sick == {"GPU-cut", *(f"MIG-00000001-0000-0000-0000-00000{number}000000" for number in (1, 2, 3))}
        assert [each.device for each in world.publisher.of(FaultObserved)] == [observed.device, "GPU-cut"]


async def test_instances_of_a_card_that_falls_off_the_bus_stay_listed_and_sick(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path
) -> None:
    async with agent(folder, driver_root, "mixed"):
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
        cards.fail("*", 1, nvml.GPU_IS_LOST)
        cards.wait_error(nvml.GPU_IS_LOST)
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 0), TWO: (1, 0)})


async def test_what_is_said_against_an_instance_is_not_said_against_the_next_of_its_name(
    cards: NvmlScript, kubelet: SimKubelet, folder: Path, driver_root: Path, tmp_path: Path
) -> None:
    async with agent(folder, driver_root, "mixed") as world:
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
        cards.event(1, nvml.XID, 78, instance=(3, 0))
        await wait_until(lambda: world.publisher.of(DeviceHealthChanged), "the instance to be suspect")
        [changed] = world.publisher.of(DeviceHealthChanged)
        both = (tmp_path / "cuts").read_text()
        (tmp_path / "cuts").write_text("".join(line for line in both.splitlines(keepends=True) if line[4] != "3"))
        await wait_until(lambda: world.publisher.of(MigInstanceDestroyed), "the instance to be forgotten")
        [gone] = world.publisher.of(MigInstanceDestroyed)
        assert (gone.instance.uuid, gone.why) == (changed.device, "by somebody else")
        assert changed.device not in world.agent.memory.state.cards
        (tmp_path / "cuts").write_text(both)
        await shelves(kubelet, {RESOURCE: (10, 10), ONE: (2, 2), TWO: (1, 1)})
