"""A consumer group in memory: a verified fake that passes the same contract suite as Redis."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hami.domain.errors import HistoryChanged
from hami.domain.units import EpochMs
from hami.events.clock import Clock
from hami.events.envelope import Position, entry_key
from hami.events.group import DeadLetter, GroupState
from hami.events.log import Record


class Entries(Protocol):
    """What a group needs of the log in memory."""

    def kept(self, after: Position, *, limit: int = 1000) -> Sequence[Record]: ...

    async def wait_after(self, after: Position) -> None:
        """Until there is something after that position, or a little while."""
        ...


class _Pending(msgspec.Struct):
    record: Record
    consumer: str
    since: EpochMs


class GroupBooks(msgspec.Struct):
    """What the store keeps of one group, shared by its consumers. `last` None: there is no group."""

    last: Position | None = None
    pending: dict[str, _Pending] = msgspec.field(default_factory=dict)
    dead: list[DeadLetter] = msgspec.field(default_factory=list)
    back: list[DeadLetter] = msgspec.field(default_factory=list)
    buried: int = 0

    @property
    def oldest_pending(self) -> str:
        """Empty: nothing is pending."""
        return min(self.pending, key=entry_key, default="")

    def destroy(self) -> None:
        """As XGROUP DESTROY: the offset is lost; dead letters are not the group's."""
        self.last, self.pending = None, {}


class MemoryGroup:
    """Implements hami.events.group.Group."""

    def __init__(self, log: Entries, books: GroupBooks, clock: Clock, group: str, consumer: str) -> None:
        self._log, self._books, self._clock = log, books, clock
        self._group, self._consumer = group, consumer

    def _last(self) -> Position:
        if self._books.last is None:
            raise HistoryChanged(f"the log has no consumer group {self._group}")
        return self._books.last

    async def state(self) -> GroupState | None:
        last = self._books.last
        return None if last is None else GroupState(last.entry, len(self._books.pending))

    async def create(self, after: Position) -> bool:
        if self._books.last is not None:
            return False
        self._books.last = after
        return True

    async def new(self, *, limit: int = 1000) -> Sequence[Record]:
        found = self._log.kept(self._last(), limit=limit)
        if not found:
            await self._log.wait_after(self._last())
            found = self._log.kept(self._last(), limit=limit)
        for record in found:
            self._books.last = record.position
            self._books.pending[record.position.entry] = _Pending(record, self._consumer, self._clock.now())
        return found

    async def claim(self, *, idle_ms: int) -> Sequence[Record]:
        self._last()
        now = self._clock.now()
        old = [each for each in self._books.pending.values() if now - each.since >= idle_ms]
        for each in old:
            each.consumer, each.since = self._consumer, now
        return [each.record for each in sorted(old, key=lambda each: entry_key(each.record.position.entry))]

    async def acknowledge(self, entries: Sequence[str]) -> None:
        for entry in entries:
            self._books.pending.pop(entry, None)

    async def bury(self, entry: str, *, node: str, to: str, raw: bytes, why: str) -> None:
        self._books.buried += 1
        identity = f"{self._clock.now()}-{self._books.buried}"
        self._books.dead.append(DeadLetter(id=identity, group=self._group, node=node, entry=entry, why=why, raw=raw, to=to))

    async def returned(self) -> Sequence[DeadLetter]:
        return tuple(self._books.back)

    async def forget(self, letter: str) -> None:
        self._books.back = [each for each in self._books.back if each.id != letter]
