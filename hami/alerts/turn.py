"""Whose turn it is: one replica sends, the others stand by, as `firing` and `resolved` must arrive in that order.

A lock in the store says who. Its holder counts from before each renewal, so that it stops no later than another may begin.
"""

from typing import Final

import anyio

from hami.domain.errors import HamiError, StoreUnavailable
from hami.events.lease import Busy, Held, Locks

RENEWALS: Final = 3
"""Tries in one lifetime of the lock."""


class Turn:
    def __init__(self, locks: Locks, group: str, owner: str, *, ttl_s: float) -> None:
        """`owner` is this process and no other: two of one name would both be let through."""
        self._locks, self._lock, self._owner, self._ttl_s = locks, f"job:{group}", owner, ttl_s
        self._held: Held | None = None
        self._until = 0.0

    @property
    def every_s(self) -> float:
        return self._ttl_s / RENEWALS

    async def take(self) -> bool:
        """Raises StoreUnavailable."""
        asked = anyio.current_time()
        got = await self._locks.acquire(self._lock, self._owner, ttl_ms=round(self._ttl_s * 1000))
        self._held = None if isinstance(got, Busy) else got
        self._until = asked + self._ttl_s
        return self._held is not None

    async def lost(self) -> None:
        """Keep the turn; return when it is over, because another has it or the store could not be asked for too long."""
        while self._held is not None:
            await anyio.sleep(min(self.every_s, max(0.0, self._until - anyio.current_time())))
            if anyio.current_time() >= self._until:
                return
            asked = anyio.current_time()
            with anyio.move_on_after(self._until - asked):
                try:
                    if not await self._locks.renew(self._held, ttl_ms=round(self._ttl_s * 1000)):
                        return
                except StoreUnavailable:
                    continue
                self._until = asked + self._ttl_s

    async def leave(self) -> None:
        """On the way out, so that another need not wait for the lock's time to pass."""
        held, self._held = self._held, None
        if held is None:
            return
        with anyio.move_on_after(1.0, shield=True):
            try:
                await self._locks.release(held)
            except HamiError:
                return
