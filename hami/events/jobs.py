"""Jobs that one replica does for all: a lock in the store says who. Losing it does no harm, only double work."""

import anyio

from hami.domain.errors import HamiError
from hami.events.lease import Busy, Held
from hami.events.store import Store


class OneOf:
    """`mine` takes or keeps the job for `ttl_s`; whoever dies is replaced when that has passed."""

    def __init__(self, store: Store, job: str, owner: str, *, ttl_s: float) -> None:
        self._store, self._lock, self._owner = store, f"job:{job}", owner
        self._ttl_ms = round(ttl_s * 1000)
        self._held: Held | None = None

    async def mine(self) -> bool:
        """Raises StoreUnavailable."""
        got = await self._store.locks.acquire(self._lock, self._owner, ttl_ms=self._ttl_ms)
        self._held = None if isinstance(got, Busy) else got
        return self._held is not None

    async def leave(self) -> None:
        """On the way out, so that another replica need not wait for the TTL."""
        if self._held is None:
            return
        with anyio.move_on_after(1.0, shield=True):
            try:
                await self._store.locks.release(self._held)
            except HamiError:
                return
