"""`hami explain` over what a real scheduler wrote."""

import json
import sys
from typing import Any

import anyio

from hami.domain.device import Device
from hami.domain.units import CorePercent, MiB, Slots
from hami.events.catalog.allocation import AllocationReserved
from hami.events.catalog.governance import LockWaitTimedOut, PlacementRefused
from hami.events.lease import Held
from hami.kube.kinds import QUOTAS
from tests.support.builders import a_device
from tests.support.cli import ROOT
from tests.support.scheduler import World


def small(uuid: str) -> Device:
    return a_device(uuid, memory=MiB(16000), cores=CorePercent(100), slots=Slots(4))


async def explain(world: World, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "hami.cli", "--redis-url", world.redis.url, "explain", *arguments]
    ran = await anyio.run_process(command, cwd=ROOT, check=False)
    assert ran.returncode == code, ran.stderr.decode()
    return (ran.stdout if code == 0 else ran.stderr).decode()


async def document(world: World, *arguments: str) -> Any:
    return json.loads(await explain(world, *arguments, "-o", "json"))


def asks(memory: int, count: int = 1) -> dict[str, str]:
    return {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory)}


async def test_a_pending_pod_is_told_what_it_lacks_in_numbers(world: World) -> None:
    await world.add_node("n1", small("GPU-a"))
    await world.add_node("n2", small("GPU-b"), small("GPU-c"))
    async with world.scheduler() as caller:
        taken = await world.add_pod("taken", limits=asks(12000))
        assert (await caller.filter(taken, ["n1"]))["NodeNames"] == ["n1"]
        big = await world.add_pod("big", limits=asks(20000))
        assert not (await caller.filter(big, ["n1", "n2"]))["NodeNames"]
        await world.seen(PlacementRefused)
        found = await document(world, "pod", "default/big")
        assert (found["pending"], found["status"]) == (True, "pending: no node fits")
        [line] = found["reasons"]
        assert (line["reason"], line["nodes"], line["asked"]) == ("CardInsufficientMemory", 2, "20000 MiB per card")
        assert line["best"].startswith("16000 MiB (GPU-")
        assert "free 4000 MiB more on one card" in line["change"]
        assert set(found["nodes_that_do_not"]) == {"n1", "n2"}
        assert "CardInsufficientMemory on 2" in found["last_refusal"]
        text = await explain(world, "pod", big["metadata"]["uid"])
        assert "pending: no node fits" in text
        assert "main: 1 x NVIDIA, 20000 MiB" in text


async def test_a_pod_that_would_fit_by_now_says_so_and_a_placed_one_where_it_is(world: World) -> None:
    await world.add_node("n1", small("GPU-a"))
    async with world.scheduler() as caller:
        first, second = [await world.add_pod(name, limits=asks(12000)) for name in ("first", "second")]
        assert (await caller.filter(first, ["n1"]))["NodeNames"] == ["n1"]
        assert not (await caller.filter(second, ["n1"]))["NodeNames"]
        await world.seen(PlacementRefused)
        placed = await document(world, "pod", "default/first")
        assert (placed["node"], placed["status"]) == ("n1", "placed, waiting to be bound")
        assert "GPU-a (12000 MiB" in placed["notes"][0]
        assert await caller.bind(first, "n1") == ""
        await world.settled(caller)
        assert (await document(world, "pod", "default/first"))["status"].startswith("bound")
        await world.add_node("n2", small("GPU-b"))
        waiting = await document(world, "pod", "default/second")
        assert waiting["nodes_that_fit"] == ["n2"]
        assert "1 of 2 nodes would fit now" in waiting["status"]


