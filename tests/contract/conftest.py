"""One store for each implementation: the same contract holds for all."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest

from hami.events.memory import MemoryStore
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.events.store import Store
from tests.support.redis_server import DISTRIBUTION, WHEEL, fresh_client, running_server

Servers = Callable[[str], EmbeddedServer]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """A server by name, started when first asked for."""
    started: dict[str, EmbeddedServer] = {}
    with ExitStack() as stack:

        def get(name: str) -> EmbeddedServer:
            if name not in started:
                started[name] = stack.enter_context(running_server(name))
            return started[name]

        yield get


@pytest.fixture(params=["memory", WHEEL, DISTRIBUTION])
async def store(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    async for client in fresh_client(servers(request.param)):
        yield RedisStore(client, sweep_s=0.5)
