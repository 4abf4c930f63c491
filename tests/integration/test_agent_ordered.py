"""Delivery in order: each Allocate is answered for one container, or refused; real sockets, a simulated kubelet."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.domain.allocation import ContainerShares, PodOwner, Reservation
from hami.domain.cluster import Delivery, Visible
from hami.events.catalog.allocation import AllocationBound, AllocationPrepared, AllocationReleased, AllocationReserved
from hami.events.catalog.node import NodeRegistered
from hami.events.memory import MemoryStore
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.podresources import read_checkpoint
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import LogVoice, World, agent_on, reservation, settings_for, settled
from tests.support.plugins import RESOURCE, container, kubelet_on, pod, socket_folder
from tests.support.waiting import wait_until

UUIDS = [card.uuid for card in simulated_cards(2)]


class Node:
    """One node with its kubelet and agent, and the control plane's voice."""

    def __init__(self, kubelet: SimKubelet, api: InMemoryApi, world: World) -> None:
        self.kubelet, self.api, self.world = kubelet, api, world
        self._voice = LogVoice(world.store)

    async def bound(self, *made: Reservation) -> None:
        for each in made:
            await self._voice.say(AllocationReserved(reservation=each))
            await self._voice.say(AllocationBound(reservation=each.id, owner_uid=each.owner.uid))
        known = {each.id for each in made}
        await wait_until(lambda: known <= {each.id for each in self.world.agent.book.bound_pods()}, "the reservations")

    async def released(self, made: Reservation) -> None:
        await self._voice.say(AllocationReleased(reservation=made.id, owner_uid=made.owner.uid, reason="pod_deleted"))
        await wait_until(lambda: self.world.agent.book.of_pod(made.owner.uid) is None, "the release")

    def create(self, uid: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> None:
        spec = pod(uid, *(containers or (container(),)), init=init)
        spec["metadata"]["uid"] = uid
        self.api.create(spec, node="node-1")

    async def ended(self, name: str, phase: str) -> dict[str, Any]:
        await wait_until(lambda: self.api.status(name).get("phase") == phase, f"{name} to be {phase}")
        return dict(self.api.status(name))

    def answer(self, uid: str, name: str = "main") -> pb.ContainerAllocateResponse:
        """As the kubelet keeps it."""
        path = self.kubelet.plugin_dir / "kubelet_internal_checkpoint"
        [given] = [each for each in read_checkpoint(path, RESOURCE) or () if (each.uid, each.container) == (uid, name)]
        return pb.ContainerAllocateResponse.FromString(given.answer)

    async def prepared(self, count: int) -> list[AllocationPrepared]:
        await wait_until(lambda: len(self.world.publisher.of(AllocationPrepared)) >= count, f"{count} prepared")
        return self.world.publisher.of(AllocationPrepared)


@asynccontextmanager
async def node_on(folder: Path, *, store: MemoryStore | None = None, **given: Any) -> AsyncIterator[Node]:
    settings = msgspec.structs.replace(settings_for(folder), **{"device_list_strategy": "cdi-cri", **given})
    settings = msgspec.structs.replace(settings, cdi_dir=str(folder / "cdi"))
    api = InMemoryApi()
    hooks = folder / "hooks/vgpu"
    hooks.mkdir(parents=True, exist_ok=True)
    for name in ("libvgpu.so", "ld.so.preload"):
        (hooks / name).touch()
    backend = SimulatedBackend(simulated_cards(2))
    async with kubelet_on(folder, api) as kubelet, agent_on(folder, backend, store=store, settings=settings) as world:
        await wait_until(lambda: kubelet.books.capacity().get(RESOURCE) == (20, 20), "the devices")
        yield Node(kubelet, api, world)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


def two_containers(uid: str, first: str, second: str) -> Reservation:
    whole = reservation(uid, [first, second], name=f"r-{uid}")
    [both] = whole.containers
    parts = (
        ContainerShares(name="one", kind=both.kind, shares=both.shares[:1]),
        ContainerShares(name="two", kind=both.kind, shares=both.shares[1:]),
    )
    return msgspec.structs.replace(whole, containers=parts, owner=PodOwner(uid=uid, namespace="default", name=uid))


async def test_a_container_gets_its_own_card_and_limits_in_the_answer(folder: Path) -> None:
    async with node_on(folder) as node:
        await settled(node.world)
        [registered] = node.world.publisher.of(NodeRegistered)
        assert (registered.delivery, registered.visible) == (Delivery.ORDERED, Visible.NOTHING)
        await node.bound(reservation("u-1", UUIDS[1:]))
        node.create("u-1")
        await node.ended("u-1", "Running")
        answer = node.answer("u-1")
        assert [each.name for each in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={UUIDS[1]}"]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert (answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"], answer.envs["CUDA_DEVICE_SM_LIMIT"]) == ("1000m", "10")
        [event] = await node.prepared(1)
        assert (event.reservation, event.container, event.difference) == ("r-1", "main", "")


