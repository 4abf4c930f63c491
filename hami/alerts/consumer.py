"""From the log to the sinks: one replica at a time reads, tells and acknowledges; the others stand by."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from hami.alerts.boot import Beginning, Keeper, begin
from hami.alerts.courier import Courier, Errand
from hami.alerts.decide.notice import Notice
from hami.alerts.decide.rules import watch
from hami.alerts.decide.state import AlertState
from hami.alerts.decide.wire import decode_notice
from hami.alerts.ledger import Ledger, Receipt
from hami.alerts.metrics import Metrics
from hami.alerts.sinks.base import Sink
from hami.alerts.turn import Turn
from hami.domain.errors import HamiError, HistoryChanged, InvalidInput
from hami.events.backoff import Backoff
from hami.events.envelope import entry_key
from hami.events.group import DeadLetter
from hami.events.log import Record
from hami.events.store import Store
from hami.telemetry import get_logger

MOST_OPEN: Final = 10_000
"""Unfinished entries in memory: beyond them reading waits. They are safe in the log, and the lag shows it."""

Loop = Callable[[], Awaitable[str]]
"""Runs for ever, or answers why it ended."""

_log = get_logger("alerts")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """`look_s`: seconds between looks at the lag and at returned dead letters; `sweep_s`: at entries of other consumers."""

    look_s: float = 2.0
    sweep_s: float = 30.0
    retry_most_s: float = 30.0
    checkpoint_every: int = 10_000


class Consumer:
    """Start with `run`. `booting` and `active` say how far it is."""

    def __init__(
        self,
        store: Store,
        sinks: Sequence[Sink],
        turn: Turn,
        metrics: Metrics,
        *,
        group: str,
        consumer: str,
        incarnation: str,
        timing: Timing | None = None,
    ) -> None:
        self._store, self._sinks, self._turn, self._metrics = store, sinks, turn, metrics
        self._group = store.group(group, consumer)
        self._keeper = Keeper(store.checkpoints, group, incarnation)
        self._timing = timing or Timing()
        self._ledger = Ledger()
        self._state = AlertState()
        self._saved_g = 0
        self._couriers: Mapping[str, Courier] = {}
        self.active = False
        self.booting = False

    @property
    def state(self) -> AlertState:
        """Changes in place with every batch: read it without awaiting in between."""
        return self._state

    async def run(self) -> None:
        """Until cancelled. Raises StoreUnavailable, StoreUnsafe: whatever was begun then is pending and will be taken up."""
        while True:
            if not await self._turn.take():
                self._metrics.active.set(0)
                await anyio.sleep(self._turn.every_s)
                continue
            _log.info("active")
            self.active, self.booting = True, True
            self._metrics.active.set(1)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._end_with_turn, tasks)
                    await self._live()
            finally:
                self.active = False
                self._metrics.active.set(0)
                await self._turn.leave()
            _log.warning("standing by: another replica has the turn, or the store could not be asked")

    async def _end_with_turn(self, tasks: TaskGroup) -> None:
        await self._turn.lost()
        tasks.cancel_scope.cancel()

    async def _live(self) -> None:
        """One reading after the other: where the log does not go on as expected, it is read again from a checkpoint."""
        backoff = Backoff()
        while True:
            self.booting = True
            try:
                beginning = await begin(self._store.log, self._group, self._keeper)
            except HistoryChanged as changed:
                why = str(changed)
            else:
                why = await self._follow(beginning)
            self._metrics.restarts.inc()
            _log.warning("reading the log again", why=why)
            await backoff.wait()

    async def _follow(self, beginning: Beginning) -> str:
        """Until the log no longer goes on where this replica stands; answers why."""
        self._state, self._ledger = beginning.state, Ledger()
        self._saved_g = beginning.saved_g
        self._couriers = {sink.name: self._courier(sink) for sink in self._sinks}
        self._take_up(beginning)
        self.booting = False
        _log.info("following", position=self._state.position.g, owed=len(beginning.owed), firing=len(self._state.firing))
        ended: list[str] = []
        async with anyio.create_task_group() as tasks:
            for courier in self._couriers.values():
                tasks.start_soon(courier.run)
            tasks.start_soon(self._acknowledge)
            tasks.start_soon(self._stopping, tasks, self._read, ended)
            tasks.start_soon(self._stopping, tasks, self._look, ended)
        return ended[0]

    async def _stopping(self, tasks: TaskGroup, loop: Loop, ended: list[str]) -> None:
        try:
            ended.append(await loop())
        except HistoryChanged as changed:
            ended.append(str(changed))
        finally:
            tasks.cancel_scope.cancel()

    def _courier(self, sink: Sink) -> Courier:
        return Courier(
            sink,
            self._ledger,
            self._group,
            self._metrics,
            firing=lambda: tuple(self._state.firing.values()),
            retry_most_s=self._timing.retry_most_s,
        )

    # What is owed from before

    def _take_up(self, beginning: Beginning) -> None:
        told = set()
        for entry, notices in beginning.owed:
            self._send(Receipt(entry=entry), notices)
            told |= {notice.key for notice in notices}
        if beginning.state.announce:
            self._send(Receipt(), [each for each in beginning.state.firing.values() if each.key not in told])

    def _send(self, receipt: Receipt, notices: Iterable[Notice]) -> None:
        errands = [Errand(receipt, notice) for notice in notices]
        self._ledger.begin(receipt, len(errands) * len(self._couriers))
        for errand in errands:
            for courier in self._couriers.values():
                courier.put(errand)

    # Reading

    async def _read(self) -> str:
        while True:
            records = await self._group.new()
            dull: list[str] = []
            for record in records:
                why = self._surprise(record)
                if why:
                    return why
                notices = watch(self._state, record)
                if notices:
                    self._send(Receipt(entry=record.position.entry), notices)
                else:
                    dull.append(record.position.entry)
            await self._group.acknowledge(dull)
            self._metrics.firing.set(len(self._state.firing))
            await self._save(least=self._timing.checkpoint_every)
            while len(self._ledger) > MOST_OPEN:
                await self._ledger.changed.wait()

    def _surprise(self, record: Record) -> str:
        """Why this record cannot be what follows; empty = it does, or it was looked at before."""
        at, found = self._state.position, record.position
        if found.g > at.g + 1:
            return f"event {found.g} follows {at.g}: those between went to another consumer, or are gone"
        if found.g <= at.g and entry_key(found.entry) > entry_key(at.entry):
            return f"event {found.g} comes after {at.g}: the log was rewritten"
        return ""

    # Acknowledging

    async def _acknowledge(self) -> None:
        while True:
            receipts = self._ledger.settled()
            if not receipts:
                await self._ledger.changed.wait()
                continue
            await self._group.acknowledge([each.entry for each in receipts if each.entry])
            for receipt in receipts:
                if receipt.letter:
                    await self._group.forget(receipt.letter)
            self._ledger.close(receipts)
            if self._state.announce:
                await self._save(least=0)

    async def _save(self, *, least: int) -> None:
        """A checkpoint, when nothing before it is unfinished: whoever boots from it owes nothing older."""
        if len(self._ledger) or self._state.position.g - self._saved_g < least:
            return
        self._state.announce = False
        position = self._state.position
        try:
            await self._keeper.save(self._state)
        except HamiError as failure:
            _log.warning("checkpoint not saved", why=str(failure))
        else:
            self._saved_g = position.g

    # Now and then

    async def _look(self) -> str:
        swept = anyio.current_time()
        while True:
            head = await self._store.log.head()
            self._metrics.lag.set(max(0, head.g - self._state.position.g))
            for letter in await self._group.returned():
                await self._send_again(letter)
            if anyio.current_time() - swept >= self._timing.sweep_s:
                swept = anyio.current_time()
                why = await self._sweep()
                if why:
                    return why
            await anyio.sleep(self._timing.look_s)

    async def _sweep(self) -> str:
        """Entries that lie with a consumer whose turn is over, and were never in this one's hands."""
        idle_ms = round(self._timing.sweep_s * 1000)
        for record in await self._group.claim(idle_ms=idle_ms):
            if Receipt(entry=record.position.entry) not in self._ledger:
                return f"event {record.position.g} was left by another consumer"
        return ""

    async def _send_again(self, letter: DeadLetter) -> None:
        """To the one sink that it was for."""
        receipt = Receipt(letter=letter.id)
        if receipt in self._ledger:
            return
        courier = self._couriers.get(letter.to)
        try:
            notice = decode_notice(letter.raw)
        except InvalidInput as error:
            courier, why = None, str(error)
        else:
            why = f"there is no sink {letter.to}: there are {', '.join(self._couriers)}"
        if courier is None:
            await self._group.bury(letter.entry, node=letter.node, to=letter.to, raw=letter.raw, why=why)
            await self._group.forget(letter.id)
            return
        self._ledger.begin(receipt, 1)
        courier.put(Errand(receipt, notice))
