"""The store in memory: verified fakes that pass the same contract suite as Redis, and drive the simulator.

Entries are kept as bytes and decoded on reading, so that whatever cannot be encoded or read back shows here as well.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import anyio

from hami.domain.errors import Conflict, Fenced, GapFound, HistoryChanged, HistoryTrimmed, StaleFence
from hami.domain.units import EpochMs
from hami.events.clock import Clock, SystemClock
from hami.events.codec import Place, check_entities, decode_envelope, decode_record, encode_envelope, encode_place
from hami.events.envelope import START, Envelope, Position, entry_key
from hami.events.log import Appended, Duplicate, Fence, Record
from hami.events.memory_group import GroupBooks, MemoryGroup
from hami.events.memory_locks import MemoryLocks

IDLE_S: Final = 1.0
"""How often a tail at the head says that it is alive."""

FEED_LENGTH: Final = 1000


class _Stream:
    """A Redis stream, as far as it matters here: ids never fall, readers can wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = (0, 0)
        self.entries: list[tuple[str, bytes]] = []
        self.changed = anyio.Event()

    def add(self, raw: bytes, at: EpochMs | None = None) -> str:
        """`at`: the time of the step that this entry belongs to, as entries of one function call share theirs."""
        now = self._clock.now() if at is None else at
        self._last = (now, 0) if now > self._last[0] else (self._last[0], self._last[1] + 1)
        entry = f"{self._last[0]}-{self._last[1]}"
        self.entries.append((entry, raw))
        self.changed.set()
        self.changed = anyio.Event()
        return entry

    def after(self, entry: str, limit: int) -> list[tuple[str, bytes]]:
        start = bisect_right(self.entries, entry_key(entry), key=lambda each: entry_key(each[0]))
        return self.entries[start : start + limit]

    async def wait(self, seconds: float) -> None:
        changed = self.changed
        with anyio.move_on_after(seconds):
            await changed.wait()


