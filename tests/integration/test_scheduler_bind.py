"""Bind when things go wrong: a slow API, a lost answer, another node, a pod that goes, a lock that is busy."""

import json
from functools import partial

import anyio
import msgspec
import pytest

from hami.domain.cluster import Delivery
from hami.domain.device import Health, MigPlacement, MigProfile, MigSlice
from hami.domain.units import CorePercent, MiB
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationPrepared,
    AllocationReleased,
    AllocationReserved,
)
from hami.events.catalog.device import DeviceCordoned, DeviceHealthChanged, MigInstanceCreated
from hami.events.catalog.governance import LockReclaimed, LockWaitTimedOut
from hami.events.catalog.node import NodeLost, NodeRegistered, NodeRemoved
from hami.events.catalog.union import Event
from hami.events.lease import Held
from hami.scheduler import texts
from hami.sim.apiserver.faults import Fault
from tests.integration.test_scheduler import WHOLE
from tests.support.builders import a_device
from tests.support.scheduler import World
from tests.support.waiting import wait_until

BINDING = "/pods/.*/binding"


@pytest.mark.simulated
async def test_an_answer_that_was_lost_is_found_out_by_reading_the_pod(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        world.sim.faults.add(Fault(method="POST", path=BINDING, drop_answer=True, times=1))
        assert await caller.bind(pod, "n1") == ""
    assert (await world.pod_of("p1"))["spec"]["nodeName"] == "n1"
    assert await world.events(AllocationFailed) == []


@pytest.mark.simulated
async def test_a_binding_of_unknown_outcome_keeps_the_devices_and_the_next_try_settles_it(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits=WHOLE)
    other = await world.add_pod("p2", limits=WHOLE)
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        lost = world.sim.faults.add(Fault(method="POST", path=BINDING, drop=True))
        assert await caller.bind(pod, "n1") == texts.BIND_UNKNOWN
        assert (await world.pod_of("p1"))["spec"].get("nodeName") is None
        # The late binding may still land: nobody else gets the card meanwhile.
        assert not (await caller.filter(other, ["n1"]))["NodeNames"]
        world.sim.faults.remove(lost)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""
    assert len(await world.events(AllocationBound)) == 1


@pytest.mark.simulated
async def test_a_binding_that_lands_after_the_caller_gave_up_is_a_success_next_time(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        world.sim.faults.add(Fault(method="POST", path=BINDING, delay=0.6, times=1))
        with anyio.move_on_after(0.2):
            await caller.bind(pod, "n1")
        await wait_until(partial(world.node_of, "p1"), "the late binding")
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""
    assert await world.events(AllocationLapsed) == []


async def test_a_pod_without_a_reservation_on_that_node_is_not_bound(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        assert await caller.bind(pod, "n1") == texts.NO_RESERVATION
        await caller.filter(pod, ["n1"])
        assert await caller.bind(pod, "n2") == texts.NO_RESERVATION
    assert "nodeName" not in (await world.pod_of("p1"))["spec"]


@pytest.mark.parametrize(
    "happened",
    [
        DeviceHealthChanged(device="GPU-n1", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="xid 79"),
        DeviceCordoned(device="GPU-n1", actor="operator"),
        NodeRegistered(vendor="NVIDIA", devices=(a_device("GPU-other"),)),
        NodeRegistered(vendor="NVIDIA", devices=(a_device("GPU-n1"),), node_uid="made-anew"),
        NodeLost(),
        NodeRemoved(),
    ],
    ids=["card fails", "card is cordoned", "card leaves", "node is another", "node is lost", "node is gone"],
)
async def test_what_happened_to_the_devices_since_filter_stops_the_bind(world: World, happened: Event) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits=WHOLE)
    async with world.scheduler(sweep_s=600) as caller:
        await caller.filter(pod, ["n1"])
        await world.write(happened, node_name="n1")
        await world.settled(caller)
        assert await caller.bind(pod, "n1") == texts.DEVICES_GONE
    assert await world.events(AllocationBound) == []
    assert "nodeName" not in (await world.pod_of("p1"))["spec"]


@pytest.mark.simulated
async def test_a_pod_bound_elsewhere_by_somebody_else_frees_its_devices(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        world.sim.faults.add(Fault(method="GET", path="/pods.*watch=", watch=True, delay=5.0))
        await world.kube.bind(uid=pod["metadata"]["uid"], namespace="default", name="p1", node="n2")
        assert await caller.bind(pod, "n1") != ""
    assert len(await world.events(AllocationFailed)) == 1
    assert (await world.pod_of("p1"))["spec"]["nodeName"] == "n2"


async def test_a_pod_that_was_replaced_under_its_name_is_not_bound(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        await world.kube.delete_pod("default", "p1", grace=0)
        fresh = await world.add_pod("p1")
        assert await caller.bind(pod, "n1") != ""
        assert await caller.bind(fresh, "n1") == texts.NO_RESERVATION
    assert "nodeName" not in (await world.pod_of("p1"))["spec"]


@pytest.mark.simulated
async def test_a_pod_deleted_in_the_middle_of_its_bind_frees_everything(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits=WHOLE)
    other = await world.add_pod("p2", limits=WHOLE)
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
        slow = world.sim.faults.add(Fault(method="POST", path=BINDING, delay=0.5, times=1))
        errors: list[str] = []

        async def bind() -> None:
            errors.append(await caller.bind(pod, "n1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bind)
            await wait_until(lambda: slow.hits, "the binding on its way")
            await world.kube.delete_pod("default", "p1", grace=0)
        assert errors != [""]
        ended = [*await world.events(AllocationReleased), *await world.events(AllocationFailed)]
        assert len(ended) == 1
        assert await world.store.locks.state("n1") is None
        await world.settled(caller)
        assert (await caller.filter(other, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(other, "n1") == ""


async def test_a_busy_lock_is_waited_for_within_the_budget_and_no_longer(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler(bind_wait_s=0.3) as caller:
        await caller.filter(pod, ["n1"])
        held = await world.store.locks.acquire("n1", "somebody", ttl_ms=60_000)
        assert isinstance(held, Held)
        assert await caller.bind(pod, "n1") == texts.LOCK_BUSY
        [waited] = await world.seen(LockWaitTimedOut)
        assert (waited.lock, waited.holder, waited.waiter) == ("n1", "somebody", pod["metadata"]["uid"])

        async def bind() -> None:
            assert await caller.bind(pod, "n1") == ""

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bind)
            await world.store.locks.release(held)


async def test_a_lock_whose_holder_died_is_taken_over_and_told(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler(bind_wait_s=3.0) as caller:
        await caller.filter(pod, ["n1"])
        await world.store.locks.acquire("n1", "dead", ttl_ms=200)
        assert await caller.bind(pod, "n1") == ""
        [reclaimed] = await world.seen(LockReclaimed)
        assert (reclaimed.lock, reclaimed.owner) == ("n1", "dead")


async def test_a_deleted_pods_lock_goes_to_the_next_at_once(world: World) -> None:
    await world.add_node("n1")
    holder = await world.add_pod("holder")
    pod = await world.add_pod("p1")
    async with world.scheduler(bind_wait_s=10.0) as caller:
        await caller.filter(holder, ["n1"])
        await caller.filter(pod, ["n1"])
        await world.store.locks.acquire("n1", holder["metadata"]["uid"], ttl_ms=60_000)

        async def bind() -> None:
            assert await caller.bind(pod, "n1") == ""

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bind)
                await world.kube.delete_pod("default", "holder", grace=0)
        [reclaimed] = await world.seen(LockReclaimed)
        assert reclaimed.owner == holder["metadata"]["uid"]


async def test_an_ordered_node_serves_one_pod_before_the_next_is_bound(world: World) -> None:
    await world.add_node("n1")
    ordered = NodeRegistered(vendor="NVIDIA", devices=(a_device("GPU-n1"),), delivery=Delivery.ORDERED)
    await world.write(ordered, node_name="n1")
    first, second = await world.add_pod("p1"), await world.add_pod("p2")
    async with world.scheduler(bind_wait_s=0.3) as caller:
        for pod in (first, second):
            await caller.filter(pod, ["n1"])
        assert await caller.bind(first, "n1") == ""
        assert await caller.bind(second, "n1") == texts.LOCK_BUSY
        [bound] = await world.events(AllocationBound)
        served = AllocationPrepared(
            reservation=bound.reservation, owner_uid=bound.owner_uid, namespace="default", container="main"
        )
        await world.write(served, node_name="n1")

        async def bind() -> bool:
            return await caller.bind(second, "n1") == ""

        await wait_until(bind, "the second pod bound")


async def test_a_mig_instance_is_made_before_the_binding_names_it(world: World) -> None:
    profile = MigProfile("1g.10gb", MiB(9728), CorePercent(14), 1, (MigPlacement(0, 1), MigPlacement(1, 1)))
    card = msgspec.structs.replace(a_device("GPU-n1", memory=81920), mode="mig", mig_profiles=(profile,))
    await world.add_node("n1", card)
    pod = await world.add_pod("p1", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"})
    async with world.scheduler() as caller:
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        errors: list[str] = []

        async def bind() -> None:
            errors.append(await caller.bind(pod, "n1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bind)
            [bound] = await world.seen(AllocationBound)
            assert "nodeName" not in (await world.pod_of("p1"))["spec"]
            [reserved] = await world.events(AllocationReserved)
            planned = reserved.reservation.containers[0].shares[0].mig
            made = MigSlice(planned.profile, planned.placement, "MIG-1")
            created = MigInstanceCreated(device="GPU-n1", instance=made, reservation=bound.reservation)
            await world.write(created, node_name="n1", subject="GPU-n1")
        assert errors == [""]
    notes = (await world.pod_of("p1"))["metadata"]["annotations"]
    assert notes["container.hami.io/main.visible-devices"] == "MIG-1"


async def test_malformed_binds_name_what_is_wrong(world: World) -> None:
    async with world.scheduler() as caller:
        for body, words in (
            (b"{", "truncated"),
            (b'{"PodName":"p","PodNamespace":"d","PodUID":3,"Node":"n"}', "PodUID: 3"),
            (b'{"PodName":"p","PodNamespace":"d","PodUID":null,"Node":"n"}', "PodUID"),
            (b'{"PodName":"p","PodNamespace":"d","PodUID":"u"}', "Node"),
        ):
            status, answer = await caller.post("/bind", body)
            assert status == 200
            assert words in json.loads(answer)["Error"]
