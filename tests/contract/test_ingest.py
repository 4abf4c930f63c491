"""From a node's outbox to the log: in order, once, and nothing bad gets in or holds the rest up."""

import anyio
import msgspec
import pytest

from hami.domain.units import EpochMs
from hami.events.catalog.allocation import AllocationPrepared, AllocationReleased
from hami.events.catalog.device import FaultKind, FaultObserved
from hami.events.catalog.handshake import HandshakeRequested
from hami.events.catalog.journal import GapAccepted, InputRejected
from hami.events.catalog.union import Event
from hami.events.codec import decode_event, seal
from hami.events.envelope import Envelope, Position, agent_name
from hami.events.ingester import Ingester
from hami.events.log import Draft
from hami.events.store import Store
from hami.events.writer import EventWriter
from tests.support.waiting import wait_until


def fault(code: int, device: str = "GPU-1") -> FaultObserved:
    return FaultObserved(device=device, kind=FaultKind.XID, code=code)


def sent(seq: int, event: Event | None = None, *, node: str = "n1", epoch: int = 1, producer: str = "") -> Envelope:
    draft = Draft(event=event or fault(seq), node=node)
    return seal(draft, producer=producer or agent_name(node), epoch=epoch, seq=seq, occurred_ms=EpochMs(seq))


@pytest.fixture
async def ingester(store: Store) -> Ingester:
    writer = EventWriter(store.log, "control")
    await writer.start()
    return Ingester(store.log, store.inboxes, writer)


@pytest.fixture
async def before(store: Store) -> Position:
    return await store.log.head()


async def logged(store: Store, after: Position) -> list[tuple[str, str]]:
    return [(r.envelope.id, r.envelope.type) for r in await store.log.read(after)]


async def left(store: Store, node: str = "n1") -> int:
    return len(await store.inboxes.peek(node))


async def test_events_keep_their_producer_and_number_and_move_their_nodes_version(
    store: Store, ingester: Ingester, before: Position
) -> None:
    await store.inbox("n1").put([sent(1), sent(2)])
    done = await ingester.ingest("n1")
    assert (done.appended, done.duplicates, await left(store)) == (2, 0, 0)
    records = await store.log.read(before)
    assert [(r.envelope.id, r.event, dict(r.versions)) for r in records] == [
        ("agent-n1/1/1", fault(1), {"node/n1": 1}),
        ("agent-n1/1/2", fault(2), {"node/n1": 2}),
    ]


async def test_what_is_sent_twice_is_in_the_log_once(store: Store, ingester: Ingester, before: Position) -> None:
    await store.inbox("n1").put([sent(1), sent(2)])
    await ingester.ingest("n1")
    await store.inbox("n1").put([sent(1), sent(2), sent(3)])
    done = await ingester.ingest("n1")
    assert (done.appended, done.duplicates, await left(store)) == (1, 2, 0)
    assert [identity for identity, _ in await logged(store, before)] == ["agent-n1/1/1", "agent-n1/1/2", "agent-n1/1/3"]


async def test_several_replicas_at_once_append_each_event_once(store: Store, before: Position) -> None:
    await store.inbox("n1").put([sent(seq) for seq in range(1, 251)])
    ingesters = []
    for name in ("a", "b", "c"):
        writer = EventWriter(store.log, name)
        await writer.start()
        ingesters.append(Ingester(store.log, store.inboxes, writer))
    async with anyio.create_task_group() as tasks:
        for each in ingesters:
            tasks.start_soon(each.ingest, "n1")
    assert [r.envelope.seq for r in await store.log.read(before)] == list(range(1, 251))
    assert await left(store) == 0


