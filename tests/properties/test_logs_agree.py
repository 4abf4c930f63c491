"""The log in memory and the log on Redis answer every sequence of appends alike, and hold the same afterwards."""

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from hami.domain.errors import Conflict, GapFound, HamiError
from hami.events.envelope import START, Envelope, Position
from hami.events.lease import Held
from hami.events.log import Appended, Fence
from hami.events.memory import MemoryStore
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from hami.events.store import Store
from tests.support.drafts import sealed

ENTITIES = st.lists(st.sampled_from(["node/n1", "node/n2", "quota/a=b"]), max_size=3)


class LogsAgree(RuleBasedStateMachine):
    server: EmbeddedServer

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.client = Client(self.server.url)
        self.redis: Store = RedisStore(self.client)
        self.memory: Store = MemoryStore()
        self.started = START
        self.holds: list[Fence] = []

    @initialize()
    def empty(self) -> None:
        async def start() -> Position:
            await self.client.command.call("FLUSHALL")
            await initialise(self.client)
            return await self.redis.log.head()

        self.started = self.loop.run(start())

    @rule(owner=st.sampled_from(["a", "b"]))
    def lock(self, owner: str) -> None:
        found = [self.loop.run(each.locks.acquire("n1", owner, ttl_ms=10**6)) for each in (self.memory, self.redis)]
        assert (type(found[0]), found[0].token) == (type(found[1]), found[1].token)
        if isinstance(found[0], Held):
            self.holds.append(Fence("n1", owner, found[0].token))

    @rule(owner=st.sampled_from(["a", "b"]))
    def evict(self, owner: str) -> None:
        found = [self.loop.run(each.locks.evict("n1", owner)) for each in (self.memory, self.redis)]
        assert found[0] == found[1]

    @rule(
        producer=st.sampled_from(["p", "q"]),
        epoch=st.integers(1, 3),
        off=st.sampled_from([0, 0, 0, 0, 1, -1, -2]),
        entities=st.lists(ENTITIES, min_size=1, max_size=3),
        wrong=st.sampled_from([0, 0, 0, 1]),
        expect=st.booleans(),
        fenced=st.integers(0, 3),
        place=st.integers(0, 20),
    )
    def append(
        self,
        producer: str,
        epoch: int,
        off: int,
        entities: list[list[str]],
        wrong: int,
        *,
        expect: bool,
        fenced: int,
        place: int,
    ) -> None:
        seen_epoch, seen_seq, _ = self.loop.run(self.memory.log.last_of(producer))
        first = max(1, (seen_seq if seen_epoch == epoch else 0) + 1 + off)
        envelopes = [sealed(first + i, producer=producer, epoch=epoch) for i in range(len(entities))]
        names = sorted({name for each in entities for name in each}) if expect else []
        expected = {name: self._version(name) + wrong for name in names}
        fence = self.holds[place % len(self.holds)] if self.holds and not fenced else None
        answers = [self._append(each, envelopes, entities, expected, fence) for each in (self.memory, self.redis)]
        assert answers[0] == answers[1]

    def _version(self, name: str) -> int:
        records = self.loop.run(self.memory.log.read(START, limit=10**6))
        return max((record.versions.get(name, 0) for record in records), default=0)

    def _append(
        self,
        store: Store,
        envelopes: list[Envelope],
        entities: list[list[str]],
        expected: dict[str, int],
        fence: Fence | None,
    ) -> object:
        """The answer or the refusal, without what must differ (stream ids)."""
        try:
            answer = self.loop.run(store.log.append(envelopes, entities, expected=expected, fence=fence, feeds=[True] * 3))
        except GapFound as gap:
            return "gap", gap.last_epoch, gap.last_seq, bool(gap.position)
        except Conflict as conflict:
            return "conflict", conflict.actual
        except HamiError as error:
            return type(error)
        if isinstance(answer, Appended):
            return len(answer.positions), dict(answer.versions)
        return "duplicate", bool(answer.entry)

    @invariant()
    def same_log(self) -> None:
        held = [
            [
                (record.position.g - start.g, record.envelope.id, record.event, dict(record.versions))
                for record in self.loop.run(store.log.read(start, limit=10**6))
            ]
            for store, start in ((self.memory, START), (self.redis, self.started))
        ]
        assert held[0] == held[1]
        assert [each[0] for each in held[0]] == list(range(1, len(held[0]) + 1))
        for producer in ("p", "q"):
            last = [self.loop.run(store.log.last_of(producer))[:2] for store in (self.memory, self.redis)]
            assert last[0] == last[1]

    def teardown(self) -> None:
        self.loop.run(self.client.close())
        self.loop.close()


def test_the_logs_agree(valkey_server: EmbeddedServer) -> None:
    machine = type("Machine", (LogsAgree,), {"server": valkey_server})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]),
    )
