"""The live view on both stores: booting, following, confirming, checkpoints, gaps, lost entries, a store that is away."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from hami.domain.errors import HistoryTrimmed, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.catalog.governance import PolicyChanged
from hami.events.catalog.node import NodeLost
from hami.events.catalog.union import Event
from hami.events.envelope import START, Position
from hami.events.log import Checkpoints, Log, Record
from hami.events.memory import MemoryCheckpoints, MemoryLog, MemoryStore
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.events.store import Store
from hami.events.writer import EventWriter
from hami.projections import drift
from hami.projections.boot import FOLD
from hami.projections.timetravel import state_at
from hami.projections.view import LiveView, ViewBroken
from tests.support.archiving import retention_of
from tests.support.builders import (
    a_bound,
    a_container,
    a_device,
    a_draft,
    a_node_registered,
    a_released,
    a_reservation,
    a_reserved,
    a_share,
)
from tests.support.redis_server import fresh_client
from tests.support.switched_log import SwitchedLog
from tests.support.waiting import wait_until

ONE = a_reservation("r1", a_container(a_share("GPU-a", 1000, 10)))
LIFE: Sequence[Event] = (a_node_registered(a_device()), a_reserved(ONE), a_bound(ONE), a_released(ONE))


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, valkey_server: EmbeddedServer) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    async for client in fresh_client(valkey_server):
        yield RedisStore(client, sweep_s=0.5)


@pytest.fixture
async def writer(store: Store) -> EventWriter:
    return await started(store.log)


async def started(log: Log, producer: str = "scheduler-1") -> EventWriter:
    writer = EventWriter(log, producer)
    await writer.start()
    return writer


async def put(writer: EventWriter, *events: Event) -> Position:
    written = [await writer.append([a_draft(event)]) for event in events]
    return written[-1].positions[-1]


def a_view(log: Log, checkpoints: Checkpoints, *, incarnation: str = "A", checkpoint_every: int = 1000) -> LiveView:
    return LiveView(
        log, checkpoints, incarnation=incarnation, checkpoint_every=checkpoint_every, confirm_every_s=0.02, retry_s=0.02
    )


@asynccontextmanager
async def running(view: LiveView) -> AsyncIterator[LiveView]:
    async with anyio.create_task_group() as group:
        await group.start(view.run)
        yield view
        group.cancel_scope.cancel()


async def test_a_view_boots_from_an_empty_log_and_follows(store: Store, writer: EventWriter) -> None:
    async with running(a_view(store.log, store.checkpoints)) as view:
        assert await view.wait_caught_up(timeout=5)
        last = await put(writer, *LIFE[:2])
        assert await view.wait_for(last, timeout=5)
        assert view.snapshot().allocation_of("u1") is not None
        assert view.position == last
        assert not await view.wait_for(last.g + 1, timeout=0.01)


async def test_changed_nodes_are_handed_on_after_each_batch(store: Store, writer: EventWriter) -> None:
    told: list[str] = []
    view = LiveView(store.log, store.checkpoints, incarnation="A", on_change=told.extend)
    await put(writer, LIFE[0])
    async with running(view):
        assert await view.wait_caught_up(timeout=5)
        assert told == ["n1"]
        assert await view.wait_for(await put(writer, *LIFE[1:]), timeout=5)
        assert set(told) == {"n1"}
        assert len(told) >= 2


async def test_catching_up_is_told_even_when_the_last_batch_changes_no_node(store: Store, writer: EventWriter) -> None:
    heard: list[tuple[bool, tuple[str, ...]]] = []
    view = LiveView(
        store.log,
        store.checkpoints,
        incarnation="A",
        on_change=lambda names: heard.append((view.caught_up, tuple(names))),
    )
    await put(writer, PolicyChanged(version="1", settings={}))
    async with running(view):
        assert await view.wait_caught_up(timeout=5)
        assert heard == [(True, ())]


async def test_a_view_is_confirmed_while_the_store_answers(store: Store, writer: EventWriter) -> None:
    async with running(a_view(store.log, store.checkpoints)) as view:
        await wait_until(lambda: view.confirmed_at, "first confirmation")
        first, last = view.confirmed_at, await put(writer, *LIFE)
        await wait_until(lambda: view.confirmed_at != first and view.position == last, "a later confirmation")


async def test_the_next_boot_goes_on_from_the_checkpoint_of_the_last(store: Store, writer: EventWriter) -> None:
    last = await put(writer, *LIFE[:2])
    async with running(a_view(store.log, store.checkpoints)) as view:
        assert await view.wait_for(last, timeout=5)
    [(position, incarnation, _, _)] = await store.checkpoints.load(FOLD)
    assert (position, incarnation) == (last, "A")
    told: list[str] = []
    again = LiveView(store.log, store.checkpoints, incarnation="A", on_change=told.extend)
    async with running(again):
        assert again.position == last
        assert told == ["n1"]
        assert await again.wait_for(await put(writer, *LIFE[2:]), timeout=5)
        assert (await drift.measure(store.log, again.state)).none


async def test_checkpoints_are_saved_on_the_way_once_caught_up(store: Store, writer: EventWriter) -> None:
    async with running(a_view(store.log, store.checkpoints, checkpoint_every=3)) as view:
        assert await view.wait_caught_up(timeout=5)
        assert await view.wait_for(await put(writer, *LIFE), timeout=5)

        async def any_saved() -> bool:
            return bool(await store.checkpoints.load(FOLD))

        saved: Callable[[], bool | Awaitable[bool]] = any_saved
        await wait_until(saved, "a checkpoint while running")


@pytest.mark.parametrize("spoiled", ["incarnation", "schema", "bytes", "place", "entry"])
async def test_a_checkpoint_that_does_not_hold_is_passed_over(store: Store, writer: EventWriter, spoiled: str) -> None:
    last = await put(writer, *LIFE[:2])
    async with running(a_view(store.log, store.checkpoints)) as view:
        assert await view.wait_for(last, timeout=5)
    [(position, incarnation, schema, raw)] = await store.checkpoints.load(FOLD)
    match spoiled:
        case "incarnation":
            await store.checkpoints.save(FOLD, position, "B", schema, raw)
        case "schema":
            await store.checkpoints.save(FOLD, position, incarnation, "other", raw)
        case "bytes":
            await store.checkpoints.save(FOLD, position, incarnation, schema, raw[:-3])
        case "place":
            await store.checkpoints.save(FOLD, Position(position.g + 9, position.entry), incarnation, schema, raw)
        case _:
            await store.checkpoints.save(FOLD, Position(position.g, "1-1"), incarnation, schema, raw)
    await put(writer, *LIFE[2:])
    fresh = MemoryCheckpoints()
    for saved in reversed((await store.checkpoints.load(FOLD))[:1]):
        await fresh.save(FOLD, *saved)
    async with running(a_view(store.log, fresh)) as again:
        assert again.position == START
        assert await again.wait_caught_up(timeout=5)
        assert (await drift.measure(store.log, again.state)).none


async def test_an_older_checkpoint_serves_where_the_newest_does_not_hold(store: Store, writer: EventWriter) -> None:
    older = await put(writer, *LIFE[:2])
    async with running(a_view(store.log, store.checkpoints)) as view:
        assert await view.wait_for(older, timeout=5)
    [saved] = await store.checkpoints.load(FOLD)
    newest = await put(writer, *LIFE[2:])
    await store.checkpoints.save(FOLD, newest, "A", saved[2], b"broken")
    async with running(a_view(store.log, store.checkpoints)) as again:
        assert again.position == older
        assert await again.wait_for(newest, timeout=5)


async def test_the_past_can_be_seen_by_place_and_by_time(store: Store, writer: EventWriter) -> None:
    before = await store.log.now()
    await anyio.sleep(0.005)
    places = [await put(writer, event) for event in LIFE]
    for place, live in zip(places, [0, 1, 1, 0], strict=True):
        state = await state_at(store.log, store.checkpoints, incarnation="A", g=place.g)
        assert (state.position, len(state.allocations)) == (place, live)
    last = await state_at(store.log, store.checkpoints, incarnation="A")
    assert last.position == places[-1]
    by_time = await state_at(store.log, store.checkpoints, incarnation="A", time_ms=EpochMs(before))
    assert by_time.position.g < places[0].g
    now = await state_at(store.log, store.checkpoints, incarnation="A", time_ms=await store.log.now())
    assert now.position == places[-1]


async def test_the_past_is_rebuilt_from_a_checkpoint_before_it(store: Store, writer: EventWriter) -> None:
    places = [await put(writer, event) for event in LIFE[:3]]
    async with running(a_view(store.log, store.checkpoints)) as view:
        assert await view.wait_for(places[-1], timeout=5)
    last = await put(writer, LIFE[3])
    for g in (places[1].g, places[2].g, last.g):
        one = await state_at(store.log, store.checkpoints, incarnation="A", g=g)
        other = await state_at(store.log, MemoryCheckpoints(), incarnation="A", g=g)
        assert drift.state_digest(one) == drift.state_digest(other)


async def test_drift_is_seen(store: Store, writer: EventWriter) -> None:
    last = await put(writer, *LIFE[:2])
    async with running(a_view(store.log, store.checkpoints)) as view:
        assert await view.wait_for(last, timeout=5)
    [saved] = await store.checkpoints.load(FOLD)
    assert (await drift.measure_from_checkpoint(store.log, store.checkpoints, view.state, incarnation="A")).none
    view.state.quota_used["default"] = {"NVIDIA": (1, 1)}
    assert not (await drift.measure(store.log, view.state)).none
    assert not (await drift.measure_from_checkpoint(store.log, store.checkpoints, view.state, incarnation="A")).none
    assert saved[0] == last


class Trimmed(SwitchedLog):
    """A log whose first entry is gone."""

    async def read(self, after: Position, *, limit: int = 1000) -> Sequence[Record]:
        return [each for each in await self.inner.read(after, limit=limit + 1) if each.position.g > 1][:limit]

    async def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        async for batch in self.inner.tail(after):
            yield [each for each in batch if each.position.g > 1]


class Gated(SwitchedLog):
    """A log that hands out one record for each `gate.release()`."""

    def __init__(self, inner: Log) -> None:
        super().__init__(inner)
        self.gate = anyio.Semaphore(0)

    async def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        async for batch in self.inner.tail(after):
            for record in batch:
                await self.gate.acquire()
                yield [record]


async def test_a_view_behind_the_head_it_found_is_not_caught_up(store: Store, writer: EventWriter) -> None:
    last = await put(writer, *LIFE)
    log = Gated(store.log)
    async with running(a_view(log, store.checkpoints)) as view:
        for g in range(last.g):
            assert await view.wait_for(g, timeout=5)
            assert not view.caught_up
            assert view.confirmed_at is None
            log.gate.release()
        assert await view.wait_caught_up(timeout=5)
        await wait_until(lambda: view.confirmed_at, "confirmation once caught up")


async def test_a_gap_breaks_the_view_for_good(store: Store, writer: EventWriter) -> None:
    await put(writer, *LIFE[:3])
    view = a_view(Trimmed(store.log), store.checkpoints)
    async with running(view):
        with pytest.raises(ViewBroken, match="log gap: g=0"):
            await view.wait_caught_up(timeout=5)
        assert not view.caught_up
        assert "followed by g=2" in view.broken
        assert view.confirmed_at is None
        with pytest.raises(ViewBroken):
            await view.wait_for(99, timeout=5)


async def test_the_past_beyond_a_trimmed_beginning_is_refused(store: Store, writer: EventWriter) -> None:
    await put(writer, *LIFE[:2])
    last = await put(writer, LIFE[2])
    await (await retention_of(store)).trim(last.entry)
    with pytest.raises(HistoryTrimmed):
        await state_at(store.log, store.checkpoints, incarnation="A", time_ms=EpochMs(1))
    with pytest.raises(HistoryTrimmed):
        await state_at(store.log, store.checkpoints, incarnation="A")


async def test_a_store_that_is_away_makes_the_view_old_and_not_broken() -> None:
    inner = MemoryLog()
    log = SwitchedLog(inner)
    log.away = True
    view = a_view(log, MemoryCheckpoints())
    async with anyio.create_task_group() as group:
        group.start_soon(view.run)
        await wait_until(lambda: view.unreachable, "the store is away at boot")
        assert not view.caught_up
        log.away = False
        assert await view.wait_caught_up(timeout=5)
        await wait_until(lambda: view.confirmed_at, "confirmation")
        log.away = True
        await wait_until(lambda: view.unreachable, "the store is away while running")
        confirmed = view.confirmed_at
        last = await put(await started(inner), *LIFE)
        assert view.confirmed_at == confirmed
        log.away = False
        assert await view.wait_for(last, timeout=5)
        await wait_until(lambda: view.confirmed_at != confirmed and not view.unreachable, "confirmation after return")
        assert not view.broken
        group.cancel_scope.cancel()


async def test_entries_lost_in_a_failover_send_the_view_back_to_a_checkpoint_that_holds() -> None:
    before, after = MemoryLog(), MemoryLog()
    checkpoints, told = MemoryCheckpoints(), list[str]()
    writer = await started(before)
    kept = await put(writer, *LIFE[:2])
    log = SwitchedLog(before)
    view = LiveView(log, checkpoints, incarnation="A", on_change=told.extend, confirm_every_s=0.02, checkpoint_every=2)
    async with running(view):
        await writer.append([a_draft(a_node_registered(a_device("GPU-z")), "n2")])
        assert await view.wait_for(await put(writer, LIFE[2], a_released(ONE)), timeout=5)
        told.clear()
        assert view.snapshot().allocations == {}
        other = await started(after)
        await put(other, *LIFE[:2], NodeLost())
        log.inner = after
        await wait_until(lambda: view.rollbacks, "a rollback")
        assert await view.wait_caught_up(timeout=5)
        assert set(view.snapshot().allocations) == {"r1"}
        assert not view.broken
        assert (await drift.measure(after, view.state)).none
        assert kept.g == 2
        assert set(told) == {"n1", "n2"}


async def test_entries_lost_by_redis_itself_send_the_view_back(valkey_server: EmbeddedServer) -> None:
    async for client in fresh_client(valkey_server):
        store = RedisStore(client, sweep_s=0.5)
        writer = await started(store.log)
        last = await put(writer, *LIFE[:3])
        async with running(a_view(store.log, store.checkpoints)) as view:
            lost = await put(writer, LIFE[3])
            assert await view.wait_for(lost, timeout=5)
            await client.command.call("XDEL", client.keys.log, lost.entry)
            await client.command.call("HSET", client.keys.heads, "g", last.g)
            await put(await started(store.log, "scheduler-2"), NodeLost())
            await wait_until(lambda: view.rollbacks, "a rollback")
            assert await view.wait_caught_up(timeout=5)
            assert set(view.snapshot().allocations) == {"r1"}
            assert (await drift.measure(store.log, view.state)).none


class Unsafe(SwitchedLog):
    async def head(self) -> Position:
        raise StoreUnsafe("maxmemory-policy is allkeys-lru")


async def test_a_store_that_must_not_be_used_breaks_the_view_at_boot() -> None:
    async with running(a_view(Unsafe(MemoryLog()), MemoryCheckpoints())) as view:
        assert "allkeys-lru" in view.broken
        assert not view.caught_up
        assert view.confirmed_at is None


async def test_a_store_that_became_another_one_breaks_the_view(valkey_server: EmbeddedServer) -> None:
    async for client in fresh_client(valkey_server):
        store = RedisStore(client, sweep_s=0.5)
        last = await put(await started(store.log), *LIFE)
        async with running(a_view(store.log, store.checkpoints)) as view:
            assert await view.wait_for(last, timeout=5)
            await client.command.call("FLUSHALL")
            await wait_until(lambda: view.broken, "the view noticed")
            assert not view.caught_up
