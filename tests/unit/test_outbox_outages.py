"""An hour without the central store, an agent or its sidecar killed at any step: the log is complete and in order, or says
what is missing.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hami.domain.device import Health
from hami.domain.errors import StoreUnavailable
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import AllocationPrepared
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.journal import GapAccepted
from hami.events.envelope import START, Envelope
from hami.events.ingester import Ingester
from hami.events.log import Record
from hami.events.memory import MemoryStore
from hami.events.outbox import MemorySpool, Outbox, Spool, SpoolState
from hami.events.redis.client import Client
from hami.events.redis.spool import SidecarSpool
from hami.events.undelivered import NoteFile
from hami.events.writer import EventWriter
from tests.support.waiting import wait_until

NODE = "n1"
HOUR_S, CARDS = 3600, 8


class Killed(Exception):  # noqa: N818 - what happens to the process
    """The process ends here."""


class Steps:
    """Counts the steps of a life and ends it at the one that is named; 0 = it lives on. `calls` is what was begun."""

    def __init__(self, die_at: int = 0) -> None:
        self._die_at, self._count = die_at, 0
        self.calls: list[str] = []
        self.tried = self.spooled = 0

    def step(self) -> None:
        self._count += 1
        if self._count == self._die_at:
            raise Killed


class SteppedSpool:
    """Implements Spool over another: a step before and after each call that changes something."""

    def __init__(self, inner: Spool, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    async def open(self, new_epoch: Callable[[], int]) -> SpoolState:
        return await self._inner.open(new_epoch)

    async def add(self, envelopes: Sequence[Envelope]) -> bool:
        self._steps.step()
        self._steps.tried += len(envelopes)
        added = await self._inner.add(envelopes)
        self._steps.spooled += len(envelopes) if added else 0
        self._steps.step()
        return added

    async def waiting(self, limit: int) -> Sequence[Envelope]:
        return await self._inner.waiting(limit)

    async def acknowledge(self, last: Envelope, now: EpochMs) -> None:
        self._steps.calls.append("acknowledge")
        self._steps.step()
        await self._inner.acknowledge(last, now)
        self._steps.step()

    async def kept(self) -> Sequence[Envelope]:
        return await self._inner.kept()

    async def rewind(self, first: Envelope) -> None:
        await self._inner.rewind(first)

    async def clear(self) -> None:
        await self._inner.clear()


class Central:
    """The central store: a log, an inbox that can be away, and the ingester between them."""

    def __init__(self) -> None:
        self.store, self.away, self.in_flight = MemoryStore(), False, 0
        self.steps = Steps()

    async def put(self, envelopes: Sequence[Envelope]) -> None:
        self.steps.calls.append("put")
        assert self.in_flight == 0, "one batch at a time"
        self.in_flight += 1
        try:
            self.steps.step()
            await anyio.lowlevel.checkpoint()
            if self.away:
                raise StoreUnavailable("away")
            await self.store.inbox(NODE).put(envelopes)
            self.steps.step()
        finally:
            self.in_flight -= 1

    async def records(self) -> list[Record]:
        """The agent's part of the log, after everything that has arrived was ingested."""
        writer = EventWriter(self.store.log, "control")
        await writer.start()
        await Ingester(self.store.log, self.store.inboxes, writer).ingest(NODE)
        found = await self.store.log.read(START, limit=100_000)
        return [each for each in found if each.envelope.producer == f"agent-{NODE}"]

    async def events(self) -> list[Any]:
        return [each.event for each in await self.records()]


class Node:
    """Lives of one agent's outbox, one after the other, over a spool that survives them or does not."""

    def __init__(self, spool: Callable[[], Spool], folder: Path, *, sidecar: bool = False) -> None:
        self._spool, self.sidecar, self._epoch = spool, sidecar, 100
        self.folder, self.central, self.now = folder, Central(), EpochMs(1_000_000)

    def outbox(self, steps: Steps | None = None) -> Outbox:
        self.central.steps = steps or Steps()
        return Outbox(
            NODE,
            self.central,
            SteppedSpool(self._spool(), self.central.steps),
            self._next_epoch,
            clock=lambda: self.now,
            note=NoteFile(self.folder / "undelivered.json", every_s=0.02),
        )

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch


