"""Which stores hami uses: what it refuses, what it warns of, and what `initialise` does, on each server it must work on."""

import anyio
import pytest

from hami.domain.errors import InvalidInput, StoreUnavailable, StoreUnsafe
from hami.events.catalog.journal import IncarnationStarted
from hami.events.envelope import START
from hami.events.redis.client import Client, text
from hami.events.redis.log import RedisLog
from hami.events.redis.meta import Startup, check_server, initialise, library_code, start_incarnation, startup_check
from tests.support.drafts import sealed
from tests.support.redis_server import running_server


async def checked(client: Client, *, skew_ms: int = 0) -> Startup:
    return await startup_check(client, local_ms=await RedisLog(client).now() + skew_ms)


async def configured(client: Client, name: str, value: str) -> str:
    """Set a server option; what it was before."""
    before = text((await client.command.call("CONFIG", "GET", name))[1])
    await client.command.call("CONFIG", "SET", name, value)
    return before


async def test_a_good_store_passes_without_a_warning(client: Client) -> None:
    found = await checked(client)
    assert found.warnings == ()
    assert found.meta.incarnation


async def test_initialising_again_changes_nothing(client: Client) -> None:
    first = await checked(client)
    again = await initialise(client)
    assert not again.created
    assert (await checked(client)).meta == first.meta
    records = await RedisLog(client).read(START)
    assert [r.event for r in records] == [IncarnationStarted(incarnation=first.meta.incarnation, store=first.meta.store)]


async def test_several_may_initialise_at_once(client: Client) -> None:
    await client.command.call("FLUSHALL")
    found = []

    async def init() -> None:
        found.append(await initialise(client))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(init)
    assert len({each.incarnation for each in found}) == 1
    assert sum(each.created for each in found) == 1
    assert len(await RedisLog(client).read(START)) == 1


async def test_an_uninitialised_store_says_what_to_do(client: Client) -> None:
    await client.command.call("FLUSHALL")
    with pytest.raises(StoreUnsafe, match="hami init"):
        await checked(client)
    with pytest.raises(StoreUnsafe, match="hami init"):
        await RedisLog(client).append([sealed(1)], [()])


async def test_missing_functions_say_what_to_do(client: Client) -> None:
    await client.command.call("FUNCTION", "FLUSH")
    with pytest.raises(StoreUnsafe, match="hami init"):
        await checked(client)
    with pytest.raises(StoreUnsafe, match="hami init"):
        await RedisLog(client).append([sealed(1)], [()])
    await initialise(client)
    await checked(client)


async def test_another_library_of_our_name_is_refused_until_replaced(client: Client) -> None:
    await client.command.call("FUNCTION", "LOAD", "REPLACE", library_code() + "\n-- changed\n")
    with pytest.raises(StoreUnsafe, match="another library"):
        await checked(client)
    with pytest.raises(StoreUnsafe, match="another library"):
        await initialise(client)
    await initialise(client, replace_functions=True)
    await checked(client)


async def test_eviction_is_refused(client: Client) -> None:
    before = await configured(client, "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreUnsafe, match="noeviction"):
            await checked(client)
    finally:
        await configured(client, "maxmemory-policy", before)


async def test_a_replica_is_refused(client: Client) -> None:
    await client.command.call("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnsafe, match="replica"):
            await checked(client)
        with pytest.raises(StoreUnavailable):
            await RedisLog(client).append([sealed(1)], [()])
    finally:
        await client.command.call("REPLICAOF", "NO", "ONE")


def test_a_server_without_functions_is_refused() -> None:
    with pytest.raises(StoreUnsafe, match=r"7\.0"):
        check_server({"redis_version": "6.2.14", "role": "master", "maxmemory_policy": "noeviction"})
    check_server({"redis_version": "7.0.0", "role": "master", "maxmemory_policy": "noeviction"})


async def test_what_is_merely_unwise_is_a_warning(client: Client) -> None:
    before = await configured(client, "appendonly", "no")
    used = int(await _info(client, "used_memory"))
    await configured(client, "maxmemory", str(used + used // 5))
    try:
        warnings = (await checked(client, skew_ms=10_000)).warnings
    finally:
        await configured(client, "maxmemory", "0")
        await configured(client, "appendonly", before)
    assert [word for word in ("append-only", "memory", "clock") if any(word in each for each in warnings)] == [
        "append-only",
        "memory",
        "clock",
    ]


async def _info(client: Client, name: str) -> str:
    lines = text(await client.command.call("INFO")).splitlines()
    return next(line.partition(":")[2] for line in lines if line.startswith(name + ":"))


async def test_recovery_starts_a_new_incarnation_that_the_old_ones_notice(client: Client) -> None:
    log = RedisLog(client)
    old = await log.incarnation()
    new = await start_incarnation(client)
    assert new.incarnation != old
    with pytest.raises(StoreUnsafe, match="another one now"):
        await log.append([sealed(1)], [()])
    last = (await RedisLog(client).read(START))[-1].event
    assert isinstance(last, IncarnationStarted)
    assert (last.incarnation, last.previous) == (new.incarnation, old)


async def test_a_password_that_is_wrong_is_an_unavailable_store_and_a_bad_url_a_bad_input() -> None:
    with pytest.raises(InvalidInput, match=r"redis\.url"):
        Client("ftp://127.0.0.1/0")
    with running_server(options=("--requirepass", "secret")) as server:
        async with Client(f"unix://:wrong@{server.socket}") as client:
            with pytest.raises(StoreUnavailable):
                await client.command.call("PING")
