"""A replica that has not read the log up to its head: it says so, gives nothing out, and asks for the head before it denies."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from hami.events.catalog.allocation import AllocationBound, AllocationReserved
from hami.events.catalog.device import DeviceCordoned, DeviceUncordoned
from hami.events.log import Draft
from hami.events.redis.embedded import EmbeddedServer
from hami.scheduler import texts
from tests.integration.test_scheduler import WHOLE
from tests.support.holding_proxy import HoldingProxy, holding_proxy
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until

CASES: dict[str, Any] = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data/pain-cases.json").read_text())
}

PATIENT: dict[str, Any] = {"max_staleness_s": 60, "command_timeout_s": 5.0}
"""Two event loops' work in one: what is slow here is the machine, not the store."""


@pytest.fixture
async def behind(valkey_server: EmbeddedServer, world: World) -> AsyncIterator[tuple[HoldingProxy, str]]:
    """A way to the world's store on which reading the log can be held up, and its URL."""
    path = str(valkey_server.folder / "held.sock")
    async with holding_proxy(path, str(valkey_server.socket), b"XREAD\r\n") as proxy:
        yield proxy, f"unix://{path}"


async def test_restart_01_nothing_is_given_out_before_the_head_is_reached(
    world: World, behind: tuple[HoldingProxy, str]
) -> None:
    case = CASES["restart-01-not-ready"]
    proxy, url = behind
    await world.add_node("n1")
    behind_by = int(case["given"]["stream_tail_id"].split("-")[0]) - int(case["given"]["projection_at"].split("-")[0])
    there_and_back = [
        Draft(event=DeviceCordoned(device="GPU-n1", actor="kim"), node="n1", subject="GPU-n1"),
        Draft(event=DeviceUncordoned(device="GPU-n1", actor="kim"), node="n1", subject="GPU-n1"),
    ]
    await world.writer.append(there_and_back * (behind_by // 2))
    early, ok = await world.add_pod("u-early"), await world.add_pod("u-ok")
    proxy.hold()
    async with world.scheduler(wait_ready=False, redis_url=url, **PATIENT) as caller:

        async def says_so() -> bool:
            return await caller.refusal(early, ["n1"]) == texts.REPLAYING

        await wait_until(says_so, "the reason that it replays")
        assert await caller.readyz() == (503, {"ready": False, "reasons": {"ready": texts.REPLAYING}})
        assert await caller.bind(early, "n1") == texts.REPLAYING
        for verb, body in (
            ("/prioritize", {"Pod": early, "NodeNames": ["n1"]}),
            ("/preempt", {"Pod": early, "NodeNameToMetaVictims": {"n1": {"Pods": []}}}),
        ):
            assert await caller.post(verb, body) == (503, texts.REPLAYING.encode() + b"\n")
        assert await world.events(AllocationReserved) == []
        proxy.release()

        async def ready() -> bool:
            return (await caller.readyz())[0] == 200

        await wait_until(ready, "the head reached", timeout=20)
        answer = await caller.filter(ok, ["n1"])
        assert answer["NodeNames"] == ["n1"], answer
    [reserved] = await world.events(AllocationReserved)
    assert reserved.reservation.owner.uid == ok["metadata"]["uid"]


async def _bind_while_behind(proxy: HoldingProxy, caller: Caller, pod: Obj, node: str) -> str:
    """The answer of a bind that is asked while the replica is behind and can go on only when it reads again."""
    answers: list[str] = []

    async def bind() -> None:
        answers.append(await caller.bind(pod, node))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bind)
        for _ in range(3):
            await caller.metrics()
        assert answers == [], "answered from a view that is behind"
        proxy.release()
    return answers[0]


async def test_bind_asks_for_the_head_before_it_says_that_there_is_no_reservation(
    world: World, behind: tuple[HoldingProxy, str]
) -> None:
    proxy, url = behind
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits=WHOLE)
    async with world.scheduler(id="a") as a, world.scheduler(id="b", redis_url=url, **PATIENT) as b:
        proxy.hold()
        assert (await a.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await _bind_while_behind(proxy, b, pod, "n1") == ""
    assert (await world.pod_of("p1"))["spec"]["nodeName"] == "n1"


async def test_bind_does_not_take_a_reservation_that_was_moved_for_one_that_stands(
    world: World, behind: tuple[HoldingProxy, str]
) -> None:
    proxy, url = behind
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1", limits=WHOLE)
    async with world.scheduler(id="a") as a, world.scheduler(id="b", redis_url=url, **PATIENT) as b:
        assert (await a.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        await world.settled(b)
        proxy.hold()
        assert (await a.filter(pod, ["n2"]))["NodeNames"] == ["n2"]
        assert await _bind_while_behind(proxy, b, pod, "n1") == texts.NO_RESERVATION
        assert "nodeName" not in (await world.pod_of("p1"))["spec"]
        assert await world.events(AllocationBound) == []
        assert await b.bind(pod, "n2") == ""


async def test_a_bind_that_cannot_reach_the_head_says_that_and_not_that_there_is_no_reservation(
    world: World, behind: tuple[HoldingProxy, str]
) -> None:
    proxy, url = behind
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits=WHOLE)
    async with world.scheduler(id="a") as a, world.scheduler(id="b", redis_url=url, **PATIENT) as b:
        proxy.hold()
        assert (await a.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await b.bind(pod, "n1") == texts.BEHIND
        proxy.release()
        await world.settled(b)
        assert await b.bind(pod, "n1") == ""


async def test_a_decision_on_an_old_view_is_a_conflict_counted_and_taken_again(
    world: World, behind: tuple[HoldingProxy, str]
) -> None:
    proxy, url = behind
    await world.add_node("n1")
    first, second = await world.add_pod("p1", limits=WHOLE), await world.add_pod("p2", limits=WHOLE)
    answers: list[Obj] = []
    async with world.scheduler(id="a") as a, world.scheduler(id="b", redis_url=url, **PATIENT) as b:
        proxy.hold()
        assert (await a.filter(first, ["n1"]))["NodeNames"] == ["n1"]

        async def ask() -> None:
            answers.append(await b.filter(second, ["n1"]))

        async def conflicted() -> bool:
            return await b.metric('hami_append_conflicts_total{by="filter"}') >= 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await wait_until(conflicted, "the conflict counted")
            assert answers == []
            proxy.release()
        assert answers[0]["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
    assert len(await world.events(AllocationReserved)) == 1
