"""What the store does to us: silence, sudden death, lost answers, emptied databases. Real servers, real sockets."""

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from hami.domain.errors import Conflict, HistoryChanged, StoreUnavailable, StoreUnsafe
from hami.events.envelope import START
from hami.events.lease import Held
from hami.events.log import Appended, Record
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.log import RedisLog
from hami.events.redis.meta import initialise, startup_check
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from tests.support.drafts import lost, sealed
from tests.support.lossy_proxy import lossy_proxy
from tests.support.redis_server import DISTRIBUTION, WHEEL, running_server
from tests.support.waiting import wait_until


@pytest.fixture(params=[WHEEL, DISTRIBUTION])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server of its own: these tests kill it."""
    with running_server(request.param, options=("--appendfsync", "always")) as server:
        yield server


@pytest.fixture
async def store(server: EmbeddedServer) -> AsyncIterator[RedisStore]:
    async with Client(server.url, command_timeout_s=0.5, block_s=0.3, connect_timeout_s=0.5) as client:
        await initialise(client)
        yield RedisStore(client)


async def fill(store: RedisStore, *seqs: int, epoch: int = 1) -> Appended:
    answer = await store.log.append([sealed(seq, epoch=epoch) for seq in seqs], [("node/n1",)] * len(seqs))
    assert isinstance(answer, Appended)
    return answer


class Follower:
    """A tail in the background, with what it gave and how it ended."""

    def __init__(self, log: RedisLog) -> None:
        self.records: list[Record] = []
        self.confirmed = 0
        self.ended: Exception | None = None
        self._log = log

    async def run(self, after: object = START) -> None:
        try:
            async for batch in self._log.tail(after):  # type: ignore[arg-type]
                self.records += batch
                self.confirmed += not batch
        except (HistoryChanged, StoreUnsafe) as error:
            self.ended = error


async def test_killed_and_restarted_it_keeps_every_acknowledged_event_and_the_functions(
    server: EmbeddedServer, store: RedisStore
) -> None:
    await fill(store, 1, 2, 3)
    held = await store.locks.acquire("n1", "pod", ttl_ms=60_000)
    await server.restart()
    await fill(store, 4)
    assert [r.envelope.seq for r in await store.log.read(START)] == [1, 1, 2, 3, 4]
    assert [r.position.g for r in await store.log.read(START)] == [1, 2, 3, 4, 5]
    assert isinstance(held, Held)
    assert await store.locks.renew(held, ttl_ms=60_000)


async def test_a_tail_goes_on_over_a_restart_without_repeating_or_skipping(server: EmbeddedServer, store: RedisStore) -> None:
    follower = Follower(store.log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.run)
        await fill(store, 1, 2)
        await wait_until(lambda: len(follower.records) == 3, "the first two")
        server.kill()
        await server.start()
        await fill(store, 3)
        await wait_until(lambda: len(follower.records) == 4, "the third")
        tasks.cancel_scope.cancel()
    assert [r.position.g for r in follower.records] == [1, 2, 3, 4]


async def test_a_silent_server_is_noticed_within_seconds_and_the_tail_recovers(
    server: EmbeddedServer, store: RedisStore
) -> None:
    follower = Follower(store.log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.run)
        await wait_until(lambda: follower.confirmed > 0, "the tail to reach the head")
        server.pause()
        started = anyio.current_time()
        with pytest.raises(StoreUnavailable):
            await store.log.now()
        assert anyio.current_time() - started < 3
        confirmed = follower.confirmed
        server.resume()
        await fill(store, 1)
        await wait_until(lambda: len(follower.records) == 2 and follower.confirmed > confirmed, "the tail to go on")
        tasks.cancel_scope.cancel()
    assert [r.position.g for r in follower.records] == [1, 2]


async def test_a_paused_server_that_took_the_write_does_not_get_it_twice(server: EmbeddedServer, store: RedisStore) -> None:
    writer = EventWriter(store.log, "control", retry_for_s=10)
    await writer.start()
    await writer.append([lost("n1", "first")])
    server.pause()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.append, [lost("n1", "second")])
        with pytest.raises(StoreUnavailable):
            await store.log.now()
        server.resume()
    records = await store.log.read(START)
    assert [r.envelope.id for r in records if r.envelope.producer == "control"] == ["control/1/1", "control/1/2"]


async def test_a_write_whose_answer_is_lost_is_in_the_log_once(server: EmbeddedServer, store: RedisStore) -> None:
    path = str(server.folder / "p.sock")
    with lossy_proxy(path, str(server.socket), b"the marked one") as proxy:
        async with Client(f"unix://{path}", command_timeout_s=2) as client:
            writer = EventWriter(RedisLog(client), "control")
            await writer.start()
            answer = await writer.append([lost("n1", "the marked one")])
            await writer.append([lost("n1", "another")])
        assert proxy.lost.is_set()
    records = [r for r in await store.log.read(START) if r.envelope.producer == "control"]
    assert [r.envelope.seq for r in records] == [1, 2]
    assert answer.positions == (records[0].position,)
    assert dict(answer.versions) == {"node/n1": 1}


async def test_an_emptied_database_is_unsafe_for_writers_readers_and_newcomers(store: RedisStore) -> None:
    await fill(store, 1)
    follower = Follower(store.log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.run)
        await wait_until(lambda: len(follower.records) == 2, "the tail to reach the head")
        await store.client.command.call("FLUSHALL")
        with pytest.raises(StoreUnsafe, match="hami init"):
            await fill(store, 2)
        with pytest.raises(StoreUnsafe, match="hami init"):
            await startup_check(store.client, local_ms=await store.log.now())
        await wait_until(lambda: follower.ended is not None, "the tail to end")
    assert isinstance(follower.ended, StoreUnsafe)


async def test_initialising_an_emptied_database_again_does_not_fool_those_who_knew_it(store: RedisStore) -> None:
    await fill(store, 1)
    await store.client.command.call("FLUSHALL")
    await initialise(store.client)
    with pytest.raises(StoreUnsafe, match="another one now"):
        await fill(store, 2)
    with pytest.raises(StoreUnsafe):
        async for _ in store.log.tail(START):
            pass


async def test_a_reader_whose_tail_was_lost_in_a_failover_is_told(server: EmbeddedServer, store: RedisStore) -> None:
    """Acknowledged entries vanish with the old primary; the new one goes on with other events under the same counters."""
    await fill(store, 1, 2)
    kept = await store.log.head()
    seen = (await fill(store, 3, 4)).positions[-1]
    keys, call = store.client.keys, store.client.command.call
    for record in await store.log.read(kept):
        await call("XDEL", keys.log, record.position.entry)
    await call("HSET", keys.heads, "g", kept.g, "producer/p", f"1:2:{kept.entry}")
    with pytest.raises(HistoryChanged):
        async for _ in store.log.tail(seen):
            pass
    await fill(store, 3)
    with pytest.raises(HistoryChanged):
        async for _ in store.log.tail(seen):
            pass
    with anyio.fail_after(5):
        async for batch in store.log.tail(kept):
            assert [r.envelope.seq for r in batch] == [3]
            break


async def test_a_trimmed_log_continues_for_who_stood_at_its_edge_and_for_nobody_before(store: RedisStore) -> None:
    positions = (await fill(store, *range(1, 6))).positions
    await store.client.command.call("XTRIM", store.client.keys.log, "MINID", positions[2].entry)
    for stood, goes_on in ((positions[2], True), (positions[1], True), (positions[0], False)):
        tail = store.log.tail(stood)
        with anyio.fail_after(5):
            if goes_on:
                assert (await anext(tail))[0].position.g == stood.g + 1
            else:
                with pytest.raises(HistoryChanged):
                    await anext(tail)
        await tail.aclose()  # type: ignore[attr-defined]


async def test_a_full_store_refuses_whole_appends_and_says_so(server: EmbeddedServer, store: RedisStore) -> None:
    await fill(store, 1)
    head = await store.log.head()
    await store.client.command.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreUnavailable, match="memory"):
        await fill(store, 2, 3)
    await store.client.command.call("CONFIG", "SET", "maxmemory", "0")
    assert await store.log.head() == head
    await fill(store, 2, 3)


async def test_a_cancelled_command_leaves_no_answer_for_the_next_one(store: RedisStore) -> None:
    await store.leases.keep("n1", "value", ttl_ms=60_000)
    for _ in range(20):
        with anyio.move_on_after(0.0005):
            await store.log.read(START)
        assert await store.leases.alive(["n1"]) == {"n1": "value"}
        assert (await store.log.head()).g == 1


async def test_waiting_for_a_lock_survives_nothing_but_leaves_nothing_either(server: EmbeddedServer, store: RedisStore) -> None:
    held = await store.locks.acquire("n1", "a", ttl_ms=60_000)
    assert isinstance(held, Held)
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            with pytest.raises(StoreUnavailable):
                await store.locks.acquire("n1", "b", ttl_ms=1000, wait_ms=8_000)

        async def queued() -> bool:
            state = await store.locks.state("n1")
            return state is not None and state.waiters == ("b",)

        tasks.start_soon(wait)
        await wait_until(queued, "b to queue")
        server.kill()
    await server.start()
    assert await store.locks.renew(held, ttl_ms=60_000)


async def test_a_durable_append_survives_a_power_cut_and_needs_the_append_only_file() -> None:
    """With `everysec`, as in production: without waiting, the last second may be lost."""
    with running_server(WHEEL) as server:
        async with Client(server.url) as client:
            await initialise(client)
            writer = EventWriter(RedisLog(client, durable=True), "control", retry_for_s=0)
            await writer.start()
            answer = await writer.append([lost("n1", "kept")])
            await server.restart()
            assert await RedisLog(client).head() == answer.positions[-1]
            with pytest.raises(Conflict):
                await writer.append([lost("n1")], expected={"node/n1": 7})
            await client.command.call("CONFIG", "SET", "appendonly", "no")
            with pytest.raises(StoreUnavailable, match="WAITAOF"):
                await writer.append([lost("n1", "not known to be kept")])
