"""What every Retention promises, and what a Log promises once it is trimmed."""

import anyio
import pytest

from hami.domain.errors import Conflict, HistoryChanged, HistoryTrimmed
from hami.domain.units import EpochMs
from hami.events.codec import decode_record
from hami.events.envelope import START, Position
from hami.events.log import Appended
from hami.events.store import Store
from tests.support.archiving import retention_of, write
from tests.support.drafts import lost, sealed


async def pod_moved(store: Store, *seqs: int, pod: str = "u1") -> Appended:
    answer = await store.log.append([sealed(seq) for seq in seqs], [(f"pod/{pod}",)] * len(seqs))
    assert isinstance(answer, Appended)
    return answer


async def test_entries_are_the_bytes_that_the_log_reads(store: Store) -> None:
    written = await write(store, [lost(), lost("n2"), lost("n3")])
    raw = await (await retention_of(store)).entries(written[0].entry, limit=1)
    assert [each.entry for each in raw] == [written[1].entry]
    assert decode_record(*raw[0]) == (await store.log.read(written[0], limit=1))[0]


async def test_trimming_goes_from_the_oldest_in_steps_and_never_beyond_what_was_said(store: Store) -> None:
    written = await write(store, [lost() for _ in range(10)])
    retention, head = await retention_of(store), await store.log.head()
    before = written[6].entry
    steps = []
    while gone := await retention.trim(before, most=4):
        steps.append(gone)
    assert steps == ([4, 2] if written[0].g == 1 else [4, 3])
    assert [each.entry for each in await retention.entries("0-0")] == [each.entry for each in written[6:]]
    assert await store.log.head() == head
    assert await retention.trim("0-0") == 0


async def test_a_trimmed_log_is_not_read_as_if_it_began_there(store: Store) -> None:
    written = await write(store, [lost() for _ in range(5)])
    assert (await store.log.read(START))[0].position.g == 1
    while await (await retention_of(store)).trim(written[2].entry):
        pass
    first = written[2]
    with pytest.raises(HistoryTrimmed, match=f"history begins at g:{first.g} ") as trimmed:
        await store.log.read(START)
    assert (trimmed.value.g, trimmed.value.entry) == (first.g, first.entry)
    with pytest.raises(HistoryTrimmed):
        await store.log.at_or_before(EpochMs(1))
    with anyio.fail_after(5):
        with pytest.raises(HistoryTrimmed):
            async for _ in store.log.tail(START):
                pass
        with pytest.raises(HistoryChanged):
            async for _ in store.log.tail(written[0]):
                pass


async def test_a_trimmed_log_goes_on_for_whoever_stands_at_its_edge_or_in_it(store: Store) -> None:
    written = await write(store, [lost() for _ in range(5)])
    while await (await retention_of(store)).trim(written[2].entry):
        pass
    for at in (1, 2, 3):
        assert [each.position for each in await store.log.read(written[at])] == written[at + 1 :]
        with anyio.fail_after(5):
            async for batch in store.log.tail(written[at]):
                assert [each.position for each in batch] == written[at + 1 :]
                break
    more = await write(store, [lost()], producer="another")
    assert more[0].g == written[-1].g + 1
    assert await store.log.at_or_before(written[-1].recorded_ms) in [*written[2:], *more]


async def test_trimming_everything_keeps_the_counter(store: Store) -> None:
    written = await write(store, [lost() for _ in range(3)])
    while await (await retention_of(store)).trim(f"{written[-1].recorded_ms + 1}-0"):
        pass
    assert (await store.log.head()).g == written[-1].g
    assert (await write(store, [lost()], producer="another"))[0].g == written[-1].g + 1


