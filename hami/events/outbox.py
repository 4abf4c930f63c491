"""Store and forward on the node: `publish` never waits, `run` brings events to the inbox, in order, whatever Redis does.

    publish --> Backlog (drafts, in memory, may be thinned) --seal--> Spool (numbered, kept) --put--> inbox --> acknowledged,
                                                                                            kept for ten minutes longer

A number is given when an event enters the spool. Before that, a full backlog keeps only the newest health of each device and
says how much was left out; allocations are never left out. What the inbox acknowledged is kept for a while, because a failover
of the central store can lose it again: `resend` sends what the log has not seen.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import anyio
import msgspec

from hami.domain.errors import HamiError, StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.backoff import Backoff
from hami.events.catalog.device import DeviceHealthChanged, FaultObserved
from hami.events.catalog.journal import GapAccepted
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event, may_agent_write
from hami.events.codec import decode_event, seal
from hami.events.envelope import Envelope, agent_name
from hami.events.log import Draft, Inbox, Undecodable, Unknown
from hami.events.undelivered import NoteFile, Undelivered
from hami.telemetry import get_logger

log = get_logger("outbox")

BATCH: Final = 100
KEEP_MS: Final = 10 * 60 * 1000
KEEP_COUNT: Final = 5_000
REFUSED: Final = (StoreUnavailable, StoreUnsafe)
"""Both are waited out: a store that must not be used (a user without rights, a foreign key) is somebody's to repair, and the
kubelet must be served meanwhile.
"""


class SpoolState(msgspec.Struct, frozen=True):
    """Where numbering stands."""

    epoch: int
    seq: int = 0
    chain: str = ""


class Spool(Protocol):
    """Numbered events: waiting for the inbox, then kept for a while. Every method raises StoreUnavailable when it is away."""

    async def open(self, new_epoch: Callable[[], int]) -> SpoolState:
        """Where numbering goes on; a new epoch when it cannot be proved that nothing was numbered since."""
        ...

    async def add(self, envelopes: Sequence[Envelope]) -> bool:
        """All or none; False when there is no room."""
        ...

    async def waiting(self, limit: int) -> Sequence[Envelope]: ...

    async def acknowledge(self, last: Envelope, now: EpochMs) -> None:
        """Everything up to that one reached the inbox."""
        ...

    async def kept(self) -> Sequence[Envelope]:
        """Acknowledged and waiting ones, oldest first."""
        ...

    async def rewind(self, first: Envelope) -> None:
        """Treat that one and what follows as waiting again."""
        ...

    async def clear(self) -> None: ...


class Published(msgspec.Struct, frozen=True):
    """A draft and when it happened."""

    draft: Draft
    at: EpochMs


class Backlog:
    """Drafts without a number. At its limit it thins out what a newer report replaces."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Published] = deque()
        self._dropped: Counter[str] = Counter()
        self.dropped = 0
        """How many were left out, ever."""

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: Published) -> None:
        self._items.append(item)
        if len(self._items) > self._limit:
            self._thin_out()

    def push_first(self, item: Published) -> None:
        """What is to be said before all that waits."""
        self._items.appendleft(item)

    def take(self, limit: int) -> list[Published]:
        return [self._items.popleft() for _ in range(min(limit, len(self._items)))]

    def losses(self) -> str:
        """What was left out since the last call, in words; empty = nothing."""
        words = ", ".join(f"{count} {name}" for name, count in sorted(self._dropped.items()))
        self._dropped.clear()
        return words

    def _thin_out(self) -> None:
        newest: set[tuple[str, str]] = set()
        kept: deque[Published] = deque()
        for item in reversed(self._items):
            key = _replaced_by_newer(item.draft.event)
            if key is not None and key in newest:
                self._dropped[item.draft.event.TYPE] += 1
                self.dropped += 1
                continue
            if key is not None:
                newest.add(key)
            kept.appendleft(item)
        self._items = kept


