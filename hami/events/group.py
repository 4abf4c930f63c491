"""A consumer group over the log: for whoever acts on events. Implementations: `memory_group.py` and `redis/group.py`.

    new --> handed out (pending, belongs to one consumer) --acknowledge--> done
                 '--claim by another consumer, when its own is dead

The store remembers what was handed out last and what of it nobody acknowledged, so that an effect happens at least once:
acknowledge after the effect. Acknowledging counts for that entry only, in any order.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hami.domain.units import EpochMs
from hami.events.envelope import Position
from hami.events.log import Record


class GroupState(msgspec.Struct, frozen=True):
    """`last` is the entry handed out last (`0-0`: none), `pending` how many were handed out and not acknowledged."""

    last: str
    pending: int


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Something given up. `id` names it among the dead letters of its `group`, `entry` is its name where it came from.

    `raw` is what could not be handled: for the ingester the envelope that an agent sent, for another group whatever it had to
    deliver, and `to` says to whom.
    """

    id: str
    group: str
    node: str
    entry: str
    why: str
    raw: bytes
    to: str = ""

    @property
    def buried_ms(self) -> EpochMs:
        return EpochMs(int(self.id.partition("-")[0]))


class Group(Protocol):
    """One consumer's side of a group. Raises HistoryChanged where the group is not (or no longer) there."""

    async def state(self) -> GroupState | None:
        """None: there is no such group."""
        ...

    async def create(self, after: Position) -> bool:
        """The first entry handed out will be the one after that position. False, and nothing changes, when it is there."""
        ...

    async def new(self, *, limit: int = 1000) -> Sequence[Record]:
        """Entries never handed out before, oldest first: pending from now on. Waits a little; empty when there are none."""
        ...

    async def claim(self, *, idle_ms: int) -> Sequence[Record]:
        """Every pending entry that its consumer (this one included) has left lying for so long; it is this consumer's now.

        Oldest first. An entry that was trimmed from the log meanwhile is acknowledged by this: there is nothing to act on.
        """
        ...

    async def acknowledge(self, entries: Sequence[str]) -> None: ...

    async def bury(self, entry: str, *, node: str, to: str, raw: bytes, why: str) -> None:
        """Put into the dead letters. The entry stays pending: acknowledge it afterwards."""
        ...

    async def returned(self) -> Sequence[DeadLetter]:
        """Dead letters that an operator wants tried again, oldest first, until `forget`."""
        ...

    async def forget(self, letter: str) -> None: ...