@asynccontextmanager
async def life(outbox: Outbox) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        yield
        tasks.cancel_scope.cancel()


async def until_killed(outbox: Outbox) -> None:
    """To the step at which this life ends, or to its last."""
    try:
        async with life(outbox):
            await delivered(outbox)
    except* Killed:
        pass


@pytest.fixture(params=["memory", "sidecar"])
def node(request: pytest.FixtureRequest, valkey_client: Client, tmp_path: Path) -> Node:
    sidecar = request.param == "sidecar"
    return Node((lambda: SidecarSpool(valkey_client)) if sidecar else MemorySpool, tmp_path, sidecar=sidecar)


@pytest.fixture
def with_sidecar(valkey_client: Client, tmp_path: Path) -> Node:
    return Node(lambda: SidecarSpool(valkey_client), tmp_path)


def prepared(number: int) -> AllocationPrepared:
    return AllocationPrepared(reservation=f"r-{number}", owner_uid=f"u-{number}", container="main")


def reservations(events: Sequence[object]) -> list[str]:
    return [each.reservation for each in events if isinstance(each, AllocationPrepared)]


def losses(events: Sequence[object]) -> list[GapAccepted]:
    return [each for each in events if isinstance(each, GapAccepted)]


async def delivered(outbox: Outbox) -> None:
    await wait_until(lambda: outbox.state.idle, "everything to be in the inbox", timeout=60)


async def test_an_hour_without_the_store(node: Node) -> None:
    """A container and two changes of health each second. A sidecar keeps all of it. Memory keeps every allocation, in order,
    and each card's last health; what it left out is counted.
    """
    node.central.away, outbox = True, node.outbox()
    async with life(outbox):
        await wait_until(lambda: outbox.state.epoch, "the first epoch")
        for second in range(HOUR_S):
            node.now = EpochMs(node.now + 1000)
            outbox.publish(prepared(second))
            for each in range(2):
                at = 2 * second + each
                now = Health.UNHEALTHY if at // CARDS % 2 else Health.HEALTHY
                outbox.publish(
                    DeviceHealthChanged(device=f"GPU-{at % CARDS}", was=Health.UNKNOWN, now=now, reason=str(at)), subject="x"
                )
            if node.sidecar and second % 200 == 0:
                await wait_until(lambda: outbox.state.backlog == 0, "the sidecar to have them")
        await wait_until(lambda: outbox.state.stuck_for_s > 0, "the store to be missed")
        node.central.away = False
        await delivered(outbox)
    records = await node.central.records()
    events = [each.event for each in records]
    assert reservations(events) == [f"r-{second}" for second in range(HOUR_S)]
    changes = [each for each in events if isinstance(each, DeviceHealthChanged)]
    assert {each.device: int(each.reason) for each in changes} == {
        f"GPU-{at % CARDS}": at for at in range(2 * HOUR_S - CARDS, 2 * HOUR_S)
    }
    said = sum(int(loss.why.split("left out while the store was away: ")[1].split()[0]) for loss in losses(events))
    assert len(changes) + said == 2 * HOUR_S
    assert (said == 0) is node.sidecar
    happened = [each.envelope.occurred_ms for each in records if isinstance(each.event, AllocationPrepared)]
    assert happened == sorted(happened)
    assert happened[-1] - happened[0] == (HOUR_S - 1) * 1000
    assert [each.envelope.seq for each in records] == list(range(1, len(records) + 1))