def _replaced_by_newer(event: Event) -> tuple[str, str] | None:
    """Events of one key tell the same story, the newest is enough; None = each one counts."""
    match event:
        case DeviceHealthChanged(device=device) | FaultObserved(device=device):
            return event.TYPE, device
        case NodeRegistered(vendor=vendor):
            return event.TYPE, vendor
        case _:
            return None


class MemorySpool:
    """Implements Spool; lost with the process, which therefore takes a new epoch at every start."""

    def __init__(self, limit: int = 2 * BATCH, *, keep_ms: int = KEEP_MS, keep_count: int = KEEP_COUNT) -> None:
        self._limit, self._keep_ms, self._keep_count = limit, keep_ms, keep_count
        self._acknowledged: deque[tuple[EpochMs, Envelope]] = deque()
        self._waiting: deque[Envelope] = deque()

    async def open(self, new_epoch: Callable[[], int]) -> SpoolState:
        return SpoolState(new_epoch())

    async def add(self, envelopes: Sequence[Envelope]) -> bool:
        if self._waiting and len(self._waiting) + len(envelopes) > self._limit:
            return False
        self._waiting.extend(envelopes)
        return True

    async def waiting(self, limit: int) -> Sequence[Envelope]:
        return [self._waiting[i] for i in range(min(limit, len(self._waiting)))]

    async def acknowledge(self, last: Envelope, now: EpochMs) -> None:
        while self._waiting and (self._waiting[0].epoch, self._waiting[0].seq) <= (last.epoch, last.seq):
            self._acknowledged.append((now, self._waiting.popleft()))
        while self._acknowledged and (
            len(self._acknowledged) > self._keep_count or self._acknowledged[0][0] < now - self._keep_ms
        ):
            self._acknowledged.popleft()

    async def kept(self) -> Sequence[Envelope]:
        return [*(envelope for _, envelope in self._acknowledged), *self._waiting]

    async def rewind(self, first: Envelope) -> None:
        while self._acknowledged:
            at, envelope = self._acknowledged.pop()
            if (envelope.epoch, envelope.seq) < (first.epoch, first.seq):
                self._acknowledged.append((at, envelope))
                return
            self._waiting.appendleft(envelope)

    async def clear(self) -> None:
        self._acknowledged.clear()
        self._waiting.clear()


class OutboxState(msgspec.Struct, frozen=True, kw_only=True):
    """For metrics and `/healthz`. `stuck_for_s` counts from the first failed try since the last success."""

    epoch: int
    backlog: int
    dropped: int
    delivered: int
    stuck_for_s: float
    waiting: int = 0
    """Numbered and not in the inbox yet, by their numbers; what an earlier epoch left may be more than is counted here."""
    idle: bool = False
    """Everything published so far is in the inbox. What is not may die with this process (memory spool)."""


