"""The lock rules in Lua and those in Python are the same rules: any sequence of steps leaves both in the same state.

Time is not left to chance: a lock runs out when its key is taken away, which is all that an expiry does.
"""

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from hami.events.lease import Release
from hami.events.memory_locks import LockRules
from hami.events.redis.client import Client, text
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from tests.support.key_leaks import unlisted_keys

OWNERS = st.sampled_from(["a", "b:c", "d e"])
LONG = 1_000_000
NOW = 1


class LocksAgree(RuleBasedStateMachine):
    server: EmbeddedServer

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.client = Client(self.server.url)
        self.model = LockRules()
        self.highest = 0

    @initialize()
    def empty(self) -> None:
        async def start() -> None:
            await self.client.command.call("FLUSHALL")
            await initialise(self.client)

        self.loop.run(start())

    def call(self, function: str, *args: str | int) -> list[bytes]:
        keys = self.client.keys
        names = [keys.lock("n1"), keys.queue("n1"), keys.locks]
        reply: list[bytes] = self.loop.run(
            self.client.fcall(f"hami_lock_{function}", names, ["n1", keys.wake_prefix("n1"), *args])
        )
        return reply

    @rule(owner=OWNERS, wait=st.sampled_from([0, LONG]))
    def acquire(self, owner: str, wait: int) -> None:
        found = self.model.acquire(owner, NOW, LONG, wait)
        reply = self.call("acquire", owner, LONG, wait)
        if isinstance(found, str):
            assert [text(each) for each in reply] == ["HELD", str(self.model.token), found]
        else:
            assert [text(each) for each in reply[:4]] == ["BUSY", self.model.holder(NOW), str(self.model.token), str(found)]

    @rule(owner=OWNERS, off=st.sampled_from([0, 0, 1, -1]))
    def release(self, owner: str, off: int) -> None:
        token = self.model.token + off
        assert self._release(self.call("release", owner, token)) is self.model.release(owner, token, NOW)

    @rule(owner=OWNERS, off=st.sampled_from([0, 0, 1]))
    def renew(self, owner: str, off: int) -> None:
        token = self.model.token + off
        assert (self.call("renew", owner, token, LONG)[0] == b"RENEWED") == self.model.renew(owner, token, NOW, LONG)

    @rule(owner=OWNERS)
    def evict(self, owner: str) -> None:
        assert self._release(self.call("evict", owner)) is self.model.evict(owner, NOW)

    @rule(owner=OWNERS)
    def leave(self, owner: str) -> None:
        self.call("leave", owner)
        self.model.leave(owner, NOW)

    @rule()
    def run_out(self) -> None:
        self.loop.run(self.client.command.call("DEL", self.client.keys.lock("n1")))
        self.model.until = 0

    @staticmethod
    def _release(reply: list[bytes]) -> Release:
        return Release(text(reply[0]).lower())

    @invariant()
    def same_state(self) -> None:
        reply = self.call("state")
        holder, waiters = self.model.holder(NOW), self.model.waiters(NOW)
        if reply[0] == b"FREE":
            assert (holder, waiters) == ("", ())
        else:
            found = (text(reply[1]), int(reply[2]), tuple(text(each) for each in reply[4]))
            assert found == (holder, self.model.token, waiters)
        value = text(self.loop.run(self.client.command.call("GET", self.client.keys.lock("n1"))))
        parts = value.split(":", 3)
        expected = [str(self.model.token), "h" if self.model.confirmed else "g", holder] if holder else [""]
        assert [*parts[:2], *parts[3:]] == expected

    @invariant()
    def tokens_never_fall(self) -> None:
        assert self.model.token >= self.highest
        self.highest = self.model.token

    @invariant()
    def nobody_waits_twice_or_while_holding(self) -> None:
        waiters = self.model.waiters(NOW)
        assert len(set(waiters)) == len(waiters)
        assert not self.model.holder(NOW) or self.model.holder(NOW) not in waiters

    def teardown(self) -> None:
        assert self.loop.run(unlisted_keys(self.client)) == []
        self.loop.run(self.client.close())
        self.loop.close()


def test_the_rules_agree(valkey_server: EmbeddedServer) -> None:
    machine = type("Machine", (LocksAgree,), {"server": valkey_server})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]),
    )
