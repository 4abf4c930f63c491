"""What every Log promises."""

from collections.abc import Sequence

import anyio
import pytest

from hami.domain.errors import Conflict, Fenced, GapFound, HistoryChanged, InvalidInput, StaleFence
from hami.events.catalog.node import NodeLost
from hami.events.envelope import START, Position
from hami.events.lease import Held
from hami.events.log import Appended, Duplicate, Fence, Record
from hami.events.store import Store
from tests.support.drafts import sealed


async def appended(store: Store, *seqs: int, node: str = "n1", epoch: int = 1, producer: str = "p") -> Appended:
    envelopes = [sealed(seq, node=node, epoch=epoch, producer=producer) for seq in seqs]
    answer = await store.log.append(envelopes, [(f"node/{node}",)] * len(seqs))
    assert isinstance(answer, Appended)
    return answer


async def test_reads_back_in_order_with_gapless_counter_and_versions(store: Store) -> None:
    before = await store.log.head()
    await appended(store, 1, 2)
    await appended(store, 1, node="n2", producer="q")
    records = await store.log.read(before)
    assert [(r.envelope.id, r.position.g - before.g, dict(r.versions)) for r in records] == [
        ("p/1/1", 1, {"node/n1": 1}),
        ("p/1/2", 2, {"node/n1": 2}),
        ("q/1/1", 3, {"node/n2": 1}),
    ]
    assert records[0].event == NodeLost()
    assert (await store.log.head()) == records[-1].position


async def test_the_same_sequence_number_again_is_a_duplicate_that_names_the_first_entry(store: Store) -> None:
    first = await appended(store, 1)
    assert await store.log.append([sealed(1)], [("node/n1",)]) == Duplicate(first.positions[0].entry)
    await appended(store, 2)
    assert await store.log.append([sealed(1)], [("node/n1",)]) == Duplicate("")
    assert (await store.log.last_of("p"))[:2] == (1, 2)


async def test_a_skipped_sequence_number_is_a_gap_with_the_last_one_seen(store: Store) -> None:
    await appended(store, 1, 2)
    with pytest.raises(GapFound) as found:
        await store.log.append([sealed(4)], [()])
    assert (found.value.last_epoch, found.value.last_seq) == (1, 2)


async def test_a_batch_that_is_known_in_part_is_a_gap_and_writes_nothing(store: Store) -> None:
    await appended(store, 1, 2)
    head = await store.log.head()
    with pytest.raises(GapFound) as found:
        await store.log.append([sealed(2), sealed(3)], [(), ()])
    assert found.value.last_seq == 2
    assert await store.log.head() == head


async def test_a_new_epoch_starts_at_one_and_fences_the_old(store: Store) -> None:
    await appended(store, 1)
    with pytest.raises(GapFound) as found:
        await store.log.append([sealed(2, epoch=2)], [()])
    assert (found.value.last_epoch, found.value.last_seq) == (2, 0)
    await appended(store, 1, epoch=2)
    with pytest.raises(Fenced):
        await store.log.append([sealed(2)], [()])


async def test_unmet_expectations_conflict_with_the_actual_versions_and_write_nothing(store: Store) -> None:
    await appended(store, 1)
    head = await store.log.head()
    with pytest.raises(Conflict) as found:
        await store.log.append([sealed(2)], [("node/n1",)], expected={"node/n1": 0, "quota/team": 0})
    assert found.value.actual == {"node/n1": 1, "quota/team": 0}
    assert await store.log.head() == head
    answer = await store.log.append([sealed(2)], [("node/n1",)], expected={"node/n1": 1, "quota/team": 0})
    assert isinstance(answer, Appended)
    assert dict(answer.versions) == {"node/n1": 2}


async def test_one_append_may_name_thousands_of_entities(store: Store) -> None:
    count = 2_500
    names = [f"pod/p{i}" for i in range(count)]
    await store.log.append([sealed(1)], [(names[7], names[2_400])])
    envelopes = [sealed(seq) for seq in range(2, count + 2)]
    moves = [(name, "node/n1") for name in names]
    expected = dict.fromkeys(names, 0)
    with pytest.raises(Conflict) as found:
        await store.log.append(envelopes, moves, expected=expected)
    assert {name for name, version in found.value.actual.items() if version} == {names[7], names[2_400]}
    answer = await store.log.append(envelopes, moves, expected=expected | {names[7]: 1, names[2_400]: 1})
    assert isinstance(answer, Appended)
    assert dict(answer.versions) == dict.fromkeys(names, 1) | {names[7]: 2, names[2_400]: 2, "node/n1": count}
    last = (await store.log.read(answer.positions[-2]))[0]
    assert (dict(last.versions), last.position) == ({names[-1]: 1, "node/n1": count}, answer.positions[-1])


