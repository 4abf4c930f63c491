"""Reading the past of a trimmed log: from checkpoint and archive, and a clear word where neither reaches."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from hami.alerts.boot import Keeper, begin
from hami.cli.places import before_g, find_record, position_of, record_at, until_head
from hami.cli.when import AtTime
from hami.domain.errors import ArchiveBroken, HistoryTrimmed
from hami.domain.units import EpochMs
from hami.events.archive.history import first_of, reaching_back, with_history
from hami.events.envelope import START, Position
from hami.events.log import Draft, Log, Record
from hami.events.memory import MemoryStore
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.events.store import Store
from hami.projections.boot import FOLD, newest_state
from hami.projections.checkpoint import SCHEMA, digest_of, encode_state
from hami.projections.folds.state import ClusterState
from hami.projections.timetravel import state_at
from hami.projections.view import LiveView, ViewBroken
from tests.support.archiving import Archiving, archiving, write
from tests.support.builders import a_bound, a_device, a_draft, a_node_registered, a_released, a_reservation, a_reserved
from tests.support.drafts import lost
from tests.support.redis_server import fresh_client


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, valkey_server: EmbeddedServer) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    async for client in fresh_client(valkey_server):
        yield RedisStore(client)


def a_story() -> list[Draft]:
    drafts = [a_draft(a_node_registered(a_device()))]
    for number in range(4):
        one = a_reservation(f"r{number}", pod=f"u{number}")
        drafts += [a_draft(a_reserved(one)), a_draft(a_bound(one))]
        drafts += [a_draft(a_released(one))] if number % 2 else []
    return drafts


class Past:
    """A log of a story, and what it looked like before anything was trimmed."""

    def __init__(self, archive: Archiving, records: Sequence[Record], digests: dict[int, str]) -> None:
        self.archive, self.store, self.records, self.digests = archive, archive.store, records, digests

    @property
    def positions(self) -> list[Position]:
        return [each.position for each in self.records]

    async def historical(self) -> Store:
        return await with_history(self.store, self.archive.folder.path, incarnation=self.archive.incarnation)


@pytest.fixture
async def past(store: Store, tmp_path: Path) -> Past:
    """Archived to the end of the story; trimmed to the last third of it, where a checkpoint is."""
    archive = await archiving(store, tmp_path, events=3)
    await write(store, a_story())
    archived = await archive.seal()
    records = await store.log.read(START)
    digests = {each.position.g: digest_of(await state_at_g(store, archive, each.position.g)) for each in records}
    at = records[-5].position.g
    state = await state_at(store.log, store.checkpoints, incarnation=archive.incarnation, g=at)
    await store.checkpoints.save(FOLD, state.position, archive.incarnation, SCHEMA, encode_state(state))
    await archive.trim(archived)
    assert (await first_of(store.log)).g == at
    return Past(archive, records, digests)


async def state_at_g(store: Store, archive: Archiving, g: int) -> ClusterState:
    return await state_at(store.log, store.checkpoints, incarnation=archive.incarnation, g=g)


async def everything(log: Log) -> list[Record]:
    return [record async for record in until_head(log, START)]


async def test_archive_and_log_are_one_sequence(past: Past) -> None:
    log = (await past.historical()).log
    assert await everything(log) == list(past.records)
    assert (await first_of(log)).g == 1
    for limit in (1, 2, 7):
        for at, position in enumerate(past.positions):
            wanted = list(past.records[at + 1 : at + 1 + limit])
            found = list(await log.read(position, limit=limit))
            assert found == wanted[: len(found)]
            assert bool(found) == bool(wanted)


async def test_a_tail_from_the_beginning_goes_through_the_archive_and_on(past: Past) -> None:
    log, found = (await past.historical()).log, list[Record]()
    with anyio.fail_after(10):
        async for batch in log.tail(START):
            found += batch
            if len(found) == len(past.records):
                await write(past.store, [lost()], producer="late")
            if len(found) > len(past.records):
                break
    assert found[:-1] == list(past.records)
    assert found[-1].envelope.producer == "late"


async def test_times_are_found_in_archive_and_log(past: Past) -> None:
    log = (await past.historical()).log
    for record in past.records:
        ms = record.position.recorded_ms
        newest = max(each for each in past.positions if each.recorded_ms <= ms)
        assert await log.at_or_before(ms) == newest
    assert await log.at_or_before(EpochMs(1)) == START


async def test_every_moment_of_the_past_is_the_state_that_it_was(past: Past) -> None:
    store = await past.historical()
    for g, digest in past.digests.items():
        assert digest_of(await state_at(store.log, store.checkpoints, incarnation=past.archive.incarnation, g=g)) == digest


async def test_single_events_of_the_past_are_found(past: Past) -> None:
    log = (await past.historical()).log
    for record in past.records:
        assert await record_at(log, record.position.g) == record
        assert await find_record(log, record.position.entry) == record
        assert await find_record(log, record.envelope.id) == record
        assert (await before_g(log, record.position.g)).g < record.position.g


async def test_without_the_archive_what_is_kept_works(past: Past) -> None:
    log, incarnation = past.store.log, past.archive.incarnation
    first = (await first_of(log)).g
    for g, digest in past.digests.items():
        if g >= first:
            assert digest_of(await state_at(log, past.store.checkpoints, incarnation=incarnation, g=g)) == digest
    for record in past.records[first - 1 :]:
        assert await record_at(log, record.position.g) == record
        assert await find_record(log, record.position.entry) == record
    view = LiveView(log, past.store.checkpoints, incarnation=incarnation, confirm_every_s=0.02)
    async with anyio.create_task_group() as group:
        await group.start(view.run)
        assert await view.wait_caught_up(timeout=5)
        assert digest_of(view.state) == past.digests[past.records[-1].position.g]
        group.cancel_scope.cancel()


async def test_without_the_archive_what_is_gone_is_said_to_be_gone(past: Past) -> None:
    log, checkpoints, incarnation = past.store.log, past.store.checkpoints, past.archive.incarnation
    first = await first_of(log)
    says = f"^history begins at g:{first.g} "
    with pytest.raises(HistoryTrimmed, match=says):
        await everything(log)
    for g in range(1, first.g):
        with pytest.raises(HistoryTrimmed, match=says):
            await state_at(log, checkpoints, incarnation=incarnation, g=g)
        with pytest.raises(HistoryTrimmed, match=says):
            await record_at(log, g)
    with pytest.raises(HistoryTrimmed, match=says):
        await state_at(log, checkpoints, incarnation=incarnation, time_ms=EpochMs(1))
    with pytest.raises(HistoryTrimmed, match=says):
        await position_of(log, AtTime(EpochMs(1)))
    with pytest.raises(HistoryTrimmed, match=says):
        await find_record(log, "nobody/1/1")


async def test_a_view_without_a_usable_checkpoint_boots_from_the_archive_and_else_says_why_not(past: Past) -> None:
    other_version = MemoryStore().checkpoints
    assert (await newest_state(past.store.log, other_version, incarnation=past.archive.incarnation)).position == START
    helpless = LiveView(past.store.log, other_version, incarnation=past.archive.incarnation, confirm_every_s=0.02)
    async with anyio.create_task_group() as group:
        await group.start(helpless.run)
        with pytest.raises(ViewBroken, match="history begins at g:"):
            await helpless.wait_caught_up(timeout=5)
        group.cancel_scope.cancel()
    log = (await past.historical()).log
    view = LiveView(log, other_version, incarnation=past.archive.incarnation, confirm_every_s=0.02)
    async with anyio.create_task_group() as group:
        await group.start(view.run)
        assert await view.wait_caught_up(timeout=5)
        assert digest_of(view.state) == past.digests[past.records[-1].position.g]
        group.cancel_scope.cancel()


async def test_an_archive_that_cannot_be_used_leaves_the_log(past: Past, tmp_path: Path) -> None:
    path, incarnation = str(past.archive.folder.path), past.archive.incarnation
    assert await reaching_back(past.store, "", incarnation=incarnation) == (past.store.log, "")
    log, why = await reaching_back(past.store, path, incarnation=incarnation)
    assert (await first_of(log), why) == (past.positions[0], "")
    log, why = await reaching_back(past.store, path, incarnation="another")
    assert log is past.store.log
    assert "use another folder" in why


async def test_alerts_begin_in_the_middle_where_the_beginning_is_gone(past: Past) -> None:
    group = past.store.group("alerts", "me")
    beginning = await begin(past.store.log, group, Keeper(past.store.checkpoints, "alerts", past.archive.incarnation))
    assert beginning.state.position == await past.store.log.head()
    assert beginning.owed == ()


async def test_an_archive_with_a_hole_is_not_read_as_a_whole_one(past: Past) -> None:
    manifests = past.archive.folder.manifests()
    middle = past.archive.folder.path / f"{manifests[1].first.g:012d}.json"
    text = await anyio.Path(middle).read_bytes()
    await anyio.Path(middle).unlink()
    with pytest.raises(ArchiveBroken, match="a segment is missing"):
        await past.historical()
    await anyio.Path(middle).write_bytes(text)
    await anyio.Path(past.archive.folder.path / manifests[1].segment).unlink()
    with pytest.raises(ArchiveBroken, match="is missing"):
        await everything((await past.historical()).log)


async def test_an_archive_that_begins_late_says_so_too(past: Past, tmp_path: Path) -> None:
    first = past.archive.folder.manifests()[0]
    await anyio.Path(past.archive.folder.path / f"{first.first.g:012d}.json").unlink()
    with pytest.raises(ArchiveBroken, match="follows another one, which is missing"):
        await past.historical()
    late = await archiving(past.store, tmp_path / "late", events=2)
    await anyio.Path(tmp_path / "late").mkdir()
    await late.seal()
    store = await with_history(past.store, tmp_path / "late", incarnation=late.incarnation)
    with pytest.raises(HistoryTrimmed, match=f"history begins at g:{(await first_of(past.store.log)).g} "):
        await everything(store.log)


async def test_an_archive_of_another_store_is_not_read(past: Past) -> None:
    with pytest.raises(ArchiveBroken, match="the store is another"):
        await with_history(past.store, past.archive.folder.path, incarnation="another")
    empty = await with_history(MemoryStore(), past.archive.folder.path / "none", incarnation="any")
    assert await everything(empty.log) == []
