"""EventWriter over every Log: each event once, whatever happens to the answer."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import anyio
import pytest

from hami.domain.allocation import PodOwner, Reservation
from hami.domain.errors import Conflict, Fenced, HamiError, StaleFence, StoreUnavailable
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import AllocationReserved
from hami.events.catalog.journal import GapAccepted
from hami.events.catalog.node import NodeLost
from hami.events.envelope import START, Envelope, chain_of
from hami.events.log import Appended, Draft, Duplicate, Fence, Log
from hami.events.memory import MemoryLog
from hami.events.store import Store
from hami.events.writer import EventWriter
from tests.support.drafts import lost


class LossyLog(MemoryLog):
    """Only `append` differs, and it goes to the log under test: it can lose the request, or only the answer."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log
        self.lose_requests = self.lose_answers = 0
        self.read, self.head, self.last_of = log.read, log.head, log.last_of  # type: ignore[method-assign]
        self.at_or_before, self.now = log.at_or_before, log.now  # type: ignore[method-assign]

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate:
        if self.lose_requests:
            self.lose_requests -= 1
            raise StoreUnavailable("request lost")
        answer = await self.log.append(envelopes, entities, expected=expected, fence=fence, feeds=feeds)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("answer lost")
        return answer


@pytest.fixture
def lossy(store: Store) -> LossyLog:
    return LossyLog(store.log)


@pytest.fixture
async def writer(lossy: LossyLog) -> EventWriter:
    writer = EventWriter(lossy, "control", retry_for_s=2, retry_every_s=0.01)
    await writer.start()
    return writer


async def reasons(store: Store) -> list[str]:
    records = await store.log.read(START)
    return [r.event.reason for r in records if isinstance(r.event, NodeLost)]


async def test_appends_move_versions_and_chain_their_envelopes(store: Store, writer: EventWriter) -> None:
    head = await store.log.head()
    answer = await writer.append([lost("n1"), lost("n1"), lost("n2")])
    assert dict(answer.versions) == {"node/n1": 2, "node/n2": 1}
    records = await store.log.read(head)
    assert [r.position for r in records] == list(answer.positions)
    assert [r.envelope.id for r in records] == ["control/1/1", "control/1/2", "control/1/3"]
    chain = ""
    for record in records:
        chain = chain_of(chain, record.envelope.id, bytes(record.envelope.data))
        assert record.envelope.chain == chain


async def test_before_start_it_refuses(store: Store) -> None:
    with pytest.raises(HamiError):
        await EventWriter(store.log, "control").append([lost()])


@pytest.mark.parametrize("count", [1, 3])
async def test_a_lost_answer_is_found_again_with_positions_and_versions(
    store: Store, lossy: LossyLog, writer: EventWriter, count: int
) -> None:
    await writer.append([lost("n1", "before")])
    lossy.lose_answers, lossy.lose_requests = 2, 1
    answer = await writer.append([lost("n1", str(i)) for i in range(count)])
    assert dict(answer.versions) == {"node/n1": count + 1}
    assert answer.positions[-1] == await store.log.head()
    assert len(answer.positions) == count
    assert await reasons(store) == ["before", *(str(i) for i in range(count))]


async def test_an_outcome_still_unknown_at_the_deadline_never_swallows_the_next_event(store: Store, lossy: LossyLog) -> None:
    writer = EventWriter(lossy, "control", retry_for_s=0, retry_every_s=0.01)
    await writer.start()
    lossy.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        await writer.append([lost("n1", "landed")])
    lossy.lose_requests = 1
    with pytest.raises(StoreUnavailable):
        await writer.append([lost("n1", "never arrived")])
    await writer.append([lost("n1", "next")])
    assert await reasons(store) == ["landed", "next"]


async def test_refusals_leave_the_sequence_unused(store: Store, writer: EventWriter) -> None:
    with pytest.raises(Conflict) as conflict:
        await writer.append([lost()], expected={"node/n1": 5})
    assert conflict.value.actual == {"node/n1": 0}
    with pytest.raises(StaleFence):
        await writer.append([lost()], fence=Fence("n1", "pod", 1))
    await writer.append([lost()], expected={"node/n1": 0})
    assert (await store.log.last_of("control"))[:2] == (1, 1)


async def test_a_second_process_under_the_same_name_fences_the_first(store: Store, writer: EventWriter) -> None:
    await writer.append([lost()])
    second = EventWriter(store.log, "control")
    assert await second.start() == 2
    await second.append([lost()])
    with pytest.raises(Fenced):
        await writer.append([lost()])


async def test_two_that_took_the_same_epoch_are_told_apart(store: Store) -> None:
    first, second = EventWriter(store.log, "control"), EventWriter(store.log, "control")
    assert await first.start() == await second.start()
    await first.append([lost("n1", "first")])
    with pytest.raises(Fenced):
        await second.append([lost("n1", "second")])
    assert await reasons(store) == ["first"]


async def test_concurrent_appends_are_all_written_in_sequence(store: Store, writer: EventWriter) -> None:
    async with anyio.create_task_group() as tasks:
        for i in range(20):
            tasks.start_soon(writer.append, [lost("n1", str(i)), lost("n1", str(i))])
    found = await reasons(store)
    assert sorted(found) == sorted(str(i) for i in range(20) for _ in range(2))
    assert found[::2] == found[1::2]


async def test_a_cancelled_append_disturbs_nothing(store: Store, writer: EventWriter) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await writer.append([lost("n1", "cancelled")])
    await writer.append([lost("n1", "next")])
    assert (await reasons(store))[-1] == "next"


async def test_reservations_reach_their_nodes_feed_and_others_do_not(store: Store, writer: EventWriter) -> None:
    reservation = Reservation(
        id="r-1",
        owner=PodOwner("u-1", "team", "pod"),
        node="n1",
        containers=(),
        scheduler="control",
        deadline_ms=EpochMs(1),
    )
    answer = await writer.append([Draft(event=AllocationReserved(reservation=reservation), node="n1"), lost("n1")])
    assert dict(answer.versions) == {"node/n1": 2, "pod/u-1": 1, "quota/team": 1}
    with anyio.fail_after(10):
        async for batch in store.feed("n1").tail("0-0"):
            if batch:
                assert [envelope.type for _, envelope in batch] == [AllocationReserved.TYPE]
                break


async def test_events_that_the_store_lost_after_acknowledging_are_named(store: Store, lossy: LossyLog) -> None:
    """As after a failover: our writer is ahead of what the log holds."""
    shadow = MemoryLog()
    lossy.log = shadow
    writer = EventWriter(lossy, "control")
    await writer.start()
    await writer.append([lost("n1", "a")])
    lossy.log = store.log
    await writer.append([lost("n1", "b")])
    records = await store.log.read(START)
    events = [r.event for r in records if r.envelope.producer == "control"]
    assert isinstance(events[0], GapAccepted)
    assert (events[0].producer, events[0].first_seq, events[0].last_seq) == ("control", 1, 1)
    assert await reasons(store) == ["b"]
