"""What every Group promises."""

import anyio
import pytest

from hami.domain.errors import HistoryChanged
from hami.events.envelope import START, Position
from hami.events.group import Group
from hami.events.log import Record
from hami.events.store import Store
from tests.support.drafts import sealed
from tests.support.waiting import wait_until


async def written(store: Store, count: int, *, after: int = 0) -> list[Position]:
    """So many events of one producer, one append each; their places in the log."""
    positions: list[Position] = []
    for seq in range(after + 1, after + count + 1):
        answer = await store.log.append([sealed(seq)], [()])
        positions += answer.positions  # type: ignore[union-attr]  # none is a duplicate
    return positions


async def fetched(group: Group, count: int) -> list[Record]:
    """So many new entries, which may come in several batches."""
    found: list[Record] = []
    with anyio.fail_after(10):
        while len(found) < count:
            found += await group.new()
    return found


def entries(records: list[Record]) -> list[str]:
    return [record.position.entry for record in records]


async def test_a_group_that_is_not_there_says_so(store: Store) -> None:
    group = store.group("g", "one")
    assert await group.state() is None
    with pytest.raises(HistoryChanged, match="no consumer group g"):
        await group.new()
    with pytest.raises(HistoryChanged, match="no consumer group g"):
        await group.claim(idle_ms=0)


async def test_a_group_begins_where_it_was_created_and_only_once(store: Store) -> None:
    head = (await written(store, 2))[-1]
    group = store.group("g", "one")
    assert await group.create(head) is True
    assert await group.create(START) is False
    (third,) = await written(store, 1, after=2)
    (record,) = await fetched(group, 1)
    assert record.position == third
    assert record.envelope.seq == 3
    state = await group.state()
    assert state is not None
    assert (state.last, state.pending) == (third.entry, 1)


async def test_entries_go_to_one_consumer_in_order(store: Store) -> None:
    one, other = store.group("g", "one"), store.group("g", "other")
    await one.create(await store.log.head())
    positions = await written(store, 3)
    assert [record.position for record in await one.new(limit=2)] == positions[:2]
    assert [record.position for record in await fetched(other, 1)] == positions[2:]
    assert list(await other.new()) == []


async def test_new_waits_for_what_comes(store: Store) -> None:
    group = store.group("g", "one")
    await group.create(await store.log.head())
    got: list[Record] = []

    async def read() -> None:
        got.extend(await fetched(group, 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await written(store, 1)
    assert [record.envelope.seq for record in got] == [1]


async def test_what_was_acknowledged_is_pending_no_more(store: Store) -> None:
    group = store.group("g", "one")
    await group.create(await store.log.head())
    first, second = (each.entry for each in await written(store, 2))
    await fetched(group, 2)
    await group.acknowledge([second])
    assert entries([*await group.claim(idle_ms=0)]) == [first]
    await group.acknowledge([first, "1-1"])
    await group.acknowledge([])
    assert list(await group.claim(idle_ms=0)) == []


async def test_a_dead_consumers_entries_are_claimed_whole_and_in_order(store: Store) -> None:
    dead, alive = store.group("g", "dead"), store.group("g", "alive")
    await dead.create(await store.log.head())
    await written(store, 3)
    records = await fetched(dead, 3)
    assert list(await alive.claim(idle_ms=600_000)) == []
    assert list(await alive.claim(idle_ms=0)) == records
    state = await alive.state()
    assert state is not None
    assert state.pending == 3


async def test_many_entries_are_claimed_at_once(store: Store) -> None:
    group = store.group("g", "one")
    await group.create(await store.log.head())
    batch = [sealed(seq) for seq in range(1, 1203)]
    await store.log.append(batch, [()] * len(batch))
    await fetched(group, 1202)
    claimed = await group.claim(idle_ms=0)
    assert [record.envelope.seq for record in claimed] == [*range(1, 1203)]


async def test_an_entry_left_lying_becomes_old_enough(store: Store) -> None:
    dead, alive = store.group("g", "dead"), store.group("g", "alive")
    await dead.create(await store.log.head())
    await written(store, 1)
    await fetched(dead, 1)

    async def claimed() -> bool:
        return len(await alive.claim(idle_ms=30)) == 1

    await wait_until(claimed, "the entry to lie for 30 ms")


async def test_groups_do_not_know_of_each_other(store: Store) -> None:
    one, other = store.group("g", "one"), store.group("h", "one")
    head = await store.log.head()
    await one.create(head)
    await other.create(head)
    await written(store, 1)
    assert len(await fetched(one, 1)) == len(await fetched(other, 1)) == 1
    await one.acknowledge(entries([*await one.claim(idle_ms=0)]))
    assert len(await other.claim(idle_ms=0)) == 1


async def test_burying_leaves_the_entry_pending(store: Store) -> None:
    group = store.group("g", "one")
    await group.create(await store.log.head())
    await written(store, 1)
    (record,) = await fetched(group, 1)
    await group.bury(record.position.entry, node="n1", to="webhook", raw=b"\x00{}", why="HTTP 400")
    assert len(await group.claim(idle_ms=0)) == 1
    assert list(await group.returned()) == []
    await group.forget("1-1")
