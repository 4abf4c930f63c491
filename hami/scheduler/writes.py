"""Does the store still take writes? One that is full, or became a replica, goes on answering reads, and the view never notices.

The question is an eviction that finds nothing to evict: it writes nothing, and whatever refuses writes refuses it.
"""

from typing import Final

import anyio

from hami.domain.errors import StoreRefuses, StoreUnavailable
from hami.events.lease import Locks
from hami.telemetry import get_logger

EVERY_S: Final = 1.0
_LOCK: Final = "job:write-probe"
_log = get_logger("scheduler.writes")


class Writes:
    """`refused` is the store's own sentence; empty while it takes writes."""

    def __init__(self, locks: Locks, owner: str, *, every_s: float = EVERY_S) -> None:
        self._locks, self._owner, self._every_s = locks, owner, every_s
        self.refused = ""

    async def run(self) -> None:
        while True:
            await self.look()
            await anyio.sleep(self._every_s)

    async def look(self) -> None:
        """A store that cannot be reached says nothing of writes: the view tells of that."""
        try:
            await self._locks.evict(_LOCK, self._owner)
        except StoreRefuses as refusal:
            if not self.refused:
                _log.error("the store refuses writes", why=str(refusal))
            self.refused = str(refusal)
        except StoreUnavailable:
            return
        else:
            if self.refused:
                _log.info("the store takes writes again")
            self.refused = ""
