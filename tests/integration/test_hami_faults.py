"""Faults of HAMi v2.10.0 that need a cluster to show: what HAMi does, from its source, and what hami answers.

Those with a recorded answer of HAMi are in tests/conformance/test_hami_faults.py.
"""

import json

import pytest

from hami.events.catalog.allocation import AllocationLapsed, AllocationReleased, AllocationReserved
from hami.events.catalog.device import DeviceCordoned
from hami.events.lease import Held
from hami.scheduler import texts
from tests.integration.test_scheduler import WHOLE
from tests.support.builders import a_device
from tests.support.objects import pod as pod_object
from tests.support.scheduler import World
from tests.support.waiting import wait_until


async def test_b6_a_cordon_counts_at_the_next_decision(world: World) -> None:
    """HAMi reads it from a copy of the Node object that it renews only when the node registers anew."""
    await world.add_node("n1", a_device("GPU-a"), a_device("GPU-b"))
    pod = await world.add_pod("p1", limits={"nvidia.com/gpu": "2"})
    async with world.scheduler() as caller:
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        await world.kube.patch_node("n1", {"metadata": {"annotations": {"hami.io/device-cordon": "GPU-b"}}})
        await world.seen(DeviceCordoned)
        await world.settled(caller)
        found = await caller.filter(pod, ["n1"])
        assert found["FailedNodes"] == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardCordoned"}
        await world.write(DeviceCordoned(device="GPU-a", actor="kim"), node_name="n1", subject="GPU-a")
        await world.settled(caller)
        assert (await caller.filter(pod, ["n1"]))["FailedNodes"] == {"n1": "2/2 CardCordoned"}


async def test_b7_a_pod_past_admission_is_not_bound_without_accounting(world: World) -> None:
    """HAMi takes `9999Gi` for no request at all: every node passes and the pod runs uncounted."""
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9999999Ti"})
    async with world.scheduler() as caller:
        found = await caller.filter(pod, ["n1"])
        assert not found["NodeNames"]
        assert "nvidia.com/gpumem" in found["Error"]
        assert await caller.bind(pod, "n1") == texts.NO_RESERVATION
    assert "nodeName" not in (await world.pod_of("p1"))["spec"]


async def test_b8_a_node_with_a_name_longer_than_a_label_is_scheduled_to(world: World) -> None:
    """HAMi writes the name as a label, the API refuses it, and filter answers an error for ever."""
    name = "n" * 64
    await world.add_node(name)
    await world.add_node("short")
    pod, other = await world.add_pod("p1"), await world.add_pod("p2")
    async with world.scheduler() as caller:
        for made, where in ((pod, name), (other, "short")):
            assert (await caller.filter(made, [where]))["NodeNames"] == [where]
            assert await caller.bind(made, where) == ""
    long, short = (await world.pod_of("p1"))["metadata"], (await world.pod_of("p2"))["metadata"]
    assert long["annotations"]["hami.io/vgpu-node"] == name
    assert "hami.io/vgpu-node" not in long.get("labels", {})
    assert short["labels"]["hami.io/vgpu-node"] == "short"


async def test_b9_a_filter_call_without_any_candidates_gets_an_answer(world: World) -> None:
    """HAMi's handler panics and the connection drops. A pod without devices gets what it was asked with."""
    await world.add_node("n1")
    pod, plain = await world.add_pod("p1"), await world.add_pod("plain", limits={"cpu": "1"})
    async with world.scheduler() as caller:
        status, body = await caller.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": None})
        assert status == 200
        assert json.loads(body)["Error"] == "NodeNames: None: neither Nodes nor NodeNames is given"
        assert (await caller.filter(pod, []))["NodeNames"] is None
        items = {"items": [{"metadata": {"name": "n1"}}]}
        _, body = await caller.post("/filter", {"Pod": plain, "Nodes": items, "NodeNames": None})
        assert [each["metadata"]["name"] for each in json.loads(body)["Nodes"]["items"]] == ["n1"]


@pytest.mark.parametrize("restart", [None, "Always"], ids=["init", "sidecar"])
async def test_b10_devices_in_init_containers_only_take_the_node_lock_too(world: World, restart: str | None) -> None:
    """HAMi looks at the app containers and locks nothing."""
    await world.add_node("n1")
    made = pod_object("p1", namespace="default", limits={"cpu": "1"})
    asking = {"name": "init", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}}
    made["spec"]["initContainers"] = [asking | ({"restartPolicy": restart} if restart else {})]
    made["spec"]["schedulerName"] = "hami-scheduler"
    pod = await world.kube.create_pod(made)
    async with world.scheduler(bind_wait_s=0.2) as caller:
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        held = await world.store.locks.acquire("n1", "somebody", ttl_ms=60_000)
        assert isinstance(held, Held)
        assert await caller.bind(pod, "n1") == texts.LOCK_BUSY
        await world.store.locks.release(held)
        assert await caller.bind(pod, "n1") == ""
    notes = (await world.pod_of("p1"))["metadata"]["annotations"]
    assert notes["hami.io/vgpu-devices-allocated"] == "GPU-n1,NVIDIA,1000,0:;;"


async def test_a_pod_recreated_under_its_name_inherits_neither_lock_nor_devices(world: World) -> None:
    """HAMi's locks and patches know namespace and name, not the uid."""
    await world.add_node("n1")
    old = await world.add_pod("web-0", limits=WHOLE)
    async with world.scheduler(bind_wait_s=0.2) as caller:
        assert (await caller.filter(old, ["n1"]))["NodeNames"] == ["n1"]
        held = await world.store.locks.acquire("n1", old["metadata"]["uid"], ttl_ms=60_000)
        assert isinstance(held, Held)
        await world.kube.delete_pod("default", "web-0", grace=0)
        fresh = await world.add_pod("web-0", limits=WHOLE)
        [released] = await world.seen(AllocationReleased)
        assert released.owner_uid == old["metadata"]["uid"]

        async def free() -> bool:
            return await world.store.locks.state("n1") is None

        await wait_until(free, "the lock of the old pod to be free")
        await world.settled(caller)
        assert await caller.bind(fresh, "n1") == texts.NO_RESERVATION
        assert (await caller.filter(fresh, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(fresh, "n1") == ""
    assert [each.reservation.owner.uid for each in await world.events(AllocationReserved)] == [
        old["metadata"]["uid"],
        fresh["metadata"]["uid"],
    ]


async def test_a_refused_second_filter_frees_what_the_pod_had_reserved_and_leaves_no_trace_on_it(world: World) -> None:
    """In HAMi the annotations go on claiming devices that are no longer reserved."""
    await world.add_node("n1")
    pod, other = await world.add_pod("p1", limits=WHOLE), await world.add_pod("p2", limits=WHOLE)
    async with world.scheduler() as caller:
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert not (await caller.filter(pod, ["absent"]))["NodeNames"]
        assert "annotations" not in (await world.pod_of("p1"))["metadata"]
        await world.settled(caller)
        assert (await caller.filter(other, ["n1"]))["NodeNames"] == ["n1"]
    [lapsed] = await world.events(AllocationLapsed)
    assert (lapsed.owner_uid, lapsed.reason) == (pod["metadata"]["uid"], "replaced")