class MemoryLog:
    """Implements hami.events.log.Log. Fences are checked against `locks`; `feed` gives what went to a node."""

    def __init__(self, clock: Clock | None = None, locks: MemoryLocks | None = None) -> None:
        self._clock = clock or SystemClock()
        self._locks = locks or MemoryLocks(self._clock)
        self._stream = _Stream(self._clock)
        self._places: list[bytes] = []
        self._trimmed = 0
        self._producers: dict[str, tuple[int, int, str]] = {}
        self._versions: dict[str, int] = {}
        self._feeds: dict[str, _Stream] = {}

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate:
        check_entities(entities)
        duplicate = self._check_producer(envelopes[0], len(envelopes))
        if duplicate is not None:
            return duplicate
        if fence is not None:
            holds, holder, token = self._locks.fence_holds(fence.lock, fence.owner, fence.token)
            if not holds:
                raise StaleFence(f"the lock is held by {holder or 'nobody'} with token {token}")
        actual = {entity: self._versions.get(entity, 0) for entity in expected}
        if actual != dict(expected):
            raise Conflict(actual)
        positions: list[Position] = []
        moved: dict[str, int] = {}
        now = self._clock.now()
        for i, envelope in enumerate(envelopes):
            versions = {entity: self._move(entity) for entity in entities[i]}
            moved.update(versions)
            raw = encode_envelope(envelope)
            positions.append(self._write(now, raw, versions))
            if feeds and feeds[i] and envelope.node:
                self._feed(envelope.node).add(raw, now)
        last = envelopes[-1]
        self._producers[last.producer] = (last.epoch, last.seq, positions[-1].entry)
        return Appended(tuple(positions), MappingProxyType(moved))

    def _check_producer(self, first: Envelope, count: int) -> Duplicate | None:
        epoch, seq, entry = self._producers.get(first.producer, (0, 0, ""))
        if first.epoch < epoch:
            raise Fenced(f"{first.producer}: epoch {first.epoch} is over, the log has seen epoch {epoch}")
        if first.epoch > epoch:
            epoch, seq, entry = first.epoch, 0, ""
        last = first.seq + count - 1
        if last <= seq:
            return Duplicate(entry if last == seq else "")
        if first.seq != seq + 1:
            raise GapFound(first.producer, epoch, seq, entry)
        return None

    def _move(self, entity: str) -> int:
        self._versions[entity] = version = self._versions.get(entity, 0) + 1
        return version

    def _write(self, now: EpochMs, raw: bytes, versions: dict[str, int]) -> Position:
        g = self._last_g + 1
        self._places.append(encode_place(Place(g, versions)))
        return Position(g, self._stream.add(raw, now))

    @property
    def _last_g(self) -> int:
        return self._trimmed + len(self._places)

    def _feed(self, node: str) -> _Stream:
        return self._feeds.setdefault(node, _Stream(self._clock))

    def feed(self, node: str) -> "MemoryFeed":
        return MemoryFeed(self._feed(node))

    async def read(self, after: Position, *, limit: int = 1000) -> Sequence[Record]:
        if after == START and self._trimmed and self._places:
            raise HistoryTrimmed(self._trimmed + 1, self._stream.entries[0][0])
        return self.kept(after, limit=limit)

    def kept(self, after: Position, *, limit: int = 1000) -> Sequence[Record]:
        """As `read`, and from START whatever is still there: a group is handed that."""
        return [decode_record(*each) for each in self.entries(after.entry, limit)]

    def entries(self, after: str, limit: int) -> list[tuple[str, bytes, bytes]]:
        """(entry, envelope, place) as they lie there."""
        found = self._stream.after(after, limit)
        start = self._at(after)
        return [(entry, raw, self._places[start + i]) for i, (entry, raw) in enumerate(found)]

    def _at(self, entry: str) -> int:
        """How many of the entries here are at or before that id."""
        return bisect_right(self._stream.entries, entry_key(entry), key=lambda each: entry_key(each[0]))

    def trim(self, before: str, most: int) -> int:
        """Forget the first entries, as XTRIM does; counter, versions and producers stay."""
        below = bisect_left(self._stream.entries, entry_key(before), key=lambda each: entry_key(each[0]))
        count = min(most, below)
        del self._stream.entries[:count]
        del self._places[:count]
        self._trimmed += count
        return count

    def forget(self, entity: str, version: int) -> bool:
        """An entity that nothing has moved since begins at 0 again."""
        if self._versions.get(entity) != version:
            return False
        del self._versions[entity]
        return True

    async def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        at = after
        if at.g > self._last_g:
            raise HistoryChanged(f"g {at.g} ({at.entry}) is not in the log, which ends at g {self._last_g}")
        if at != START and at.g < self._trimmed:
            raise HistoryChanged(f"g {at.g} ({at.entry}) is trimmed, the log begins at g {self._trimmed + 1}")
        while True:
            changed = self._stream.changed
            batch = await self.read(at)
            if batch:
                at = batch[-1].position
            else:
                with anyio.move_on_after(IDLE_S):
                    await changed.wait()
                    continue
            yield batch

    async def wait_after(self, after: Position) -> None:
        """Until there is something after that position, or a little while."""
        if after.g >= self._last_g:
            await self._stream.wait(IDLE_S)

    async def head(self) -> Position:
        if self._places:
            return Position(self._last_g, self._stream.entries[-1][0])
        return Position(self._trimmed, START.entry) if self._trimmed else START

    async def at_or_before(self, recorded_ms: EpochMs) -> Position:
        place = bisect_right(self._stream.entries, int(recorded_ms), key=lambda each: entry_key(each[0])[0])
        if place == 0:
            await self.read(START, limit=1)
            return START
        return Position(self._trimmed + place, self._stream.entries[place - 1][0])

    async def now(self) -> EpochMs:
        return self._clock.now()

    async def last_of(self, producer: str) -> tuple[int, int, str]:
        return self._producers.get(producer, (0, 0, ""))