async def test_a_quota_in_the_way_is_named_with_its_numbers(world: World) -> None:
    await world.add_node("n1", small("GPU-a"))
    quota = {"metadata": {"name": "team", "namespace": "default"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "10000"}}}
    await world.kube.create(QUOTAS, quota)
    async with world.scheduler() as caller:
        pod = await world.add_pod("p1", limits=asks(12000))
        assert not (await caller.filter(pod, ["n1"]))["NodeNames"]
        await world.seen(PlacementRefused)
        found = await document(world, "pod", "default/p1")
        [quota] = found["quotas"]
        assert (quota["quota"], quota["asked"], quota["used"], quota["limit"], quota["exceeded"]) == (
            "team",
            12000,
            0,
            10000,
            True,
        )
        assert "raise ResourceQuota team of default by 2000 memory MiB" in found["reasons"][0]["change"]


async def test_a_lock_in_the_way_is_named_with_its_holder_and_age(world: World) -> None:
    await world.add_node("n1", small("GPU-a"))
    async with world.scheduler(bind_wait_s=0.2) as caller:
        pod = await world.add_pod("p1", limits=asks(1000))
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        held = await world.store.locks.acquire("n1", "somebody", ttl_ms=60_000)
        assert isinstance(held, Held)
        assert await caller.bind(pod, "n1") != ""
        await world.seen(LockWaitTimedOut)
        found = await document(world, "pod", "default/p1")
        [lock] = found["locks"]
        assert (lock["lock"], lock["holder"], lock["this_pod"]) == ("n1", "somebody", "would have to wait")
        assert lock["age_ms"] > 0
        assert "a bind gave up waiting for the lock of n1, held by somebody" in found["notes"]
        text = await explain(world, "pod", "default/p1")
        assert "HELD FOR" in text
        assert "somebody" in text


async def test_a_past_placement_is_decided_again_on_the_state_and_by_the_rules_of_that_day(world: World) -> None:
    await world.add_node("n1", small("GPU-a"))
    await world.add_node("n2", small("GPU-b"))
    async with world.scheduler(node_policy="binpack") as caller:
        first = await world.add_pod("first", limits=asks(1000))
        second = await world.add_pod("second", limits=asks(2000))
        tiny = await world.add_pod("tiny", limits=asks(100))
        for pod in (first, second, tiny):
            assert (await caller.filter(pod, ["n1", "n2"]))["NodeNames"] == ["n1"]
        big = await world.add_pod("big", limits=asks(15000))
        assert (await caller.filter(big, ["n1", "n2"]))["NodeNames"] == ["n2"]
        offered_less = await world.add_pod("less", limits=asks(100))
        assert (await caller.filter(offered_less, ["n1"]))["NodeNames"] == ["n1"]
    async with world.scheduler(node_policy="spread") as caller:
        await world.settled(caller)
    again = await document(world, "placement", "default/second")
    assert (again["node"], again["winner_of_all_nodes"]) == ("n1", "n1")
    assert (again["same_node"], again["same_cards"], again["verdict"]) == (True, True, "the same: node and cards")
    scores = {each["node"]: each["score"] for each in again["candidates"]}
    assert scores["n1"] == again["score"] > scores["n2"] == 0
    big_again = await document(world, "placement", "default/big")
    assert (big_again["node"], big_again["same_node"]) == ("n2", True)
    assert {each["node"]: each["reason"] for each in big_again["candidates"]}["n1"].endswith("CardInsufficientMemory")
    less = await document(world, "placement", "default/less")
    assert (less["same_node"], less["winner_of_all_nodes"]) == (False, "n2")
    assert less["verdict"].startswith("1 of 2 nodes that fit rank before n1")
    made = (await world.events(AllocationReserved))[0].reservation
    text = await explain(world, "placement", made.id)
    assert f"reservation {made.id} of default/first" in text
    assert "decided again: the same: node and cards" in text


async def test_who_is_not_in_the_log_is_not_found(world: World) -> None:
    await world.add_node("n1")
    assert "the log knows no pod default/nobody" in await explain(world, "pod", "default/nobody", code=4)
    async with world.scheduler() as caller:
        pod = await world.add_pod("huge", limits=asks(10**6))
        assert not (await caller.filter(pod, ["n1"]))["NodeNames"]
        await world.seen(PlacementRefused)
    assert "never had a reservation" in await explain(world, "placement", "default/huge", code=4)
