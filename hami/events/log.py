"""The log as the rest of hami sees it. Implementations: `memory.py` and `redis/`; both pass tests/contract.

Append answers with a value for what a caller must expect (`Appended`, `Duplicate`) and raises for what it must not ignore.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from hami.domain.units import EpochMs
from hami.events.catalog.union import Event
from hami.events.envelope import Envelope, Position


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """An event type or schema that this version does not know: kept, counted, skipped by folds."""

    type: str
    schema: int


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """A known type whose payload cannot be read: its node is quarantined, the others go on."""

    type: str
    error: str


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log. `versions` holds the entities that this entry moved and their version after it."""

    position: Position
    envelope: Envelope
    event: Event | Unknown | Undecodable
    versions: Mapping[str, int] = MappingProxyType({})


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An event before it has an envelope. `subject` is the pod uid or device uuid that people search by."""

    event: Event
    node: str = ""
    subject: str = ""
    correlation: str = ""
    causation: str = ""


class Fence(msgspec.Struct, frozen=True):
    """Proof of holding a lock, checked inside the append."""

    lock: str
    owner: str
    token: int


class Appended(msgspec.Struct, frozen=True):
    """Positions in order, one for each event; versions after the append."""

    positions: tuple[Position, ...]
    versions: Mapping[str, int] = MappingProxyType({})


class Duplicate(msgspec.Struct, frozen=True):
    """The producer already wrote this sequence number; `entry` is where (empty when it is not the last one)."""

    entry: str = ""


class Log(Protocol):
    """One totally ordered log.

    append(): all of `envelopes` (one producer and epoch, consecutive seq, a new epoch from 1) or none, in one atomic step.
    Raises Fenced, GapFound, StaleFence, Conflict (with the actual versions), in that order of checks; StoreUnsafe when the
    store is another incarnation than before; InvalidInput for an entity that is not `<kind>/<name>` in plain characters;
    StoreUnavailable when the outcome is unknown or the store is away: send the very same envelopes again, Duplicate tells
    whether the first try landed.
    A batch that the log has only in part is GapFound with the last seq seen: send what follows it.
    `feeds` says for each event whether it goes to its node's feed as well (none do when left out).
    """

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate: ...

    async def read(self, after: Position, *, limit: int = 1000) -> Sequence[Record]:
        """The next records after a position, oldest first; empty at the head.

        Raises HistoryTrimmed for START where the first entries are trimmed: nobody reads half a history for a whole one.
        """
        ...

    def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        """Batches from `after` on, for ever; waits at the head, survives reconnects, never repeats or skips.

        An empty batch says that the store was asked and had nothing newer: it comes every few seconds at the head, so that a
        reader knows its view to be fresh; it stays away while the store cannot be reached. Raises HistoryChanged when the log
        no longer continues from where the reader stands (HistoryTrimmed from START), StoreUnsafe when the store is another
        incarnation.
        """
        ...

    async def head(self) -> Position:
        """The last position written (START when empty)."""
        ...

    async def at_or_before(self, recorded_ms: EpochMs) -> Position:
        """The last position recorded at or before that time. Raises HistoryTrimmed when that one is trimmed."""
        ...

    async def now(self) -> EpochMs:
        """The store's clock: what deadlines are measured by."""
        ...

    async def last_of(self, producer: str) -> tuple[int, int, str]:
        """(epoch, seq, entry) last accepted from a producer; (0, 0, "") when it never wrote."""
        ...


class Checkpoints(Protocol):
    """Saved fold states. `load` returns what `save` stored, newest first, at most two, with the position."""

    async def save(self, fold: str, position: Position, incarnation: str, schema: str, state: bytes) -> None: ...

    async def load(self, fold: str) -> Sequence[tuple[Position, str, str, bytes]]:
        """(position, incarnation, schema, state), newest first."""
        ...


class Inbox(Protocol):
    """A node's inbox as its agent sees it: put only. `put` returns after the store acknowledged."""

    async def put(self, envelopes: Sequence[Envelope]) -> None: ...


class Inboxes(Protocol):
    """All inboxes as the ingester sees them."""

    def rung(self) -> AsyncIterator[Sequence[str]]:
        """Node names whose inbox may hold something new (bell, plus a full sweep every 30 s)."""
        ...

    async def peek(self, node: str, *, limit: int = 100) -> Sequence[tuple[str, bytes]]:
        """(entry id, raw envelope) oldest first."""
        ...

    async def drop(self, node: str, through: str) -> None:
        """Forget entries up to and including that id: they are in the log."""
        ...

    async def bury(self, node: str, entry: str, raw: bytes, why: str) -> bool:
        """Move an entry that cannot be ingested to the dead letters; False when another replica did it before."""
        ...


class NodeFeed(Protocol):
    """What the log says to one node: its reservations, prepare and handshake requests."""

    def tail(self, after: str) -> AsyncIterator[Sequence[tuple[str, Envelope]]]:
        """(entry id, envelope) after that id ("0-0" = all that is kept), for ever. An empty batch: nothing new, store alive."""
        ...
