"""The ACL file that ships: every role can do its work, and an agent nothing beyond its own node."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from hami.archive.app import run_archive
from hami.config import ArchiveSettings, RedisSettings
from hami.domain.errors import StoreUnsafe
from hami.events.archive.folder import ArchiveFolder
from hami.events.envelope import START, Position, agent_name
from hami.events.ingester import Ingester
from hami.events.lease import Held
from hami.events.redis.client import Client
from hami.events.redis.dead import dead_letters, replay
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.keys import META
from hami.events.redis.meta import Startup, initialise, startup_check
from hami.events.redis.retention import RedisRetention
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.projections.boot import FOLD
from tests.support.drafts import lost, sealed
from tests.support.redis_server import DISTRIBUTION, WHEEL, running_server

SHIPPED = Path(__file__).resolve().parents[2] / "deploy/redis/users.acl"


@pytest.fixture(scope="module", params=[WHEEL, DISTRIBUTION])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    lines = [line for line in SHIPPED.read_text().splitlines() if line and not line.startswith("#")]
    users = tmp_path_factory.mktemp("acl") / "users.acl"
    users.write_text("\n".join(line.replace("CHANGE-ME", "secret") for line in lines) + "\n")
    with running_server(request.param, options=("--aclfile", str(users))) as server:
        yield server


@asynccontextmanager
async def logged_in(server: EmbeddedServer, user: str) -> AsyncIterator[RedisStore]:
    async with Client(f"unix://{user}:secret@{server.socket}", block_s=0.2) as client:
        yield RedisStore(client)


@pytest.fixture
async def admin(server: EmbeddedServer) -> AsyncIterator[RedisStore]:
    async with logged_in(server, "admin") as store:
        await store.client.command.call("FLUSHALL")
        await initialise(store.client)
        yield store


def test_every_password_must_be_set_before_use() -> None:
    users = re.findall(r"^user (\S+) (on|off)(.*)$", SHIPPED.read_text(), flags=re.MULTILINE)
    assert {name for name, state, rules in users if state == "on" and ">CHANGE-ME" not in rules} == set()
    assert ("default", "off") in [(name, state) for name, state, _ in users]


async def test_the_control_plane_can_do_all_of_its_work(server: EmbeddedServer, admin: RedisStore) -> None:
    async with logged_in(server, "control") as store:
        await startup_check(store.client, local_ms=await store.log.now())
        writer = EventWriter(store.log, "control")
        await writer.start()
        held = await store.locks.acquire("node-1", "pod", ttl_ms=60_000)
        assert isinstance(held, Held)
        await store.locks.acquire("node-1", "other", ttl_ms=1000, wait_ms=30)
        await writer.append([lost("node-1")], expected={"node/node-1": 0})
        await store.locks.held()
        await store.locks.renew(held, ttl_ms=1000)
        await store.locks.release(held)
        await store.locks.evict("node-1", "pod")
        await store.checkpoints.save("cluster", Position(1, "1-0"), "INC", "s", b"x")
        await store.checkpoints.save("cluster", Position(2, "2-0"), "INC", "s", b"y")
        assert len(await store.checkpoints.load("cluster")) == 2
        await store.leases.keep("job", "x", ttl_ms=1000)
        await store.leases.alive(["job"])
        await admin.inbox("node-1").put([sealed(1, producer=agent_name("node-1"), node="node-1")])
        with anyio.fail_after(5):
            async for names in store.inboxes.rung():
                assert list(names) == ["node-1"]
                break
        done = await Ingester(store.log, store.inboxes, writer).ingest("node-1")
        assert done.rejected == 1
        with anyio.fail_after(5):
            async for _ in store.log.tail(START):
                break
        for command in (("FLUSHALL",), ("FUNCTION", "FLUSH"), ("CONFIG", "SET", "maxmemory", "1"), ("ACL", "LIST")):
            with pytest.raises(StoreUnsafe, match="may not"):
                await store.client.command.call(*command)


async def test_an_agent_can_do_its_work(server: EmbeddedServer, admin: RedisStore) -> None:
    async with logged_in(server, "agent-node-1") as store:
        await store.inbox("node-1").put([sealed(1, node="node-1")])
        await store.leases.keep("node-1", "1:1", ttl_ms=60_000)
        with anyio.fail_after(5):
            async for _ in store.feed("node-1").tail("0-0"):
                break
    assert len(await admin.inboxes.peek("node-1")) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("XADD", "hami:{p0}:in:node-2", "*", "d", "x"),
        ("XADD", "hami:{p0}:in:node-1x", "*", "d", "x"),
        ("XADD", "hami:{p0}:log", "MAXLEN", "0", "*", "d", "x"),
        ("XREAD", "STREAMS", "hami:{p0}:log", "0"),
        ("XREAD", "STREAMS", "hami:{p0}:out:node-2", "0"),
        ("XADD", "hami:{p0}:out:node-1", "*", "d", "x"),
        ("SET", "hami:{p0}:bell", "x"),
        ("SET", "hami:{p0}:in:node-1", "x"),
        ("XADD", "hami:{p0}:lease:node-1", "*", "d", "x"),
        ("SET", "hami:{p0}:lease:node-2", "x"),
        ("SET", "hami:{p0}:lock:node-1", "1:h:me"),
        ("SET", "hami:{p0}:incarnation", "x"),
        ("XTRIM", "hami:{p0}:in:node-1", "MAXLEN", "0"),
        ("XRANGE", "hami:{p0}:in:node-1", "-", "+"),
        ("DEL", "hami:{p0}:lease:node-1"),
        ("HGETALL", META),
        ("FCALL", "hami_lock_state", "3", "hami:{p0}:lock:n", "hami:{p0}:queue:n", "hami:{p0}:locks", "n"),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
async def test_an_agent_can_do_nothing_else(server: EmbeddedServer, admin: RedisStore, command: tuple[str, ...]) -> None:
    async with logged_in(server, "agent-node-1") as store:
        with pytest.raises(StoreUnsafe, match="may not"):
            await store.client.command.call(*command)


async def test_a_reader_reads_and_never_writes(server: EmbeddedServer, admin: RedisStore) -> None:
    async with logged_in(server, "reader") as store:
        assert len(await store.log.read(START)) == 1
        assert (await store.log.head()).g == 1
        assert await store.locks.held() == []
        with anyio.fail_after(5):
            async for batch in store.log.tail(START):
                assert len(batch) == 1
                break
        for command in (("XADD", "hami:{p0}:log", "*", "d", "x"), ("DEL", "hami:{p0}:log"), ("SET", "hami:{p0}:g", "0")):
            with pytest.raises(StoreUnsafe, match="may not"):
                await store.client.command.call(*command)


async def test_the_archive_seals_trims_and_forgets_and_nobody_else_trims_the_log(
    server: EmbeddedServer, admin: RedisStore, tmp_path: Path
) -> None:
    keys = admin.client.keys
    written = EventWriter(admin.log, "control")
    await written.start()
    for _ in range(3):
        await written.append([lost("node-1")])
    await admin.checkpoints.save(FOLD, await admin.log.head(), (await startup(admin)).meta.incarnation, "s", b"x")
    await admin.client.command.call("XGROUP", "CREATE", keys.log, "alerts", "$")
    settings = ArchiveSettings(dir=str(tmp_path), segment_s=0, settle_s=0, keep_hours=0)
    await run_archive(settings, RedisSettings(url=f"unix://archive:secret@{server.socket}"), once=True)
    assert ArchiveFolder(tmp_path).last() is not None
    assert [each.position.g for each in await admin.log.read(Position(0, "0-1"))] == [4, 5]
    async with logged_in(server, "archive") as store:
        retention = RedisRetention(store.client, incarnation=(await startup(store)).meta.incarnation)
        assert await retention.forget({"pod/u1": 1}) == 0
        for command in (
            ("DEL", keys.log),
            ("XDEL", keys.log, "1-0"),
            ("XTRIM", keys.inbox("node-1"), "MAXLEN", "0"),
            ("SET", keys.lock("node-1"), "1:h:me"),
            ("SET", keys.checkpoint("cluster"), "x"),
            ("HSET", META, "incarnation", "x"),
            ("FLUSHALL",),
        ):
            with pytest.raises(StoreUnsafe, match="may not"):
                await store.client.command.call(*command)
    for user in ("control", "reader", "consumer", "agent-node-1"):
        async with logged_in(server, user) as store:
            with pytest.raises(StoreUnsafe, match="may not"):
                await store.client.command.call("XTRIM", keys.log, "MINID", "0-1")


async def startup(store: RedisStore) -> Startup:
    return await startup_check(store.client, local_ms=await store.log.now())


async def test_a_consumer_can_do_its_work(server: EmbeddedServer, admin: RedisStore) -> None:
    async with logged_in(server, "consumer") as store:
        await startup_check(store.client, local_ms=await store.log.now())
        group, checkpoints, locks = store.group("alerts", "one"), store.checkpoints, store.locks
        assert await group.create(START)
        (record,) = await group.new()
        assert len(await group.claim(idle_ms=0)) == 1
        await group.bury(record.position.entry, node="", to="webhook", raw=b"{}", why="w")
        await group.acknowledge([record.position.entry])
        (letter,) = await dead_letters(admin.client)
        await replay(admin.client, letter)
        await group.forget((await group.returned())[0].id)
        for g in (1, 2):
            await checkpoints.save("alerts", Position(g, f"{g}-0"), "INC", "s", b"x")
        assert len(await checkpoints.load("alerts")) == 2
        held = await locks.acquire("job:alerts", "one", ttl_ms=60_000)
        assert isinstance(held, Held)
        await locks.acquire("job:alerts", "two", ttl_ms=1000)
        await locks.renew(held, ttl_ms=1000)
        await locks.release(held)
        assert (await store.log.head()).g == 1
        assert len(await store.log.read(START)) == 1


async def test_a_consumer_cannot_touch_the_log_nor_what_others_keep(server: EmbeddedServer, admin: RedisStore) -> None:
    log = admin.client.keys.log
    async with logged_in(server, "consumer") as store:
        for command in (("XADD", log, "*", "d", "x"), ("XTRIM", log, "MAXLEN", "0"), ("DEL", log), ("XDEL", log, "1-0")):
            with pytest.raises(StoreUnsafe, match="may not"):
                await store.client.command.call(*command)
        writer = EventWriter(store.log, "consumer")
        await writer.start()
        with pytest.raises(StoreUnsafe, match="may not"):
            await writer.append([lost("node-1")])
        with pytest.raises(StoreUnsafe, match="may not"):
            await store.checkpoints.save("cluster", Position(1, "1-0"), "INC", "s", b"x")
        with pytest.raises(StoreUnsafe, match="may not"):
            await store.locks.acquire("node-1", "one", ttl_ms=1000)
        with pytest.raises(StoreUnsafe, match="may not"):
            await store.group("other", "one").bury("1-0", node="", to="", raw=b"", why="")
