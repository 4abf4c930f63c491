"""`hami archive` on both stores: sealing through deaths, trimming, forgetting, one active replica."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from hami.domain.errors import ArchiveBroken, Conflict, StoreRefuses
from hami.events.catalog.journal import LogSealed, LogTruncated
from hami.events.codec import decode_record
from hami.events.envelope import START, Position
from hami.events.log import Draft, Record
from hami.events.memory import MemoryStore
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.events.store import Store
from hami.events.writer import EventWriter
from hami.projections.folds.allocations import RETIRED_FOR_MS
from tests.support.archiving import DAY_MS, HOUR_MS, Archiving, DyingDisk, archiving, core_of, killed_in, retention_of, write
from tests.support.builders import a_bound, a_draft, a_node_registered, a_prepared, a_released, a_reservation, a_reserved
from tests.support.drafts import lost
from tests.support.redis_server import fresh_client

STEPS = 5
"""What sealing one segment does to the disk."""


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, valkey_server: EmbeddedServer) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    async for client in fresh_client(valkey_server):
        yield RedisStore(client)


@pytest.fixture
async def archive(store: Store, tmp_path: Path) -> Archiving:
    return await archiving(store, tmp_path)


def drafts(count: int) -> list[Draft]:
    return [lost(f"n{number}") for number in range(count)]


async def everything(store: Store, archive: Archiving) -> list[Record]:
    """Archive, then what the log has beyond it."""
    archived = [decode_record(*raw) for raw in archive.folder.entries("0-0")]
    last = archived[-1].position if archived else START
    return [*archived, *await store.log.read(last, limit=10_000)]


async def seals(store: Store, archive: Archiving) -> list[str]:
    return [each.event.segment for each in await everything(store, archive) if isinstance(each.event, LogSealed)]


# Sealing


async def test_sealing_ends_when_only_its_own_words_are_left(store: Store, archive: Archiving) -> None:
    await write(store, drafts(10))
    archived = await archive.seal()
    assert archived.g >= 10
    again = await archive.seal()
    assert again == archived
    found = await archive.verify()
    assert (found.wrong, found.first_g, found.segments) == ("", 1, len(archive.folder.manifests()))
    assert await seals(store, archive) == [each.segment for each in archive.folder.manifests()]


async def test_young_and_few_entries_wait(store: Store, archive: Archiving) -> None:
    await archive.writer.start()
    await write(store, drafts(2))
    patient = archive.sealer(age_ms=HOUR_MS, settle_ms=0)
    await patient.begin()
    assert await patient.once() == 0
    archive.later_ms = HOUR_MS
    assert await patient.once() == 1
    await write(store, drafts(9), producer="another")
    archive.later_ms = 0
    unsettled = archive.sealer(settle_ms=HOUR_MS)
    await unsettled.begin()
    assert await unsettled.once() == 0
    archive.later_ms = HOUR_MS + 60_000
    assert await unsettled.once() >= 2


@pytest.mark.parametrize("steps", range(4 * STEPS))
async def test_whatever_step_it_dies_in_every_entry_is_sealed_once(store: Store, tmp_path: Path, steps: int) -> None:
    await write(store, drafts(9))
    doomed = await archiving(store, tmp_path, disk=DyingDisk(steps))
    died = await killed_in(doomed.seal)
    assert died or steps >= 2 * STEPS
    next_life = await archiving(store, tmp_path)
    await write(store, drafts(3), producer="another")
    archived = await next_life.seal()
    found = await next_life.verify()
    assert (found.wrong, found.first_g) == ("", 1)
    assert archived.g >= 12
    assert await seals(store, next_life) == [each.segment for each in next_life.folder.manifests()]
    assert next_life.folder.sweep() == []


async def test_another_stores_folder_is_refused(archive: Archiving, tmp_path: Path) -> None:
    await write(archive.store, drafts(5))
    await archive.seal()
    other = MemoryStore()
    await write(other, drafts(30))
    foreign = Archiving(other, await retention_of(other), tmp_path, "another life", events=4, disk=None)
    with pytest.raises(ArchiveBroken, match="the store is another life: use another folder"):
        await foreign.seal()
    went_back = Archiving(MemoryStore(), await retention_of(other), tmp_path, archive.incarnation, events=4, disk=None)
    with pytest.raises(ArchiveBroken, match="it lost entries that were archived, or is another log"):
        await went_back.seal()
    rewritten = Archiving(other, await retention_of(other), tmp_path, archive.incarnation, events=4, disk=None)
    with pytest.raises(ArchiveBroken, match="it lost entries that were archived, or is another log"):
        await rewritten.seal()


# Trimming


async def kept_by(store: Store) -> list[int]:
    """The g that the log still holds."""
    return [each.position.g for each in await store.log.read(Position(0, "0-1"), limit=10_000)]


async def test_nothing_goes_without_archive_or_checkpoint(store: Store, archive: Archiving) -> None:
    written = await write(store, drafts(10))
    assert await archive.trim(START) == 0
    await archive.checkpoint(written[-1])
    assert await archive.trim(START) == 0
    archived = await archive.seal()
    assert await archive.trim(archived) == written[-1].g - 1
    assert (await kept_by(store))[0] == written[-1].g
    assert (await archive.verify()).wrong == ""


async def test_the_older_of_a_folds_two_checkpoints_is_kept(store: Store, archive: Archiving) -> None:
    written = await write(store, drafts(10))
    archived = await archive.seal()
    await archive.checkpoint(written[4])
    await archive.checkpoint(written[9])
    await archive.trim(archived)
    assert (await kept_by(store))[0] == written[4].g
    await archive.checkpoint(written[8], fold="cost")
    await archive.checkpoint(written[9])
    await archive.trim(archived)
    assert (await kept_by(store))[0] == written[4].g
    await archive.checkpoint(archived)
    await archive.trim(archived)
    assert (await kept_by(store))[0] == written[8].g


async def test_what_is_younger_than_the_time_to_keep_stays(store: Store, archive: Archiving) -> None:
    written = await write(store, drafts(10))
    archived = await archive.seal()
    await archive.checkpoint(written[-1])
    archive.keep_ms = DAY_MS
    assert await archive.trim(archived) == 0
    archive.later_ms = DAY_MS + HOUR_MS
    assert await archive.trim(archived) == written[-1].g - 1


async def test_losing_the_turn_ends_trimming_after_the_step(store: Store, archive: Archiving) -> None:
    written = await write(store, drafts(10))
    archived = await archive.seal()
    await archive.checkpoint(written[-1])
    archive.turns = 0
    assert await archive.trim(archived) == 0
    archive.turns = 5
    assert await archive.trim(archived) > 0


async def test_what_the_archive_cannot_give_back_is_not_trimmed(store: Store, archive: Archiving) -> None:
    written = await write(store, drafts(10))
    archived = await archive.seal()
    await archive.checkpoint(written[-1])
    victim = archive.folder.path / archive.folder.manifests()[0].segment
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + b"x")
    before = await kept_by(store)
    with pytest.raises(ArchiveBroken, match="has sha256"):
        await archive.trim(archived)
    assert (await kept_by(store))[: len(before)] == before
    victim.write_bytes(whole)
    assert await archive.trim(archived) > 0


@pytest.mark.parametrize(
    ("which", "says"), [(0, "is not in the archive"), (1, "a segment is missing"), (-1, "are no longer in")]
)
async def test_what_a_lost_segment_held_is_not_trimmed(store: Store, archive: Archiving, which: int, says: str) -> None:
    written = await write(store, drafts(12))
    archived = await archive.seal()
    await archive.checkpoint(written[-1])
    victim = anyio.Path(archive.folder.path / f"{archive.folder.manifests()[which].first.g:012d}.json")
    text = await victim.read_bytes()
    await victim.unlink()
    before = await kept_by(store)
    with pytest.raises(ArchiveBroken, match=says):
        await archive.trim(archived)
    assert await kept_by(store) == before
    await victim.write_bytes(text)
    assert await archive.trim(archived) > 0


async def register(archive: Archiving, name: str, *, after: Position, handed: int = 0) -> None:
    """A consumer group that has been handed so many entries after that place, and acknowledged none."""
    group = archive.store.group(name, "me")
    assert await group.create(after)
    if handed:
        assert len(await group.new(limit=handed)) == handed


async def advance(archive: Archiving, name: str, count: int) -> None:
    group = archive.store.group(name, "me")
    await group.acknowledge([each.position.entry for each in await group.new(limit=count)])


async def truncated(store: Store) -> list[LogTruncated]:
    records = await store.log.read(Position(0, "0-1"), limit=10_000)
    return [each.event for each in records if isinstance(each.event, LogTruncated)]


@pytest.mark.parametrize("handed", [0, 3], ids=["not yet read", "read and not acknowledged"])
async def test_a_slow_group_is_waited_for(store: Store, archive: Archiving, handed: int) -> None:
    written = await write(store, drafts(12))
    archived = await archive.seal()
    await archive.checkpoint(written[-1])
    await register(archive, "alerts", after=written[4], handed=handed)
    needed = written[5].g if handed else written[4].g
    await archive.trim(archived)
    assert (await kept_by(store))[0] == needed
    # Slow, and moving: for how long it has been behind does not matter.
    archive.later_ms = DAY_MS - 1000
    if not handed:
        await advance(archive, "alerts", 2)
        await archive.trim(archived)
        archive.later_ms = 2 * DAY_MS - 2000
        needed = written[6].g
    await archive.trim(archived)
    assert (await kept_by(store))[0] == needed
    assert await truncated(store) == []


async def test_a_group_that_stands_still_for_a_day_is_left_behind_and_told(
    store: Store, archive: Archiving, tmp_path: Path
) -> None:
    written = await write(store, drafts(12))
    archived = await archive.seal()
    await archive.checkpoint(written[-1])
    await register(archive, "alerts", after=written[4])
    await archive.trim(archived)
    assert (await kept_by(store))[0] == written[4].g
    # Another process finds what this one noted down.
    later = await archiving(store, tmp_path)
    later.retention = archive.retention
    later.later_ms = DAY_MS
    await later.trim(archived)
    assert (await kept_by(store))[0] == written[-1].g
    (told,) = await truncated(store)
    assert told.before == written[-1].entry
    assert "alerts" in told.why
    assert written[4].entry in told.why
    # Once is enough while it stands there.
    await archive.checkpoint(archived)
    await archive.checkpoint(archived)
    await later.trim(archived)
    assert await truncated(store) == [told]


async def test_a_full_store_is_trimmed(valkey_client: Client, tmp_path: Path) -> None:
    store = RedisStore(valkey_client)
    written = await write(store, drafts(12))
    archive = await archiving(store, tmp_path)
    await archive.checkpoint(written[-1])
    await store.group("alerts", "me").create(written[-1])
    core = core_of(store, archive.retention, tmp_path, archive.incarnation, "one")
    await valkey_client.command.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreRefuses):
            await core.round()
        assert (await kept_by(store))[0] > 1
    finally:
        await valkey_client.command.call("CONFIG", "SET", "maxmemory", "0")
    await core.job.leave()
    fresh = core_of(store, archive.retention, tmp_path, archive.incarnation, "one")
    assert await fresh.round()
    assert (await kept_by(store))[0] == written[-1].g
    assert (await archive.verify()).wrong == ""


# Forgetting


async def life_of(store: Store, pod: str, *, producer: str) -> None:
    one = a_reservation(f"r-{pod}", pod=pod)
    await write(store, [a_draft(each) for each in (a_reserved(one), a_bound(one), a_released(one))], producer=producer)


async def version_is(store: Store, pod: str) -> int:
    writer = EventWriter(store.log, "asks")
    await writer.start()
    with pytest.raises(Conflict) as conflict:
        await writer.append([lost()], expected={f"pod/{pod}": -1})
    return conflict.value.actual[f"pod/{pod}"]


async def test_pods_that_left_long_ago_leave_heads_and_others_stay(store: Store, archive: Archiving) -> None:
    await life_of(store, "gone", producer="a")
    await life_of(store, "late", producer="b")
    late = a_reservation("r-late", pod="late")
    await write(store, [a_draft(a_prepared(late))], producer="c")
    await life_of(store, "back", producer="d")
    again = a_reservation("r-back-2", pod="back")
    await write(store, [a_draft(a_reserved(again)), a_draft(a_node_registered())], producer="e")
    live = a_reservation("r-live", pod="live")
    await write(store, [a_draft(a_reserved(live)), a_draft(a_bound(live)), *drafts(8)], producer="f")
    archived = await archive.seal()
    await archive.checkpoint(archived)
    # Archived, not trimmed.
    archive.later_ms = 2 * RETIRED_FOR_MS
    assert await archive.forget() == 0
    # Trimmed, and too young.
    archive.later_ms = 0
    await archive.trim(archived)
    archive.later_ms = RETIRED_FOR_MS
    assert await archive.forget() == 0
    assert await version_is(store, "gone") == 3
    # Trimmed and old.
    archive.later_ms = RETIRED_FOR_MS + 2 * HOUR_MS
    assert await archive.forget() == 2
    assert [await version_is(store, pod) for pod in ("gone", "late", "back", "live")] == [0, 0, 4, 2]
    assert await archive.forget() == 0


async def test_what_moved_a_pod_after_all_keeps_it(store: Store, archive: Archiving) -> None:
    await life_of(store, "gone", producer="a")
    await write(store, drafts(8))
    archived = await archive.seal()
    await archive.checkpoint(archived)
    await archive.trim(archived)
    one = a_reservation("r-gone", pod="gone")
    await write(store, [a_draft(a_prepared(one))], producer="late")
    archive.later_ms = 2 * RETIRED_FOR_MS
    assert await archive.forget() == 0
    assert await version_is(store, "gone") == 4


async def test_a_replica_with_an_old_view_conflicts_after_its_pod_was_forgotten(store: Store, archive: Archiving) -> None:
    await life_of(store, "gone", producer="a")
    known = await version_is(store, "gone")
    await write(store, drafts(8))
    archived = await archive.seal()
    await archive.checkpoint(archived)
    await archive.trim(archived)
    archive.later_ms = 2 * RETIRED_FOR_MS
    assert await archive.forget() == 1
    head = await store.log.head()
    slow = EventWriter(store.log, "slow-replica")
    await slow.start()
    one = a_reservation("r-gone", pod="gone")
    for old_view in range(1, known + 1):
        with pytest.raises(Conflict) as refused:
            await slow.append([a_draft(a_released(one))], expected={"pod/gone": old_view})
        assert refused.value.actual == {"pod/gone": 0}
    assert await store.log.head() == head


# Who does it


async def test_one_replica_is_active_and_the_other_takes_over(store: Store, archive: Archiving, tmp_path: Path) -> None:
    written = await write(store, drafts(9))
    cores = [core_of(store, archive.retention, tmp_path, archive.incarnation, name) for name in ("one", "two")]
    assert [await core.round() for core in cores] == [True, False]
    sealed = len(archive.folder.manifests())
    assert sealed >= 2
    await cores[0].job.leave()
    await archive.checkpoint(written[-1])
    await write(store, drafts(5), producer="another")
    assert await cores[1].round()
    assert await cores[0].round() is False
    assert len(archive.folder.manifests()) > sealed
    assert (await kept_by(store))[0] == written[-1].g
    found = await archive.verify()
    assert (found.wrong, found.first_g) == ("", 1)