async def test_an_event_that_agents_may_not_write_is_replaced_in_its_place(
    store: Store, ingester: Ingester, before: Position
) -> None:
    forged = AllocationReleased(reservation="r-1", owner_uid="u-1", reason="pod_deleted")
    await store.inbox("n1").put([sent(1), sent(2, forged), sent(3)])
    done = await ingester.ingest("n1")
    assert (done.appended, done.rejected, await left(store)) == (3, 1, 0)
    assert [kind for _, kind in await logged(store, before)] == [FaultObserved.TYPE, InputRejected.TYPE, FaultObserved.TYPE]
    rejected = (await store.log.read(before))[1]
    assert isinstance(rejected.event, InputRejected)
    assert "may not write hami.allocation.released" in rejected.event.why
    assert dict(rejected.versions) == {}


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(sent(2), type="hami.of.tomorrow"),
        msgspec.structs.replace(sent(2), data=msgspec.Raw(b'{"device": 7}')),
        sent(2, GapAccepted(producer="agent-n2", first_seq=1, last_seq=2)),
    ],
    ids=["unknown type", "undecodable", "another's gap"],
)
async def test_one_bad_payload_does_not_stop_the_others(
    store: Store, ingester: Ingester, before: Position, bad: Envelope
) -> None:
    await store.inbox("n1").put([sent(1), bad, sent(3)])
    await ingester.ingest("n1")
    assert [kind for _, kind in await logged(store, before)] == [FaultObserved.TYPE, InputRejected.TYPE, FaultObserved.TYPE]
    assert await left(store) == 0


async def test_an_agent_cannot_speak_for_another_node(store: Store, ingester: Ingester, before: Position) -> None:
    await store.inbox("n1").put([sent(1, node="n2"), msgspec.structs.replace(sent(1), node="n2")])
    done = await ingester.ingest("n1")
    assert (done.buried, done.appended, await left(store)) == (1, 1, 0)
    records = await store.log.read(before)
    said = next(r.event for r in records if isinstance(r.event, InputRejected))
    assert (said.source, said.field) == ("inbox of n1", "producer")
    assert [r.envelope.node for r in records if r.envelope.producer == "agent-n1"] == ["n1"]
    assert (await store.log.last_of("agent-n2")) == (0, 0, "")


async def test_an_agent_moves_no_other_entity_than_its_node(store: Store, ingester: Ingester, before: Position) -> None:
    prepared = AllocationPrepared(reservation="r", owner_uid="somebody-elses", namespace="team", container="main")
    await store.inbox("n1").put([sent(1, prepared)])
    await ingester.ingest("n1")
    assert [dict(r.versions) for r in await store.log.read(before)] == [{"node/n1": 1}]


async def test_an_old_epoch_is_dropped_and_the_new_one_goes_on(store: Store, ingester: Ingester, before: Position) -> None:
    await store.inbox("n1").put([sent(1, epoch=2), sent(2, epoch=1), sent(2, epoch=2)])
    done = await ingester.ingest("n1")
    assert (done.appended, done.fenced, await left(store)) == (2, 1, 0)


async def test_a_gap_is_asked_for_through_the_feed_once(store: Store, ingester: Ingester, before: Position) -> None:
    await store.inbox("n1").put([sent(1), sent(3)])
    await store.inbox("n1").put([sent(4)])
    done = await ingester.ingest("n1")
    assert (done.appended, done.gaps) == (1, 2)
    await store.inbox("n1").put([sent(4)])
    await ingester.ingest("n1")
    asked = [r.event for r in await store.log.read(before) if isinstance(r.event, HandshakeRequested)]
    assert [(each.seen_epoch, each.seen_seq) for each in asked] == [(1, 1)]
    with anyio.fail_after(10):
        async for batch in store.feed("n1").tail("0-0"):
            if batch:
                assert decode_event(batch[0][1]) == asked[0]
                break
    await store.inbox("n1").put([sent(seq) for seq in (2, 3, 4)])
    assert (await ingester.ingest("n1")).appended == 3


async def test_run_serves_every_node_that_rings(store: Store, ingester: Ingester, before: Position) -> None:
    nodes = ["n1", "n2", "n3"]
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ingester.run)
            for node in nodes:
                await store.inbox(node).put([sent(1, node=node)])
            seen: set[str] = set()
            left: list[int] = []
            async for batch in store.log.tail(before):
                seen |= {r.envelope.node for r in batch}
                if seen == set(nodes):
                    break

            async def emptied() -> bool:
                left[:] = [len(await store.inboxes.peek(node)) for node in nodes]
                return left == [0, 0, 0]

            await wait_until(emptied, "the inboxes emptied")
            tasks.cancel_scope.cancel()
    assert (seen, left) == (set(nodes), [0, 0, 0])