async def test_one_batch_is_on_its_way_at_a_time(node: Node) -> None:
    outbox = node.outbox()
    async with life(outbox):
        for number in range(450):
            outbox.publish(prepared(number))
        await delivered(outbox)
    assert node.central.steps.calls == ["put", "acknowledge"] * (len(node.central.steps.calls) // 2)
    assert len(node.central.steps.calls) >= 10


@pytest.mark.parametrize("step", range(1, 19))
async def test_killed_at_any_step_what_the_sidecar_took_arrives_once_and_in_order(with_sidecar: Node, step: int) -> None:
    node, steps = with_sidecar, Steps(step)
    first = node.outbox(steps)
    for number in range(250):
        first.publish(prepared(number))
    await until_killed(first)
    second = node.outbox()
    second.publish(prepared(1000))
    async with life(second):
        await delivered(second)
    events = await node.central.events()
    *before, last = reservations(events)
    assert before == [f"r-{number}" for number in range(len(before))]
    assert last == "r-1000"
    assert steps.spooled <= len(before) <= steps.tried, "an answer may be lost on the way; what was answered is there"
    assert losses(events) == []


@pytest.mark.parametrize("step", range(1, 19, 3))
async def test_killed_at_any_step_without_a_sidecar_the_log_goes_on_in_order(tmp_path: Path, step: int) -> None:
    node = Node(MemorySpool, tmp_path)
    first = node.outbox(Steps(step))
    for number in range(250):
        first.publish(prepared(number))
    await until_killed(first)
    second = node.outbox()
    second.publish(prepared(1000))
    async with life(second):
        await delivered(second)
    *before, last = reservations(await node.central.events())
    assert before == [f"r-{number}" for number in range(len(before))]
    assert last == "r-1000"


async def dies_in_an_outage(node: Node, count: int) -> None:
    """An agent that has noticed the outage, noted what waits, and is gone."""
    node.central.away, outbox = True, node.outbox()
    async with life(outbox):
        for number in range(count):
            outbox.publish(prepared(number))

        def noted() -> bool:
            note = NoteFile(node.folder / "undelivered.json").read()
            return note is not None and note.backlog + note.waiting == count

        await wait_until(noted, "the note of what waits")
    node.central.away = False


async def test_what_died_with_the_agent_is_named_by_its_next_life(tmp_path: Path) -> None:
    node = Node(MemorySpool, tmp_path)
    await dies_in_an_outage(node, 30)
    second = node.outbox()
    second.publish(prepared(1000))
    async with life(second):
        await delivered(second)
        await wait_until(lambda: not (tmp_path / "undelivered.json").exists(), "the note to be taken away")
    loss, event = await node.central.events()
    assert (loss.epoch, loss.why) == (
        101,
        "the agent ended while the store was away: up to 30 events of epoch 101 were not delivered",
    )
    assert event == prepared(1000)


async def test_what_the_sidecar_kept_is_not_called_lost(with_sidecar: Node) -> None:
    await dies_in_an_outage(with_sidecar, 30)
    second = with_sidecar.outbox()
    async with life(second):
        await wait_until(lambda: second.state.delivered == 30, "all to arrive")
    events = await with_sidecar.central.events()
    assert (reservations(events), losses(events)) == ([f"r-{number}" for number in range(30)], [])


async def test_a_sidecar_that_lost_everything_with_the_agent_is_named(with_sidecar: Node, valkey_client: Client) -> None:
    await dies_in_an_outage(with_sidecar, 30)
    await valkey_client.command.call("FLUSHALL")
    second = with_sidecar.outbox()
    async with life(second):
        await delivered(second)
        await wait_until(lambda: second.state.delivered == 1, "the loss to be told")
    [loss] = await with_sidecar.central.events()
    assert "up to 30 events" in loss.why


async def test_a_sidecar_that_is_emptied_under_a_running_agent_is_named(with_sidecar: Node, valkey_client: Client) -> None:
    node = with_sidecar
    outbox = node.outbox()
    async with life(outbox):
        outbox.publish(prepared(0))
        await delivered(outbox)
        node.central.away = True
        for number in range(1, 5):
            outbox.publish(prepared(number))
        await wait_until(lambda: outbox.state.backlog == 0 and outbox.state.stuck_for_s > 0, "the sidecar to have them")
        await valkey_client.command.call("FLUSHALL")
        node.central.away = False
        outbox.publish(prepared(5))
        await wait_until(lambda: outbox.state.idle, "the rest")
        await node.central.records()
        outbox.resend(101, 1)  # as the control plane asks, having seen a gap
        await wait_until(lambda: outbox.state.epoch > 101, "another epoch")
        await delivered(outbox)
    events = await node.central.events()
    assert reservations(events) == ["r-0", "r-5"]
    [loss] = losses(events)
    assert (loss.first_seq, loss.last_seq) == (2, 5)
