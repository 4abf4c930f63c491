"""The log as whoever keeps and trims it sees it. Implementations: `memory_retention.py` and `redis/retention.py`.

Entries come as the bytes that lie there: an archive must hold what was written, not what this version makes of it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from hami.events.envelope import Position

AT_ONCE: Final = 1000
"""Entries of one step: more would block the server for milliseconds."""


class RawEntry(NamedTuple):
    """`envelope` and `place` are the fields `d` and `p`, JSON as written."""

    entry: str
    envelope: bytes
    place: bytes


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group: what was handed out last, and the oldest entry that nobody acknowledged (empty: none)."""

    name: str
    last: str
    pending: str = ""

    @property
    def needs(self) -> str:
        """The oldest entry that must stay for its sake."""
        return self.pending or self.last


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A saved fold state. One that cannot be read stands at START: nobody knows what it needs."""

    fold: str
    position: Position
    incarnation: str = ""


class Retention(Protocol):
    """Reading is always allowed; `trim`, `forget` and `note` are the archive's alone."""

    async def entries(self, after: str, *, limit: int = AT_ONCE) -> Sequence[RawEntry]:
        """The entries after that id which are still there, oldest first. The first may lie far behind `after`."""
        ...

    async def groups(self) -> Sequence[GroupProgress]:
        """Every consumer group of the log, whoever it belongs to."""
        ...

    async def checkpoints(self) -> Sequence[Kept]:
        """Every saved state of every fold, the one before the newest included."""
        ...

    async def trim(self, before: str, *, most: int = AT_ONCE) -> int:
        """Remove entries below that id, oldest first, `most` of them at the most; how many it were. 0: none is left."""
        ...

    async def forget(self, versions: Mapping[str, int]) -> int:
        """Forget these pods (`pod/<uid>`) where their version is still the one given; how many it were."""
        ...

    async def notes(self) -> Mapping[str, str]:
        """What the archive wrote down beside the log."""
        ...

    async def note(self, changes: Mapping[str, str]) -> None:
        """An empty text removes the note."""
        ...
