"""A note on disk of how many events wait on this node, so that a life that dies with them does not take the knowledge along.

The next life reads it: what its spool does not hold of them is lost, and is named in the log. Written only while delivery is in
trouble; an agent that dies while all is well has at most the events of that moment to lose, and those are told again from what
it remembers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio import to_thread

from hami.events.files import replace_file
from hami.telemetry import get_logger

log = get_logger("outbox")

EVERY_S: Final = 2.0


class Undelivered(msgspec.Struct, frozen=True, kw_only=True):
    """`backlog` had no number yet and was in memory only; `waiting` was numbered under `epoch` and in the spool."""

    epoch: int
    backlog: int = 0
    waiting: int = 0

    def lost(self, in_spool: int) -> str:
        """What a later life has to name; empty when its spool has all of it."""
        gone = self.backlog + max(0, self.waiting - in_spool)
        if not gone:
            return ""
        return f"the agent ended while the store was away: up to {gone} events of epoch {self.epoch} were not delivered"


class NoteFile:
    """One note. A disk that does not take it costs the note, not the events."""

    def __init__(self, path: Path, *, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._written: Undelivered | None = None

    def read(self) -> Undelivered | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Undelivered)
        except (OSError, msgspec.MsgspecError):
            return None

    async def keep(self, now: Callable[[], Undelivered | None]) -> None:
        """For ever. `now` is None while there is nothing to note."""
        self._written = self.read()
        while True:
            note = now()
            if note != self._written:
                await to_thread.run_sync(self._write, note)
                self._written = note
            await anyio.sleep(self._every_s)

    def _write(self, note: Undelivered | None) -> None:
        try:
            if note is None:
                self._path.unlink(missing_ok=True)
                return
            replace_file(self._path, msgspec.json.encode(note))
        except OSError as error:
            log.warning("no note of undelivered events", file=str(self._path), error=error.strerror)
