"""Where to begin, and what is still owed. Replay rebuilds the rules' state; it sends nothing (ADR 7).

    checkpoint --fold, no effects--> ... --fold--> boundary --> from here on with effects
                                   ^
                        pending entries: with effects, they were begun and not finished

The boundary is what the group handed out last. Where the group is missing, or stands before what this room had already finished
(its offset is lost), the boundary is the head of the log as found: what fires there is told, once, what ended before is not.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hami.alerts.decide.notice import Notice
from hami.alerts.decide.rules import watch
from hami.alerts.decide.state import AlertState
from hami.domain.errors import HistoryTrimmed
from hami.events.envelope import START, Position, entry_before, entry_key
from hami.events.group import Group, GroupState
from hami.events.log import Checkpoints, Log, Record
from hami.projections.boot import stands
from hami.projections.checkpoint import schema_of
from hami.telemetry import get_logger

SCHEMA: Final = schema_of(AlertState)

_log = get_logger("alerts")
_decoder: Final = msgspec.msgpack.Decoder(AlertState)

Saved = tuple[Position, str, str, bytes]


class Owed(NamedTuple):
    """A pending entry of the log and its notices (perhaps none)."""

    entry: str
    notices: tuple[Notice, ...]


class Beginning(NamedTuple):
    """`saved_g` is where the checkpoint stands from which all this was made."""

    state: AlertState
    owed: tuple[Owed, ...]
    saved_g: int


class Keeper:
    """Checkpoints of the rules' state, under the group's name."""

    def __init__(self, checkpoints: Checkpoints, group: str, incarnation: str) -> None:
        self._checkpoints, self._fold, self._incarnation = checkpoints, group, incarnation

    async def save(self, state: AlertState) -> None:
        raw = msgspec.msgpack.encode(state)
        await self._checkpoints.save(self._fold, state.position, self._incarnation, SCHEMA, raw)

    async def load(self) -> Sequence[Saved]:
        return await self._checkpoints.load(self._fold)

    def state_of(self, saved: Saved) -> AlertState | None:
        """None when it is of another life of the store, of another version of this room, or cannot be read."""
        _, incarnation, schema, raw = saved
        if (incarnation, schema) != (self._incarnation, SCHEMA):
            return None
        try:
            return _decoder.decode(raw)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None


async def begin(log: Log, group: Group, keeper: Keeper) -> Beginning:
    """Only the replica whose turn it is may call this: it takes over whatever is pending."""
    # 1. What was finished for certain, and what the group says.
    saved = await keeper.load()
    head, found = await log.head(), await group.state()
    lost = _is_lost(found, saved, head)
    # 2. What was begun by whoever went before.
    pending, last = await _take_over(group, found)
    boundary = max(head.entry if lost else last, last, key=entry_key)
    # 3. The state there.
    state = await _oldest_needed(log, keeper, saved, pending)
    saved_g = state.position.g
    owed = await _fold(log, state, boundary, pending)
    # 4. What fires is told where nobody can say that it was.
    newest = keeper.state_of(saved[0]) if saved else None
    state.announce = lost or not saved or (newest is not None and newest.announce)
    if lost:
        _log.warning("consumer group begins at the head", position=state.position.g, group_was=found and found.last)
        await keeper.save(state)
        await group.create(state.position)
        saved_g = state.position.g
    return Beginning(state, owed, saved_g)


def _is_lost(found: GroupState | None, saved: Sequence[Saved], head: Position) -> bool:
    if found is None:
        return True
    if not saved:
        return found.last == START.entry and head != START
    return entry_key(found.last) < max(entry_key(position.entry) for position, *_ in saved)


async def _take_over(group: Group, found: GroupState | None) -> tuple[Mapping[str, Record], str]:
    """All that is pending, and what was handed out last when nothing more was handed to anybody else."""
    if found is None:
        return {}, START.entry
    while True:
        pending = {record.position.entry: record for record in await group.claim(idle_ms=0)}
        now = await group.state()
        if now is None or now.last == found.last:
            return pending, found.last
        found = now


async def _oldest_needed(log: Log, keeper: Keeper, saved: Sequence[Saved], pending: Mapping[str, Record]) -> AlertState:
    """The newest checkpoint that stands and lies before everything pending: its notices must be made again."""
    first = min((entry_key(entry) for entry in pending), default=None)
    for each in saved:
        state = keeper.state_of(each)
        if state is None or (first is not None and entry_key(state.position.entry) >= first):
            continue
        if await stands(log, state.position, state.previous):
            return state
    return AlertState()


async def _after(log: Log, position: Position) -> Sequence[Record]:
    """Where the beginning is trimmed, from what is still there: what went wrong before shows when it next changes."""
    try:
        return await log.read(position)
    except HistoryTrimmed as trimmed:
        _log.warning("the rules begin in the middle of history", g=trimmed.g)
        return await log.read(Position(trimmed.g - 1, entry_before(trimmed.entry)))


async def _fold(log: Log, state: AlertState, boundary: str, pending: Mapping[str, Record]) -> tuple[Owed, ...]:
    owed, end = [], entry_key(boundary)
    while entry_key(state.position.entry) < end:
        batch = await _after(log, state.position)
        if not batch:
            break
        for record in batch:
            if entry_key(record.position.entry) > end:
                break
            notices = watch(state, record)
            if record.position.entry in pending:
                owed.append(Owed(record.position.entry, notices))
        else:
            continue
        break
    return tuple(owed)