@pytest.mark.parametrize(
    ("given", "env", "mounts"),
    [
        ({"device_list_strategy": "volume-mounts"}, "/var/run/nvidia-container-devices", 1),
        ({"device_list_strategy": "envvar", "pass_device_specs": True}, UUIDS[0], 0),
        ({"device_list_strategy": "envvar,cdi-annotations", "device_id_strategy": "index"}, "0", 0),
    ],
)
async def test_other_strategies_on_a_real_socket(folder: Path, given: dict[str, Any], env: str, mounts: int) -> None:
    async with node_on(folder, **given) as node:
        await node.bound(reservation("u-1", UUIDS[:1]))
        node.create("u-1")
        await node.ended("u-1", "Running")
        answer = node.answer("u-1")
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == env
        assert len([each for each in answer.mounts if each.host_path == "/dev/null"]) == mounts
        annotations = list(answer.annotations.values())
        assert annotations == (["k8s.device-plugin.nvidia.com/gpu=0"] if "cdi" in given["device_list_strategy"] else [])


async def test_containers_are_served_in_the_order_of_their_pod(folder: Path) -> None:
    async with node_on(folder) as node:
        await node.bound(two_containers("u-1", UUIDS[1], UUIDS[0]))
        node.create("u-1", container("one"), container("two"))
        await node.ended("u-1", "Running")
        assert [node.answer("u-1", name).cdi_devices[0].name[-len(UUIDS[0]) :] for name in ("one", "two")] == [
            UUIDS[1],
            UUIDS[0],
        ]
        assert [each.difference for each in await node.prepared(2)] == ["", ""]


async def test_two_pods_that_could_be_meant_are_refused_and_one_of_them_alone_is_served(folder: Path) -> None:
    async with node_on(folder) as node:
        first, second = reservation("u-1", UUIDS[:1], name="r-1"), reservation("u-2", UUIDS[1:], name="r-2")
        await node.bound(first, second)
        node.create("u-1")
        failed = await node.ended("u-1", "Failed")
        assert failed["reason"] == "UnexpectedAdmissionError"
        assert "2 containers could be meant (reservations r-1, r-2)" in failed["message"]
        await node.released(first)
        node.create("u-2")
        await node.ended("u-2", "Running")
        assert node.answer("u-2").cdi_devices[0].name.endswith(UUIDS[1])


async def test_two_pods_of_equal_parts_may_be_served_in_any_order(folder: Path) -> None:
    async with node_on(folder) as node:
        await node.bound(*(reservation(f"u-{n}", UUIDS[:1], name=f"r-{n}") for n in (1, 2)))
        node.create("u-2")
        await node.ended("u-2", "Running")
        node.create("u-1")
        await node.ended("u-1", "Running")
        assert {each.owner_uid: each.reservation for each in await node.prepared(2)} == {"u-1": "r-1", "u-2": "r-2"}


@pytest.mark.parametrize(
    ("bound", "gpus", "words"),
    [(False, 1, "no bound reservation of this node waits"), (True, 2, "the kubelet asks for 2 devices")],
    ids=["no_pending_pod", "device number not matched"],
)
async def test_what_hami_refuses_is_refused_with_a_reason(folder: Path, bound: bool, gpus: int, words: str) -> None:
    async with node_on(folder) as node:
        if bound:
            await node.bound(reservation("u-1", UUIDS[:1]))
        node.create("u-1", container(gpus=gpus))
        failed = await node.ended("u-1", "Failed")
        assert words in failed["message"]
        await settled(node.world)
        assert node.world.publisher.of(AllocationPrepared) == []


async def test_a_reservation_that_arrives_a_moment_later_is_waited_for(folder: Path) -> None:
    async with node_on(folder) as node:
        node.create("u-1")
        await node.bound(reservation("u-1", UUIDS[:1]))
        await node.ended("u-1", "Running")
        assert node.answer("u-1").cdi_devices[0].name.endswith(UUIDS[0])


async def test_an_answer_that_went_to_a_pod_without_a_reservation_frees_the_one_it_was_meant_for(folder: Path) -> None:
    """Whoever asks the kubelet directly may come first. It is found out, and the pod that was meant is served after all."""
    async with node_on(folder) as node:
        await node.bound(reservation("u-1", UUIDS[:1]))
        node.create("u-stranger")
        await node.ended("u-stranger", "Running")
        await wait_until(lambda: node.world.agent.delivery.strangers, "the stranger to be seen")
        node.create("u-1")
        await node.ended("u-1", "Running")
        [event] = await node.prepared(1)
        assert (event.owner_uid, event.difference) == ("u-1", "")


async def test_a_restarted_agent_knows_whom_it_served(folder: Path) -> None:
    store = MemoryStore()
    async with node_on(folder, store=store) as node:
        await node.bound(reservation("u-1", UUIDS[:1]))
        node.create("u-1")
        await node.prepared(1)
    async with node_on(folder, store=store) as again:
        await wait_until(again.world.agent.book.bound_pods, "the reservation to be read again")
        again.create("u-2")
        failed = await again.ended("u-2", "Failed")
        assert "no bound reservation" in failed["message"]
