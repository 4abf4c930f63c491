"""`hami alerts` as processes: killed in the middle, and in twos."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import pytest

from hami.cli.exits import Exit
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from tests.support.alerting import FAULT, SICK, WELL, Story, fault, nothing_pending, sick, well
from tests.support.cli import start_hami
from tests.support.receivers import a_receiver, free_url
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

LONG = 100.0
"""A busy machine takes its time to start a process."""


class Replica:
    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self._address = process, address

    def kill(self) -> None:
        """As the kernel does it: nothing is said good-bye to."""
        self.process.kill()
        self.process.communicate()

    async def fetch(self, path: str) -> str:
        return await anyio.to_thread.run_sync(self._fetch, path)

    def _fetch(self, path: str) -> str:
        """The body, whatever the status; empty while nobody answers."""
        try:
            with urlopen(f"{self._address}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            with error:
                return error.read().decode()
        except OSError:
            return ""

    async def active(self) -> bool:
        """It is this one's turn, and it has read the log: what comes now is news to it."""
        return "hami_alerts_active 1.0" in await self.fetch("/metrics") and await self.ready()

    async def ready(self) -> bool:
        return '"ready":true' in await self.fetch("/readyz")


@contextmanager
def replica(store: str, receiver: str, *options: str) -> Iterator[Replica]:
    address = free_url()
    quick = ("--lease-ttl-s", "3", "--retry-most-s", "0.1", "--sweep-s", "0.5", "--redis-block-s", "0.2")
    where = ("--http-bind", address.removeprefix("http://"), "--webhook-url", receiver)
    process = start_hami(["--redis-url", store, "alerts", *where, *quick, *options])
    try:
        yield Replica(process, address)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
async def story(redis_store: RedisStore) -> Story:
    """With one event told, so that the writer's first epoch is begun."""
    story = Story(redis_store)
    await story.tell(well())
    return story


async def test_killed_between_effect_and_acknowledgement(
    valkey_server: EmbeddedServer, redis_store: RedisStore, story: Story
) -> None:
    async with a_receiver() as receiver:
        with replica(valkey_server.url, receiver.url) as first:
            await wait_until(first.active, "the first life to be active", timeout=LONG)
            receiver.held = anyio.Event()
            await story.tell(sick(), fault())
            await wait_until(lambda: receiver.calls, "the notice to arrive", timeout=LONG)
            first.kill()
        held, receiver.held = receiver.held, None
        held.set()
        with replica(valkey_server.url, receiver.url):
            await receiver.told_in_the_end([SICK, FAULT], within_s=LONG)
            await nothing_pending(redis_store)
        arrived = [call.headers["idempotency-key"] for call in receiver.calls]
        assert arrived == [receiver.keys[0], *receiver.keys], "the first came twice under one key"


async def test_of_two_replicas_one_is_killed(valkey_server: EmbeddedServer, redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as receiver:
        both = [replica(valkey_server.url, receiver.url, "--id", name) for name in ("one", "two")]
        with both[0] as one, both[1] as two:

            async def acts() -> Replica | None:
                for each in (one, two):
                    if await each.active():
                        return each
                return None

            acting = await wait_until(acts, "one of them to be active", timeout=LONG)
            assert acting is not None
            other = two if acting is one else one
            await wait_until(other.ready, "the other to be ready", timeout=LONG)
            await story.tell(sick())
            await receiver.told_in_the_end([SICK], within_s=LONG)
            await nothing_pending(redis_store)
            acting.kill()
            await story.tell(fault(), well())
            await receiver.told_in_the_end([SICK, FAULT, WELL], within_s=LONG)
            assert await other.active()
            other.process.send_signal(signal.SIGTERM)
            out, _ = await anyio.to_thread.run_sync(other.process.communicate)
            assert other.process.returncode == Exit.OK
            assert [json.loads(line)["alert"] for line in out.splitlines()] == [FAULT[0], WELL[0]]