async def test_checkpoints_of_every_fold_are_seen_both_of_them(store: Store) -> None:
    retention = await retention_of(store)
    assert list(await retention.checkpoints()) == []
    for g in (1, 2, 3):
        await store.checkpoints.save("cluster", Position(g, f"{g}-0"), "A", "schema", b"x")
    await store.checkpoints.save("alerts", Position(9, "9-0"), "B", "schema", b"x")
    found = sorted((each.fold, each.position.g, each.incarnation) for each in await retention.checkpoints())
    assert found == [("alerts", 9, "B"), ("cluster", 2, "A"), ("cluster", 3, "A")]


async def test_notes_are_kept_and_an_empty_one_is_gone(store: Store) -> None:
    retention = await retention_of(store)
    await retention.note({"a": "1", "b": "2"})
    await retention.note({"a": "", "c": "3"})
    await retention.note({})
    assert dict(await retention.notes()) == {"b": "2", "c": "3"}


# Forgetting versions


async def test_a_pod_is_forgotten_only_at_the_version_given(store: Store) -> None:
    retention = await retention_of(store)
    await pod_moved(store, 1, 2)
    assert await retention.forget({"pod/u1": 1}) == 0
    with pytest.raises(Conflict):
        await store.log.append([sealed(3)], [("pod/u1",)], expected={"pod/u1": 0})
    assert await retention.forget({"pod/u1": 2, "pod/never": 1}) == 1
    assert await retention.forget({"pod/u1": 2}) == 0
    answer = await store.log.append([sealed(3)], [("pod/u1",)], expected={"pod/u1": 0})
    assert isinstance(answer, Appended)
    assert dict(answer.versions) == {"pod/u1": 1}


async def test_a_replica_that_still_knows_a_forgotten_pod_conflicts(store: Store) -> None:
    retention = await retention_of(store)
    await pod_moved(store, 1, 2)
    await retention.forget({"pod/u1": 2})
    head = await store.log.head()
    for old_view in (1, 2):
        with pytest.raises(Conflict) as refused:
            await store.log.append([sealed(3)], [("pod/u1",)], expected={"pod/u1": old_view})
        assert refused.value.actual == {"pod/u1": 0}
    assert await store.log.head() == head


async def test_nothing_but_pods_is_ever_forgotten(store: Store) -> None:
    retention = await retention_of(store)
    await store.log.append([sealed(1)], [("node/n1", "quota/q")])
    assert await retention.forget({"node/n1": 1, "quota/q": 1, "g": 1, "producer/p": 1}) == 0
    with pytest.raises(Conflict) as refused:
        await store.log.append([sealed(2)], [()], expected={"node/n1": 0, "quota/q": 0})
    assert refused.value.actual == {"node/n1": 1, "quota/q": 1}
    assert (await store.log.last_of("p"))[:2] == (1, 1)


# Groups


async def test_every_group_is_seen_with_what_it_still_needs(store: Store) -> None:
    retention, written = await retention_of(store), await write(store, [lost() for _ in range(6)])
    assert list(await retention.groups()) == []
    idle, busy = store.group("idle", "me"), store.group("busy", "me")
    await idle.create(written[1])
    await busy.create(written[1])
    handed = [each.position.entry for each in await busy.new(limit=3)]
    assert handed == [each.entry for each in written[2:5]]
    found = {each.name: (each.last, each.pending, each.needs) for each in await retention.groups()}
    assert found == {
        "idle": (written[1].entry, "", written[1].entry),
        "busy": (written[4].entry, written[2].entry, written[2].entry),
    }
    await busy.acknowledge([handed[0], handed[2]])
    assert [each.needs for each in await retention.groups() if each.name == "busy"] == [written[3].entry]
    await busy.acknowledge(handed)
    assert [each.needs for each in await retention.groups() if each.name == "busy"] == [written[4].entry]


async def test_a_group_that_was_left_behind_is_handed_what_is_still_there(store: Store) -> None:
    retention, written = await retention_of(store), await write(store, [lost() for _ in range(6)])
    group = store.group("slow", "me")
    await group.create(START)
    while await retention.trim(written[3].entry):
        pass
    assert [each.position for each in await group.new()] == written[3:]
