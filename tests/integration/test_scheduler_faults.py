"""What a scheduler says when it cannot know: starting, store away, view stale, nodes lost, malformed bodies. It never hangs."""

import json
from functools import partial

import anyio
import pytest

from hami.domain.errors import Fenced
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import AllocationLapsed, AllocationReserved
from hami.events.catalog.handshake import HandshakeExpired, HandshakeRequested
from hami.events.catalog.node import NodeBack, NodeLost
from hami.events.redis.client import Client
from hami.events.redis.meta import initialise, start_incarnation
from hami.scheduler import texts
from hami.sim.apiserver.faults import Fault
from tests.integration.test_scheduler import WHOLE
from tests.support.builders import a_device
from tests.support.redis_server import WHEEL, running_server
from tests.support.scheduler import Caller, World
from tests.support.waiting import wait_until


async def _ready(caller: Caller) -> bool:
    return (await caller.readyz())[0] == 200


@pytest.mark.simulated
async def test_before_the_inventory_is_seen_it_is_not_ready_and_filter_says_so(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    slow = world.sim.faults.add(Fault(path="/api/v1/resourcequotas", status=503))
    async with world.scheduler(wait_ready=False) as caller:

        async def answered() -> bool:
            return await caller.refusal(pod, ["n1"]) == texts.NO_INVENTORY

        await wait_until(answered, "the reason")
        status, body = await caller.readyz()
        assert status == 503
        assert body == {"ready": False, "reasons": {"ready": texts.NO_INVENTORY}}
        assert await caller.bind(pod, "n1") == texts.NO_INVENTORY
        assert (await caller.post("/prioritize", {"Pod": pod, "NodeNames": ["n1"]}))[0] == 503
        world.sim.faults.remove(slow)
        await wait_until(partial(_ready, caller), "ready")
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
    assert len(await world.events(AllocationReserved)) == 1


async def test_without_a_store_it_answers_at_once_and_comes_up_when_there_is_one(world: World) -> None:
    pod = await world.add_pod("p1")
    async with world.scheduler(wait_ready=False, redis_url="redis://127.0.0.1:1/0") as caller:
        with anyio.fail_after(2):

            async def named() -> bool:
                return await caller.refusal(pod, ["n1"]) == texts.STORE_AWAY

            await wait_until(named, "the store named as the reason")
        status, body = await caller.readyz()
        assert status == 503
        assert texts.STORE_AWAY in body["reasons"]["core"]
        status, body_ = await caller.post("/mutate", _review(pod))
        assert json.loads(body_)["response"]["allowed"] is True


def _review(pod: dict[str, object]) -> dict[str, object]:
    request = {"uid": "u", "operation": "CREATE", "namespace": "default", "resource": {"resource": "pods"}, "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def test_a_store_that_goes_and_comes_back(world: World) -> None:
    with running_server(WHEEL) as server:
        async with Client(server.url, block_s=0.2) as client:
            await initialise(client)
            own = world.on(client)
            await own.writer.start()
            await own.add_node("n1")
            pod = await own.add_pod("p1", limits=WHOLE)
            async with own.scheduler() as caller:
                assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
                server.kill()
                with anyio.fail_after(10):

                    async def refused() -> bool:
                        with anyio.fail_after(5):
                            return await caller.refusal(pod, ["n1"]) == texts.STORE_AWAY

                    await wait_until(refused, "the store named as the reason")
                assert (await caller.readyz())[0] == 503
                await server.start()
                await wait_until(partial(_ready, caller), "ready again", timeout=20)
                answer = await caller.filter(pod, ["n1"])
                assert answer["NodeNames"] == ["n1"], answer["Error"]
                assert await caller.bind(pod, "n1") == ""


async def test_a_silent_store_makes_the_view_stale_and_filter_never_hangs(world: World) -> None:
    with running_server(WHEEL) as server:
        async with Client(server.url, block_s=0.2) as client:
            await initialise(client)
            own = world.on(client)
            await own.writer.start()
            await own.add_node("n1")
            pod = await own.add_pod("p1")
            async with own.scheduler(max_staleness_s=0.4) as caller:
                server.pause()
                with anyio.fail_after(15):
                    errors: set[str] = set()
                    while errors != {texts.STORE_AWAY}:
                        with anyio.fail_after(5):
                            errors = {(await caller.filter(pod, ["n1"]))["Error"]}
                        assert errors <= {texts.STORE_AWAY, texts.STALE, texts.SLOW, ""}
                server.resume()
                await wait_until(partial(_ready, caller), "ready again", timeout=20)


async def test_what_a_store_forgot_in_a_failover_is_not_given_out_again(world: World) -> None:
    """The log comes back without its last events, as an asynchronous replica has it; the pods of those events run on."""
    keys = [world.redis.keys.log, world.redis.keys.heads]
    await world.add_node("n1")
    async with world.scheduler(reconcile_s=3600) as caller:
        older = [await world.redis.command.call("DUMP", key) for key in keys]
        pod, other = await world.add_pod("p1", limits=WHOLE), await world.add_pod("p2", limits=WHOLE)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""
        await world.settled(caller)
        await world.redis.command.pipeline([("RESTORE", key, 0, was, "REPLACE") for key, was in zip(keys, older, strict=True)])

        async def adopted() -> bool:
            assert not (await caller.filter(other, ["n1"]))["NodeNames"]
            known = [each.reservation.owner.uid for each in await world.events(AllocationReserved)]
            return known == [pod["metadata"]["uid"]]

        await wait_until(adopted, "the running pod to be in the log again", timeout=20)
        await wait_until(partial(_ready, caller), "ready again", timeout=20)
        assert (await caller.filter(other, ["n1"]))["FailedNodes"]["n1"].startswith("1/1 ")


async def test_another_incarnation_is_looked_at_afresh(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await start_incarnation(world.redis)
        fresh = world.on(world.redis)
        await fresh.writer.start()

        async def works() -> bool:
            return (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"] and await _ready(caller)

        await wait_until(works, "a core for the new incarnation", timeout=20)


async def test_two_processes_under_one_id_do_not_both_write(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    with pytest.RaisesGroup(Fenced, flatten_subgroups=True, allow_unwrapped=True):
        async with world.scheduler(id="same") as first, world.scheduler(id="same") as second:
            assert (await first.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            assert (await second.filter(pod, ["n1"]))["Error"] == texts.STORE_UNSAFE
            with anyio.fail_after(5):
                await anyio.sleep_forever()


async def test_a_lost_node_is_left_out_until_it_is_back(world: World) -> None:
    await world.add_node("n1", lease=False)
    await world.store.leases.keep("n1", "agent", ttl_ms=300)
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        await world.seen(NodeLost)
        await world.settled(caller)
        found = await caller.filter(pod, ["n1"])
        assert found["FailedNodes"] == {"n1": "node lost: its agent's lease expired"}
        await world.store.leases.keep("n1", "agent", ttl_ms=60_000)
        await world.seen(NodeBack)
        await world.settled(caller)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
    assert len(await world.events(NodeLost)) == 1


async def test_many_leases_gone_at_once_are_not_believed(world: World) -> None:
    for number in range(4):
        await world.add_node(f"n{number}", lease=number < 2)
    async with world.scheduler() as caller:

        async def frozen() -> bool:
            return await caller.metric("hami_sweeper_frozen") == 1

        await wait_until(frozen, "the sweeper to freeze")
        rounds = await caller.metric("hami_comparisons_total")

        async def later() -> bool:
            return await caller.metric("hami_comparisons_total") > rounds + 1

        await wait_until(later, "some time")
        assert await world.events(NodeLost) == []
        await world.store.leases.keep("n2", "agent", ttl_ms=60_000)
        assert [each.node for each in await world.lost(1)] == ["n3"]


async def test_a_reservation_that_is_never_bound_lapses(world: World) -> None:
    await world.add_node("n1")
    pod, other = await world.add_pod("p1", limits=WHOLE), await world.add_pod("p2", limits=WHOLE)
    async with world.scheduler(reservation_ttl_s=0.3) as caller:
        await caller.filter(pod, ["n1"])
        assert not (await caller.filter(other, ["n1"]))["NodeNames"]
        [lapsed] = await world.seen(AllocationLapsed)
        assert lapsed.reason == "deadline"
        await world.settled(caller)
        assert (await caller.filter(other, ["n1"]))["NodeNames"] == ["n1"]


async def test_each_node_is_asked_for_a_handshake_at_start_by_one_replica(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    async with world.scheduler(id="a"), world.scheduler(id="b"):
        asked = await world.seen(HandshakeRequested, 2)
    records = [each for each in await world.records() if isinstance(each.event, HandshakeRequested)]
    assert sorted(each.envelope.node for each in records) == ["n1", "n2"]
    assert all(each.deadline_ms > EpochMs(0) for each in asked)
    assert await world.events(HandshakeExpired) == []


def _asking(gpus: bytes) -> bytes:
    return b'"Pod":{"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"' + gpus + b'"}}}]}}'


ASKING = b'"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"Pod":{"metadata":{"name":"x","namespace":"d","uid":""},' + ASKING + b'},"NodeNames":["n1"]}', "Pod.metadata.uid"),
        (b'{"Pod":{"metadata":{"name":"x","uid":"u"},' + ASKING + b'},"NodeNames":["n1"]}', "Pod.metadata.namespace"),
        (
            b'{"Pod":{"metadata":{"name":"x","namespace":"d","uid":"' + b"u" * 300 + b'"},' + ASKING + b'},"NodeNames":["n1"]}',
            "must not have more than 253 characters",
        ),
        (b'{"Pod":{"spec":{"containers":[' + b'{"x":[' * 50_000, "recursion"),
        (b"", "truncated"),
        (b'{"Pod":{"metadata":{"name":"x"', "truncated"),
        (b'{"Pod":null,"NodeNames":["n1"]}', "extender args missing pod"),
        (b'{"Pod":{"metadata":{"uid":7}},"NodeNames":["n1"]}', "Pod.metadata.uid: 7"),
        (b"{" + _asking(b"1") + b',"NodeNames":[1]}', "NodeNames[0]"),
        (b"{" + _asking(b"1") + b"}", "NodeNames"),
        (b"{" + _asking(b"-1") + b',"NodeNames":["n1"]}', "nvidia.com/gpu"),
        (b"{" + _asking(b"x") + b',"NodeNames":["n1"]}', "nvidia.com/gpu"),
    ],
)
async def test_malformed_bodies_cost_only_their_sender(world: World, body: bytes, words: str) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        status, answer = await caller.post("/filter", body)
        assert status == 200
        assert words in json.loads(answer)["Error"]
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]


async def test_bodies_of_megabytes_and_thousands_of_names(world: World) -> None:
    await world.add_node("n1", a_device("GPU-n1", memory=10))
    pod = await world.add_pod("p1")
    pod["metadata"]["annotations"] = {"note": "x" * 2 * 2**20}
    names = [f"node-{number:05d}" for number in range(6000)] + ["n1"]
    async with world.scheduler() as caller:
        found = await caller.filter(pod, names)
        assert len(found["FailedNodes"]) == 6001
        assert found["FailedNodes"]["n1"] == "1/1 CardInsufficientMemory"
        status, text = await caller.post("/filter", b"x" * (65 * 2**20))
        assert status == 413
        assert b"over the limit of 67108864 bytes" in text