class MemoryFeed:
    """Implements hami.events.log.NodeFeed."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    async def tail(self, after: str) -> AsyncIterator[Sequence[tuple[str, Envelope]]]:
        at = after
        while True:
            found = self._stream.after(at, FEED_LENGTH)
            if found:
                at = found[-1][0]
            else:
                await self._stream.wait(IDLE_S)
                found = self._stream.after(at, 0)
            yield [(entry, decode_envelope(raw)) for entry, raw in found]


class MemoryLeases:
    """Implements hami.events.lease.Leases."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._kept: dict[str, tuple[str, int]] = {}

    async def keep(self, name: str, value: str, *, ttl_ms: int) -> None:
        self._kept[name] = (value, self._clock.now() + ttl_ms)

    async def alive(self, names: Sequence[str]) -> Mapping[str, str | None]:
        now = self._clock.now()
        kept = {name: self._kept.get(name, ("", 0)) for name in names}
        return {name: value if until > now else None for name, (value, until) in kept.items()}


class MemoryCheckpoints:
    """Implements hami.events.log.Checkpoints."""

    def __init__(self) -> None:
        self._saved: dict[str, list[tuple[Position, str, str, bytes]]] = {}

    async def save(self, fold: str, position: Position, incarnation: str, schema: str, state: bytes) -> None:
        saved, new = self._saved.setdefault(fold, []), (position, incarnation, schema, state)
        self._saved[fold] = [new, *[each for each in saved[:1] if each != new]] if saved[:1] != [new] else saved

    def folds(self) -> Sequence[str]:
        return tuple(self._saved)

    async def load(self, fold: str) -> Sequence[tuple[Position, str, str, bytes]]:
        return tuple(self._saved.get(fold, ()))


class MemoryInboxes:
    """Implements hami.events.log.Inboxes; `inbox(node)` is the agent's side. `dead` holds what was buried."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._inboxes: dict[str, _Stream] = {}
        self._rung: deque[str] = deque()
        self._bell = anyio.Event()
        self.dead: list[tuple[str, str, bytes, str]] = []

    def inbox(self, node: str) -> "MemoryInbox":
        return MemoryInbox(self, node)

    def deliver(self, node: str, raw: bytes) -> None:
        self._stream(node).add(raw)
        self._rung.append(node)
        self._bell.set()

    def _stream(self, node: str) -> _Stream:
        return self._inboxes.setdefault(node, _Stream(self._clock))

    async def rung(self) -> AsyncIterator[Sequence[str]]:
        yield sorted(self._inboxes)
        while True:
            if self._rung:
                names = list(dict.fromkeys(self._rung))
                self._rung.clear()
                yield names
            else:
                self._bell = anyio.Event()
                with anyio.move_on_after(IDLE_S):
                    await self._bell.wait()
                    continue
                yield [node for node, stream in self._inboxes.items() if stream.entries]

    async def peek(self, node: str, *, limit: int = 100) -> Sequence[tuple[str, bytes]]:
        return self._stream(node).after("0-0", limit)

    async def drop(self, node: str, through: str) -> None:
        stream = self._stream(node)
        stream.entries = [each for each in stream.entries if entry_key(each[0]) > entry_key(through)]

    async def bury(self, node: str, entry: str, raw: bytes, why: str) -> bool:
        stream = self._stream(node)
        left = [each for each in stream.entries if each[0] != entry]
        if len(left) == len(stream.entries):
            return False
        stream.entries = left
        self.dead.append((node, entry, raw, why))
        return True


class MemoryInbox:
    """Implements hami.events.log.Inbox."""

    def __init__(self, inboxes: MemoryInboxes, node: str) -> None:
        self._inboxes, self._node = inboxes, node

    async def put(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            self._inboxes.deliver(self._node, encode_envelope(envelope))


class MemoryStore:
    """Implements hami.events.store.Store; all parts share one clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.locks = MemoryLocks(self.clock)
        self.log = MemoryLog(self.clock, self.locks)
        self.leases = MemoryLeases(self.clock)
        self.checkpoints = MemoryCheckpoints()
        self.inboxes = MemoryInboxes(self.clock)
        self.groups: dict[str, GroupBooks] = {}

    def inbox(self, node: str) -> MemoryInbox:
        return self.inboxes.inbox(node)

    def feed(self, node: str) -> MemoryFeed:
        return self.log.feed(node)

    def group(self, name: str, consumer: str) -> MemoryGroup:
        books = self.groups.setdefault(name, GroupBooks())
        return MemoryGroup(self.log, books, self.clock, name, consumer)