async def test_an_append_under_a_lock_needs_that_lock(store: Store) -> None:
    held = await store.locks.acquire("n1", "pod-a", ttl_ms=60_000)
    assert isinstance(held, Held)
    await store.log.append([sealed(1)], [()], fence=Fence("n1", "pod-a", held.token))
    for wrong in (Fence("n1", "pod-b", held.token), Fence("n1", "pod-a", held.token + 1), Fence("n2", "pod-a", 1)):
        with pytest.raises(StaleFence):
            await store.log.append([sealed(2)], [()], fence=wrong)
    await store.locks.release(held)
    with pytest.raises(StaleFence):
        await store.log.append([sealed(2)], [()], fence=Fence("n1", "pod-a", held.token))


async def test_refusals_come_in_the_promised_order(store: Store) -> None:
    await appended(store, 1, epoch=2)
    bad = Fence("n1", "nobody", 1)
    with pytest.raises(Fenced):
        await store.log.append([sealed(9)], [()], expected={"node/n1": 9}, fence=bad)
    with pytest.raises(GapFound):
        await store.log.append([sealed(9, epoch=2)], [()], expected={"node/n1": 9}, fence=bad)
    with pytest.raises(StaleFence):
        await store.log.append([sealed(2, epoch=2)], [()], expected={"node/n1": 9}, fence=bad)


async def test_read_stops_at_its_limit_and_goes_on_from_there(store: Store) -> None:
    before = await store.log.head()
    await appended(store, *range(1, 8))
    seen: list[int] = []
    at = before
    while batch := await store.log.read(at, limit=3):
        assert len(batch) <= 3
        seen += [r.envelope.seq for r in batch]
        at = batch[-1].position
    assert seen == list(range(1, 8))


async def test_tail_gives_what_is_there_and_what_comes(store: Store) -> None:
    before = await store.log.head()
    await appended(store, 1, 2)
    seen: list[int] = []

    async def follow() -> None:
        async for batch in store.log.tail(before):
            seen.extend(r.envelope.seq for r in batch)
            if len(seen) == 4:
                return

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await appended(store, 3)
            await appended(store, 4)
    assert seen == [1, 2, 3, 4]


async def test_tail_says_that_it_is_alive_at_the_head(store: Store) -> None:
    with anyio.fail_after(10):
        async for batch in store.log.tail(await store.log.head()):
            assert list(batch) == []
            break


async def test_a_cancelled_tail_loses_nothing(store: Store) -> None:
    at, seen = await store.log.head(), []

    async def some(after: Position) -> Sequence[Record]:
        async for batch in store.log.tail(after):
            if batch:
                return batch
        return ()

    for seq in range(1, 6):
        with anyio.move_on_after(0.02):
            await some(at)
        await appended(store, seq)
        batch = await some(at)
        seen += [r.envelope.seq for r in batch]
        at = batch[-1].position
    assert seen == [1, 2, 3, 4, 5]


async def test_tail_refuses_a_place_that_the_log_never_reached(store: Store) -> None:
    head = await store.log.head()
    ahead = Position(head.g + 5, f"{await store.log.now() + 60_000}-0")
    with anyio.fail_after(10), pytest.raises(HistoryChanged):
        async for _ in store.log.tail(ahead):
            pass


async def test_finds_the_last_position_of_a_time(store: Store) -> None:
    assert await store.log.at_or_before((await store.log.head()).recorded_ms) == await store.log.head()
    last = (await appended(store, 1, 2, 3)).positions[-1]
    assert await store.log.at_or_before(last.recorded_ms) == last
    assert (await store.log.at_or_before(await store.log.now())).g == last.g
    first = (await store.log.read(START, limit=1))[0].position
    assert await store.log.at_or_before(type(first.recorded_ms)(first.recorded_ms - 1)) == START


async def test_a_producer_that_never_wrote_is_at_zero(store: Store) -> None:
    assert await store.log.last_of("never") == (0, 0, "")


async def test_only_marked_events_go_to_their_nodes_feed(store: Store) -> None:
    envelopes = [sealed(1, node="n1"), sealed(2, node="n2"), sealed(3, node="n1")]
    await store.log.append(envelopes, [(), (), ()], feeds=[True, True, False])
    with anyio.fail_after(10):
        async for batch in store.feed("n1").tail("0-0"):
            if batch:
                assert [envelope.seq for _, envelope in batch] == [1]
                break


@pytest.mark.parametrize("name", ['quota/a"b', "quota/a\\b", "quota/a\nb", "producer/p", "incarnation"])
async def test_an_entity_that_would_not_read_back_is_refused(store: Store, name: str) -> None:
    head = await store.log.head()
    with pytest.raises(InvalidInput, match="entity"):
        await store.log.append([sealed(1)], [(name,)])
    assert await store.log.head() == head
