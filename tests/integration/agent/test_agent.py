"""The agent on a kubelet: what pods get, what the cluster is told, and what happens when either side falls over."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from hami.domain.device import Health
from hami.domain.digest import device_set_digest
from hami.domain.errors import HamiError, InvalidInput, StoreUnavailable, StoreUnsafe
from hami.events.catalog.allocation import AllocationBound, AllocationPrepared, AllocationReleased, AllocationReserved
from hami.events.catalog.handshake import HandshakeReported, HandshakeRequested
from hami.events.catalog.node import NodeRegistered
from hami.events.memory import MemoryStore
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.podresources import read_checkpoint
from hami.nodeagent.state import StateFile
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import (
    QUICK,
    LogVoice,
    StoreAway,
    World,
    agent_on,
    connected,
    offered,
    reservation,
    running,
    settings_for,
    settled,
)
from tests.support.plugins import RESOURCE, container, kubelet_on, pod
from tests.support.waiting import wait_until

DEVICES = "hami.io/devices"
REFERENCE = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{DEVICES}']"}}}]
UUIDS = [card.uuid for card in simulated_cards(2)]


def seen_by(kubelet: SimKubelet, name: str, of: str = "main") -> tuple[str, ...]:
    view = kubelet.runtime.view(name, of)
    assert view is not None
    return view.visible_devices


async def test_the_node_is_registered_once_with_all_its_devices(world: World) -> None:
    await settled(world)
    [event] = world.publisher.of(NodeRegistered)
    assert [device.uuid for device in event.devices] == UUIDS
    assert {(device.slots, device.memory, device.health) for device in event.devices} == {(10, 81920, Health.HEALTHY)}
    assert (event.node_uid, event.boot_id) == ("uid-of-node", "boot-1")


async def test_a_pod_sees_the_device_its_annotation_names_and_nothing_else(
    world: World, kubelet: SimKubelet, api: InMemoryApi
) -> None:
    api.create(pod("mine", container(env=REFERENCE), notes={DEVICES: UUIDS[1]}), node="node-1")
    await running(api, "mine")
    assert seen_by(kubelet, "mine") == (UUIDS[1],)


@pytest.mark.parametrize(
    "spec",
    [container(image="nvidia/cuda"), container(image="nvidia/cuda", env=REFERENCE)],
    ids=["no reference", "no annotation"],
)
async def test_whoever_bypassed_the_control_plane_sees_no_device(
    world: World, kubelet: SimKubelet, api: InMemoryApi, spec: dict[str, Any]
) -> None:
    api.create(pod("bypass", spec), node="node-1")
    await running(api, "bypass")
    assert seen_by(kubelet, "bypass") == ()
    await wait_until(lambda: world.agent.delivery.strangers, "the stranger to be noticed")
    await settled(world)
    assert world.publisher.of(AllocationPrepared) == []


async def test_allocate_is_tied_to_its_container_afterwards(world: World, api: InMemoryApi) -> None:
    made = api.create(pod("pod", container(), container("second", gpus=0)), node="node-1")
    await running(api, "pod")
    await LogVoice(world.store).say(AllocationReserved(reservation=reservation(made["metadata"]["uid"], UUIDS[:1])))
    await wait_until(lambda: world.publisher.of(AllocationPrepared), "prepared")
    await settled(world)
    [event] = world.publisher.of(AllocationPrepared)
    assert (event.reservation, event.owner_uid, event.container, event.difference) == (
        "r-1",
        made["metadata"]["uid"],
        "main",
        "",
    )
    assert len(event.device_ids) == 1


async def test_a_container_is_told_of_once_also_after_a_restart_of_the_agent(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    store = MemoryStore()
    voice = LogVoice(store)
    for life in range(2):
        async with agent_on(folder, backend, store=store) as world:
            await connected(kubelet, world)
            made = api.create(pod(f"pod-{life}", container()), node="node-1")
            wanted = reservation(made["metadata"]["uid"], UUIDS[:1], name=f"r-{life}")
            await voice.say(AllocationReserved(reservation=wanted))
            await wait_until(lambda: world.publisher.of(AllocationPrepared), "prepared")
            await wait_until(lambda: all(each.told for each in world.agent.memory.state.served.values()), "it to be settled")
            await settled(world)
            assert [event.reservation for event in world.publisher.of(AllocationPrepared)] == [f"r-{life}"]


async def test_what_may_have_been_lost_with_a_dying_agent_is_told_again_once(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    store = MemoryStore()
    async with agent_on(folder, backend, store=store) as world:
        await connected(kubelet, world)
        world.publisher.state = msgspec.structs.replace(world.publisher.state, idle=False)
        made = api.create(pod("pod", container()), node="node-1")
        await LogVoice(store).say(AllocationReserved(reservation=reservation(made["metadata"]["uid"], UUIDS[:1])))
        await wait_until(lambda: world.publisher.of(AllocationPrepared), "prepared, not delivered")
    async with agent_on(folder, backend, store=store) as second:
        await wait_until(lambda: second.publisher.of(AllocationPrepared), "prepared once more")
        await wait_until(lambda: second.agent.memory.state.served[f"{made['metadata']['uid']}/main"].told, "it to be settled")
    async with agent_on(folder, backend, store=store) as third:
        await connected(kubelet, third)
        await wait_until(lambda: third.agent.book.read, "the feed to be read")
        await settled(third)
        assert third.publisher.of(AllocationPrepared) == []


async def test_a_difference_between_reserved_and_served_is_reported(world: World, api: InMemoryApi) -> None:
    made = api.create(pod("pod", container(gpus=2)), node="node-1")
    await LogVoice(world.store).say(AllocationReserved(reservation=reservation(made["metadata"]["uid"], UUIDS[:1])))
    await wait_until(lambda: world.publisher.of(AllocationPrepared), "prepared")
    await settled(world)
    [event] = world.publisher.of(AllocationPrepared)
    assert event.difference == "the kubelet counted 2 devices, the reservation has 1"


async def test_the_kubelet_is_pointed_at_the_reserved_card_when_it_is_known(
    world: World, kubelet: SimKubelet, api: InMemoryApi
) -> None:
    voice = LogVoice(world.store)
    wanted = reservation("uid-fixed", UUIDS[1:])
    await voice.say(AllocationReserved(reservation=wanted))
    await voice.say(AllocationBound(reservation=wanted.id, owner_uid="uid-fixed"))
    await wait_until(lambda: world.agent.book.of_pod("uid-fixed"), "the reservation to arrive")
    await wait_until(lambda: world.agent.book.likely_cards(1, lambda *_: False), "the binding to arrive")
    spec = pod("pod", container())
    spec["metadata"]["uid"] = "uid-fixed"
    api.create(spec, node="node-1")
    await running(api, "pod")
    [given] = read_checkpoint(kubelet.plugin_dir / "kubelet_internal_checkpoint", RESOURCE) or ()
    assert given.device_ids[0].startswith(UUIDS[1])
    await voice.say(AllocationReleased(reservation=wanted.id, owner_uid="uid-fixed", reason="pod_deleted"))
    await wait_until(lambda: world.agent.book.of_pod("uid-fixed") is None, "the reservation to go")


async def test_a_restarted_kubelet_gets_its_devices_back_and_pods_stay(
    world: World, kubelet: SimKubelet, api: InMemoryApi
) -> None:
    api.create(pod("stay", container(env=REFERENCE), notes={DEVICES: UUIDS[0]}), node="node-1")
    await running(api, "stay")
    await kubelet.restart()
    await offered(api, "20", "20")
    assert seen_by(kubelet, "stay") == (UUIDS[0],)
    api.create(pod("after", container(env=REFERENCE), notes={DEVICES: UUIDS[1]}), node="node-1")
    await running(api, "after")


async def test_a_deleted_socket_is_made_again_and_registered(world: World, api: InMemoryApi) -> None:
    before = world.agent.link.registrations
    world.agent.plugin.socket.unlink()
    await wait_until(lambda: world.agent.link.registrations > before, "another registration")
    assert world.agent.plugin.socket.exists()
    await offered(api, "20", "20")


async def test_a_kubelet_that_comes_late_is_waited_for(folder: Path, api: InMemoryApi, backend: SimulatedBackend) -> None:
    (folder / "device-plugins").mkdir()
    async with agent_on(folder, backend) as world:
        await wait_until(lambda: world.agent.link.trouble, "the agent to miss the kubelet")
        await settled(world)
        assert world.publisher.of(NodeRegistered)
        async with kubelet_on(folder, api):
            await offered(api, "20", "20")


async def test_a_full_disk_takes_nothing_from_the_kubelet(
    world: World, folder: Path, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    await settled(world)
    in_the_way = folder / "state" / "agent-state.new"
    in_the_way.mkdir()
    backend.strike(UUIDS[0], 79)
    await offered(api, "20", "10")
    await wait_until(lambda: world.agent.memory.trouble, "the disk to be found full")
    in_the_way.rmdir()
    await wait_until(lambda: not world.agent.memory.trouble, "the state to be saved after all")
    await settled(world)
    assert StateFile(folder / "state").load().cards[UUIDS[0]].health is Health.UNHEALTHY


async def test_a_handshake_is_answered_with_the_digest_of_what_was_told(world: World) -> None:
    await LogVoice(world.store).say(HandshakeRequested(nonce="n-1", why="test"))
    await wait_until(lambda: world.publisher.of(HandshakeReported), "the answer")
    await settled(world)
    [answer] = world.publisher.of(HandshakeReported)
    [told] = world.publisher.of(NodeRegistered)
    assert (answer.nonce, answer.digest) == ("n-1", device_set_digest(told.devices))
    assert (answer.epoch, world.publisher.resent) == (7, [])


async def test_a_container_is_told_of_soon_without_waiting_for_the_timer(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    lazy = msgspec.structs.replace(QUICK, delivery_s=60.0)
    async with agent_on(folder, backend, timing=lazy) as world:
        await connected(kubelet, world)
        made = api.create(pod("pod", container()), node="node-1")
        await wait_until(lambda: world.agent.delivery.strangers, "devices without a reservation")
        await LogVoice(world.store).say(AllocationReserved(reservation=reservation(made["metadata"]["uid"], UUIDS[:1])))
        await wait_until(lambda: world.publisher.of(AllocationPrepared), "prepared")


async def test_what_the_log_has_not_seen_is_sent_again_when_it_asks(world: World) -> None:
    await LogVoice(world.store).say(HandshakeRequested(nonce="n-1", why="gap", seen_epoch=6, seen_seq=41))
    await wait_until(lambda: world.publisher.of(HandshakeReported), "the answer")
    assert world.publisher.resent == [(6, 41)]


async def test_without_a_checkpoint_running_containers_are_found_by_name_and_nothing_is_thrown_away(
    world: World, kubelet: SimKubelet, folder: Path, api: InMemoryApi
) -> None:
    made = api.create(pod("pod", container()), node="node-1")
    await running(api, "pod")
    (kubelet.plugin_dir / "kubelet_internal_checkpoint").write_text("not one")
    cache = folder / "hooks/vgpu/containers/allocate-99"
    cache.mkdir(parents=True)
    os.utime(cache, (0, 0))
    await LogVoice(world.store).say(AllocationReserved(reservation=reservation(made["metadata"]["uid"], UUIDS[:1])))
    await wait_until(lambda: world.publisher.of(AllocationPrepared), "prepared")
    await settled(world)
    [event] = world.publisher.of(AllocationPrepared)
    assert (event.owner_uid, event.container, len(event.device_ids)) == (made["metadata"]["uid"], "main", 1)
    assert cache.exists()


@pytest.mark.parametrize("why", [StoreUnavailable("away"), StoreUnsafe("this Redis user may not do that")])
async def test_a_store_that_is_away_or_refuses_us_takes_nothing_from_the_kubelet(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend, why: HamiError
) -> None:
    async with agent_on(folder, backend, store=StoreAway(why)):
        await offered(api, "20", "20")
        backend.strike(UUIDS[0], 79)
        await offered(api, "20", "10")
        api.create(pod("pod", container(env=REFERENCE), notes={DEVICES: UUIDS[1]}), node="node-1")
        await running(api, "pod")
        assert seen_by(kubelet, "pod") == (UUIDS[1],)


async def test_the_agent_keeps_its_lease(world: World) -> None:
    [epoch] = (await world.store.leases.alive(["node-1"])).values()
    assert epoch == "7"


async def test_the_library_is_mounted_read_only_with_a_folder_that_no_other_has(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    hooks = folder / "hooks/vgpu"
    hooks.mkdir(parents=True)
    for name in ("libvgpu.so", "ld.so.preload"):
        (hooks / name).touch()
    folders = set()
    for life in range(2):
        async with agent_on(folder, backend) as world:
            await connected(kubelet, world)
            api.create(pod(f"pod-{life}", container()), node="node-1")
            await running(api, f"pod-{life}")
            view = kubelet.runtime.view(f"pod-{life}", "main")
            assert view is not None
            assert view.made_folders == ()
            mounts = {inside: (host, read_only) for inside, host, read_only in view.mounts}
            assert mounts["/etc/ld.so.preload"] == (str(hooks / "ld.so.preload"), True)
            host, read_only = mounts[str(hooks)]
            assert not read_only
            folders.add(host)
    assert len(folders) == 2


@pytest.mark.parametrize("installed", [True, False])
async def test_a_node_without_the_library_says_that_nothing_holds_containers_to_their_limits(
    folder: Path, backend: SimulatedBackend, installed: bool
) -> None:
    hooks = folder / "hooks" / "vgpu"
    hooks.mkdir(parents=True)
    if installed:
        (hooks / "libvgpu.so").touch()
    with capture_logs() as said:
        async with agent_on(folder, backend) as world:
            await wait_until(lambda: world.publisher.of(NodeRegistered), "registration")
    assert [each["folder"] for each in said if "no interception library" in each["event"]] == (
        [] if installed else [str(hooks)]
    )


async def test_excluded_cards_are_offered_to_nobody(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    settings = msgspec.structs.replace(settings_for(folder), exclude_indexes="1", split_count=3)
    async with agent_on(folder, backend, settings=settings) as world:
        await offered(api, "3", "3")
        await settled(world)
        [event] = world.publisher.of(NodeRegistered)
        assert [device.uuid for device in event.devices] == UUIDS[:1]


async def test_what_goes_along_with_any_device_is_in_everybodys_answer(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    settings = msgspec.structs.replace(settings_for(folder), gdrcopy=True, imex_channels="0")
    async with agent_on(folder, backend, settings=settings) as world:
        await connected(kubelet, world)
        api.create(pod("pod", container(env=REFERENCE), notes={DEVICES: UUIDS[0]}), node="node-1")
        await running(api, "pod")
        view = kubelet.runtime.view("pod", "main")
        assert view is not None
        assert (view.env["NVIDIA_GDRCOPY"], view.env["NVIDIA_IMEX_CHANNELS"]) == ("enabled", "0")
        assert view.visible_devices == (UUIDS[0],)


async def test_settings_without_a_node_are_refused(folder: Path, backend: SimulatedBackend) -> None:
    settings = msgspec.structs.replace(settings_for(folder), node_name="")
    with pytest.raises(InvalidInput, match=r"agent\.node_name"):
        async with agent_on(folder, backend, settings=settings, store=MemoryStore()):
            pass