class Outbox:
    """One for each agent: `publish` from anywhere in the event loop, `run` in a task of its own."""

    def __init__(
        self,
        node: str,
        inbox: Inbox,
        spool: Spool,
        new_epoch: Callable[[], int],
        *,
        limit: int = 5_000,
        clock: Callable[[], EpochMs] = lambda: EpochMs(time.time_ns() // 1_000_000),
        note: NoteFile | None = None,
    ) -> None:
        self._node, self._inbox, self._spool, self._new_epoch, self._clock = node, inbox, spool, new_epoch, clock
        self._note = note
        self._backlog = Backlog(limit)
        self._taken: list[Published] = []
        self._in_doubt = ""
        self._state = SpoolState(0)
        self._spool_lock = anyio.Lock()
        self._published, self._spooled = anyio.Event(), anyio.Event()
        self._resend: tuple[int, int] | None = None
        self._delivered = 0
        self._first: Envelope | None = None
        self._idle = False
        self._stuck_since: float | None = None
        self._trouble = ""

    def publish(self, event: Event, *, subject: str = "", correlation: str = "", causation: str = "") -> None:
        """Take an event, now; `run` delivers it. Only events that an agent may write."""
        assert may_agent_write(event), f"an agent may not write {event.TYPE}"
        draft = Draft(event=event, node=self._node, subject=subject, correlation=correlation, causation=causation)
        self._idle = False
        self._backlog.push(Published(draft, self._clock()))
        self._published.set()

    def resend(self, epoch: int, seq: int) -> None:
        """The log has seen our events up to (epoch, seq): send what follows again. Said by a handshake."""
        self._resend = (epoch, seq)
        self._spooled.set()

    @property
    def state(self) -> OutboxState:
        stuck = 0.0 if self._stuck_since is None else anyio.current_time() - self._stuck_since
        return OutboxState(
            epoch=self._state.epoch,
            backlog=len(self._backlog) + len(self._taken),
            dropped=self._backlog.dropped,
            delivered=self._delivered,
            waiting=self._count_waiting(),
            stuck_for_s=stuck,
            idle=self._idle and not len(self._backlog) and not self._taken,
        )

    def _count_waiting(self) -> int:
        if self._first is None:
            return 0
        same = self._first.epoch == self._state.epoch
        return self._state.seq - self._first.seq + 1 if same else self._state.seq + 1

    async def run(self) -> None:
        """For ever; survives every outage of the spool and of the central store. What is not delivered stays in the spool."""
        backoff = Backoff(most_s=30.0)
        died = None if self._note is None else self._note.read()
        while not self._state.epoch:
            try:
                self._state = await self._spool.open(self._new_epoch)
                if died is not None:
                    self._name_what_died(died, len(await self._spool.waiting(max(died.waiting, 1))))
            except REFUSED as error:
                self._stuck(error)
                await backoff.wait()
        self._spooled.set()
        async with anyio.create_task_group() as tasks:
            if self._note is not None:
                tasks.start_soon(self._note.keep, self._undelivered)
            tasks.start_soon(self._fill)
            tasks.start_soon(self._forward)

    def _name_what_died(self, died: Undelivered, in_spool: int) -> None:
        why = died.lost(in_spool)
        if why:
            log.warning("events were lost with an earlier life of this agent", why=why)
            loss = self._loss(0, 0, why, epoch=died.epoch)
            self._backlog.push_first(Published(loss, self._clock()))
            self._published.set()

    def _undelivered(self) -> Undelivered | None:
        """Worth a note only while something is wrong: else it is gone before the note is written."""
        state = self.state
        if not (state.stuck_for_s or self._trouble):
            return None
        return Undelivered(epoch=state.epoch, backlog=state.backlog, waiting=state.waiting)

    async def _fill(self) -> None:
        """From the backlog into the spool."""
        backoff = Backoff(most_s=2.0)
        while True:
            if not len(self._backlog) and not self._taken:
                self._published = anyio.Event()
                await self._published.wait()
            try:
                moved = await self._number_some()
            except REFUSED as error:
                self._say(error)
                moved = False
            if moved:
                backoff.reset()
                self._spooled.set()
            else:
                await backoff.wait()

    async def _number_some(self) -> bool:
        """Give the next drafts their numbers. What was taken stays in `_taken` until the spool has it for certain."""
        async with self._spool_lock:
            if not self._taken:
                self._take()
            if not self._state.epoch:
                self._state = await self._spool.open(self._new_epoch)
                if self._state.chain and self._state.chain == self._in_doubt:
                    self._taken, self._in_doubt = [], ""
                    return True
            envelopes = self._sealed(self._taken)
            last = envelopes[-1]
            self._in_doubt = last.chain
            try:
                if not await self._spool.add(envelopes):
                    return False
            except BaseException:
                self._state = SpoolState(0)
                raise
            self._state, self._taken, self._in_doubt = SpoolState(last.epoch, last.seq, last.chain), [], ""
            return True

    def _take(self) -> None:
        self._taken = self._backlog.take(BATCH)
        losses = self._backlog.losses()
        if losses:
            loss = self._loss(0, 0, f"left out while the store was away: {losses}")
            self._taken.insert(0, Published(loss, self._clock()))

    def _sealed(self, items: Sequence[Published]) -> list[Envelope]:
        chain, envelopes = self._state.chain, []
        for seq, item in enumerate(items, start=self._state.seq + 1):
            envelope = seal(
                item.draft,
                producer=agent_name(self._node),
                epoch=self._state.epoch,
                seq=seq,
                occurred_ms=item.at,
                chain=chain,
            )
            chain = envelope.chain
            envelopes.append(envelope)
        return envelopes

    def _loss(self, first: int, last: int, why: str, *, epoch: int = 0) -> Draft:
        of = epoch or self._state.epoch
        event = GapAccepted(producer=agent_name(self._node), epoch=of, first_seq=first, last_seq=last, why=why)
        return Draft(event=event, node=self._node)

    async def _forward(self) -> None:
        """From the spool into the inbox."""
        backoff = Backoff(most_s=30.0)
        while True:
            try:
                sent = await self._forward_some()
            except REFUSED as error:
                self._stuck(error)
                await backoff.wait()
                continue
            self._stuck_since, self._trouble = None, ""
            backoff.reset()
            if not sent:
                self._spooled = anyio.Event()
                if not await self._spool_has_more():
                    await self._spooled.wait()

    async def _spool_has_more(self) -> bool:
        try:
            return self._resend is not None or bool(await self._spool.waiting(1))
        except REFUSED:
            return True

    def _stuck(self, error: HamiError) -> None:
        if self._stuck_since is None:
            self._stuck_since = anyio.current_time()
        self._say(error)

    def _say(self, error: HamiError) -> None:
        """Once for each reason, not for each try."""
        if str(error) != self._trouble:
            log.warning("events wait", error=str(error))
        self._trouble = str(error)

    async def _forward_some(self) -> bool:
        if self._resend is not None:
            await self._go_back(*self._resend)
            self._resend = None
        batch = await self._spool.waiting(BATCH)
        self._first = batch[0] if batch else None
        if not batch:
            self._idle = not len(self._backlog) and not self._taken
            return False
        await self._inbox.put(batch)
        await self._spool.acknowledge(batch[-1], self._clock())
        self._delivered += len(batch)
        self._first = None
        return True

    async def _go_back(self, epoch: int, seq: int) -> None:
        async with self._spool_lock:
            kept = await self._spool.kept()
            unseen = [each for each in kept if (each.epoch, each.seq) > (epoch, seq)]
            if not unseen and (self._state.epoch, self._state.seq) <= (epoch, seq):
                return
            if unseen and unseen[0].seq == (seq + 1 if unseen[0].epoch == epoch else 1):
                await self._spool.rewind(unseen[0])
                return
            await self._start_over(seq, unseen)

    async def _start_over(self, seen: int, unseen: Sequence[Envelope]) -> None:
        """Events between are gone for good: name them, and send what is left under a new epoch."""
        last = unseen[0].seq - 1 if unseen else self._state.seq
        items = [Published(self._loss(seen + 1, last, "the store lost them and they are no longer kept here"), self._clock())]
        for envelope in unseen:
            event = decode_event(envelope)
            if not isinstance(event, Unknown | Undecodable):
                items.append(Published(_draft_of(envelope, event), envelope.occurred_ms))
        epoch = max(self._new_epoch(), self._state.epoch + 1)
        await self._spool.clear()
        self._state = SpoolState(epoch)
        self._taken = [*items, *self._taken]
        self._published.set()


def _draft_of(envelope: Envelope, event: Event) -> Draft:
    return Draft(
        event=event,
        node=envelope.node,
        subject=envelope.subject,
        correlation=envelope.correlation,
        causation=envelope.causation,
    )
