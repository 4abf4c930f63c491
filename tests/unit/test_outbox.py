"""The outbox: never in the way of its caller, in order, nothing lost without being named."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from hami.domain.device import Health
from hami.domain.errors import StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import AllocationPrepared
from hami.events.catalog.device import DeviceHealthChanged, FaultKind, FaultObserved
from hami.events.catalog.journal import GapAccepted
from hami.events.codec import decode_event
from hami.events.envelope import Envelope
from hami.events.outbox import MemorySpool, Outbox, Spool
from hami.events.redis.client import Client
from hami.events.redis.keys import OutboxKeys
from hami.events.redis.spool import SidecarSpool
from tests.support.redis_server import running_server
from tests.support.waiting import wait_until


class FlakyInbox:
    """An inbox that can be away. `lose_answer` takes the batch, then fails: the outcome is unknown to the sender."""

    def __init__(self) -> None:
        self.got: list[Envelope] = []
        self.away = False
        self.lose_answer = 0
        self.refusal: StoreUnsafe | None = None

    async def put(self, envelopes: Sequence[Envelope]) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self.away:
            raise StoreUnavailable("away")
        self.got += envelopes
        if self.lose_answer:
            self.lose_answer -= 1
            raise StoreUnavailable("no answer")

    def ids(self) -> list[str]:
        return list(dict.fromkeys(envelope.id for envelope in self.got))

    def events(self) -> list[object]:
        first = {envelope.id: envelope for envelope in self.got}
        return [decode_event(envelope) for envelope in first.values()]


def fault(code: int, device: str = "GPU-1") -> FaultObserved:
    return FaultObserved(device=device, kind=FaultKind.XID, code=code)


def prepared(i: int) -> AllocationPrepared:
    return AllocationPrepared(reservation=f"r-{i}", owner_uid=f"u-{i}", container="main")


def epochs(start: int = 1) -> Callable[[], int]:
    counter: Iterator[int] = iter(range(start, start + 100))
    return lambda: next(counter)


@pytest.fixture(params=["memory", "sidecar"])
def spool(request: pytest.FixtureRequest, valkey_client: Client) -> Callable[[], Spool]:
    """Makes a spool; for the sidecar each one is over the same server, as after a restart of the agent."""
    return MemorySpool if request.param == "memory" else lambda: SidecarSpool(valkey_client)


@asynccontextmanager
async def running(outbox: Outbox) -> AsyncIterator[Outbox]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        yield outbox
        tasks.cancel_scope.cancel()


async def test_delivers_in_order_with_consecutive_numbers_and_a_chain(spool: Callable[[], Spool]) -> None:
    inbox = FlakyInbox()
    async with running(Outbox("n1", inbox, spool(), epochs(7))) as outbox:
        for i in range(250):
            outbox.publish(prepared(i))
        await wait_until(lambda: len(inbox.got) == 250, "all to arrive")
    assert [envelope.seq for envelope in inbox.got] == list(range(1, 251))
    assert {envelope.epoch for envelope in inbox.got} == {7}
    assert {envelope.producer for envelope in inbox.got} == {"agent-n1"}
    assert len({envelope.chain for envelope in inbox.got}) == 250
    assert inbox.events() == [prepared(i) for i in range(250)]


async def test_publishing_works_while_the_store_is_away_and_all_arrives_afterwards(spool: Callable[[], Spool]) -> None:
    inbox = FlakyInbox()
    inbox.away = True
    async with running(Outbox("n1", inbox, spool(), epochs())) as outbox:
        for i in range(500):
            outbox.publish(prepared(i))
        await wait_until(lambda: outbox.state.stuck_for_s > 0, "a failed try")
        inbox.away = False
        await wait_until(lambda: len(inbox.ids()) == 500, "all to arrive")
        await wait_until(lambda: outbox.state.stuck_for_s == 0, "the trouble to be over")
    assert inbox.events() == [prepared(i) for i in range(500)]


async def test_a_store_that_must_not_be_used_is_waited_out(spool: Callable[[], Spool]) -> None:
    inbox = FlakyInbox()
    inbox.refusal = StoreUnsafe("NOPERM")
    async with running(Outbox("n1", inbox, spool(), epochs())) as outbox:
        outbox.publish(prepared(1))
        await wait_until(lambda: outbox.state.stuck_for_s > 0, "the refusal is noticed")
        inbox.refusal = None
        await wait_until(inbox.ids, "the event once the store is usable")


async def test_a_lost_answer_sends_the_same_numbers_again(spool: Callable[[], Spool]) -> None:
    inbox = FlakyInbox()
    inbox.lose_answer = 2
    async with running(Outbox("n1", inbox, spool(), epochs())) as outbox:
        outbox.publish(prepared(1))
        await wait_until(lambda: outbox.state.delivered == 1, "the event to be acknowledged")
    assert [envelope.id for envelope in inbox.got] == ["agent-n1/1/1"] * 3
    assert len({envelope.chain for envelope in inbox.got}) == 1


async def test_what_the_log_has_not_seen_is_sent_again(spool: Callable[[], Spool]) -> None:
    inbox = FlakyInbox()
    async with running(Outbox("n1", inbox, spool(), epochs())) as outbox:
        for i in range(10):
            outbox.publish(prepared(i))
        await wait_until(lambda: outbox.state.delivered == 10, "all to be acknowledged")
        inbox.got.clear()
        outbox.resend(1, 7)
        await wait_until(lambda: len(inbox.got) == 3, "the unseen ones")
        outbox.resend(1, 10)
        outbox.publish(prepared(10))
        await wait_until(lambda: outbox.state.backlog == 0 and len(inbox.got) == 4, "the next one")
    assert [envelope.seq for envelope in inbox.got] == [8, 9, 10, 11]


async def test_what_is_no_longer_kept_is_named_and_a_new_epoch_begins() -> None:
    inbox = FlakyInbox()
    async with running(Outbox("n1", inbox, MemorySpool(keep_count=3), epochs())) as outbox:
        for i in range(1, 11):
            outbox.publish(prepared(i))
        await wait_until(lambda: outbox.state.delivered == 10, "all to be acknowledged")
        inbox.got.clear()
        outbox.resend(1, 4)
        await wait_until(lambda: len(inbox.got) == 4, "the loss and what is left")
    assert [(envelope.epoch, envelope.seq) for envelope in inbox.got] == [(2, 1), (2, 2), (2, 3), (2, 4)]
    loss, *rest = inbox.events()
    assert isinstance(loss, GapAccepted)
    assert (loss.producer, loss.epoch, loss.first_seq, loss.last_seq) == ("agent-n1", 1, 5, 7)
    assert rest == [prepared(8), prepared(9), prepared(10)]


async def test_a_full_backlog_keeps_the_newest_health_and_every_allocation_and_says_what_it_left_out() -> None:
    inbox = FlakyInbox()
    inbox.away = True
    outbox = Outbox("n1", inbox, MemorySpool(limit=10), epochs(), limit=50)
    healths = [Health.SUSPECT, Health.UNHEALTHY]
    for i in range(200):
        change = DeviceHealthChanged(device=f"GPU-{i % 2}", was=healths[i // 2 % 2 - 1], now=healths[i // 2 % 2], reason=str(i))
        outbox.publish(change)
        if i % 5 == 0:
            outbox.publish(prepared(i))
    assert outbox.state.dropped > 0
    inbox.away = False
    async with running(outbox):
        await wait_until(lambda: outbox.state.backlog == 0 and outbox.state.delivered == len(inbox.got) > 0, "all to arrive")
    events = inbox.events()
    assert [e for e in events if isinstance(e, AllocationPrepared)] == [prepared(i) for i in range(0, 200, 5)]
    newest = {e.device: e.reason for e in events if isinstance(e, DeviceHealthChanged)}
    assert newest == {"GPU-0": "198", "GPU-1": "199"}
    losses = [e for e in events if isinstance(e, GapAccepted)]
    changes = sum(isinstance(e, DeviceHealthChanged) for e in events)
    assert f"{200 - changes} hami.device.health_changed" in losses[0].why
    assert [envelope.seq for envelope in inbox.got] == list(range(1, len(inbox.got) + 1))


async def test_a_restarted_agent_goes_on_from_its_sidecar(valkey_client: Client) -> None:
    inbox = FlakyInbox()
    inbox.away = True
    async with running(Outbox("n1", inbox, SidecarSpool(valkey_client), epochs(5))) as outbox:
        for i in range(3):
            outbox.publish(prepared(i))
        await wait_until(lambda: outbox.state.backlog == 0, "the sidecar to have them")
    inbox.away = False
    async with running(Outbox("n1", inbox, SidecarSpool(valkey_client), epochs(50))) as outbox:
        outbox.publish(prepared(3))
        await wait_until(lambda: len(inbox.ids()) == 4, "all to arrive")
        assert outbox.state.epoch == 5
    assert inbox.ids() == [f"agent-n1/5/{seq}" for seq in (1, 2, 3, 4)]


async def test_a_restarted_sidecar_costs_an_epoch_and_no_event() -> None:
    inbox = FlakyInbox()
    inbox.away = True
    with running_server(options=("--appendfsync", "always")) as server:
        async with Client(server.url) as client, running(Outbox("n1", inbox, SidecarSpool(client), epochs(5))) as outbox:
            for i in range(3):
                outbox.publish(prepared(i))
            await wait_until(lambda: outbox.state.backlog == 0, "the sidecar to have them")
        await server.restart()
        inbox.away = False
        async with Client(server.url) as client, running(Outbox("n1", inbox, SidecarSpool(client), epochs(3))) as outbox:
            outbox.publish(prepared(3))
            await wait_until(lambda: len(inbox.ids()) == 4, "all to arrive")
    assert inbox.ids() == ["agent-n1/5/1", "agent-n1/5/2", "agent-n1/5/3", "agent-n1/6/1"]


async def test_a_sidecar_that_comes_back_while_the_agent_runs_is_used_again() -> None:
    inbox = FlakyInbox()
    with running_server(options=("--appendfsync", "always")) as server:
        async with Client(server.url) as client, running(Outbox("n1", inbox, SidecarSpool(client), epochs(5))) as outbox:
            outbox.publish(prepared(0))
            await wait_until(lambda: len(inbox.ids()) == 1, "the first")
            server.kill()
            for i in range(1, 4):
                outbox.publish(prepared(i))
            await server.start()
            await wait_until(
                lambda: (
                    {e.reservation for e in inbox.events() if isinstance(e, AllocationPrepared)} == {f"r-{i}" for i in range(4)}
                ),
                "all to arrive",
            )


async def test_acknowledged_entries_leave_the_sidecar_after_their_time(valkey_client: Client) -> None:
    inbox, now = FlakyInbox(), [0]
    spool = SidecarSpool(valkey_client, keep_ms=1000)
    store_now = int((await valkey_client.command.call("TIME"))[0]) * 1000
    outbox = Outbox("n1", inbox, spool, epochs(), clock=lambda: EpochMs(store_now + now[0]))
    async with running(outbox):
        outbox.publish(prepared(1))
        await wait_until(lambda: outbox.state.delivered == 1, "the first")
        now[0] = 600_000
        outbox.publish(prepared(2))
        await wait_until(lambda: outbox.state.delivered == 2, "the second")

        async def one_left() -> bool:
            return int(await valkey_client.command.call("XLEN", OutboxKeys.entries)) == 1

        await wait_until(one_left, "the first to be forgotten")
