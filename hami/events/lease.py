"""Leases and locks. A lease says "I am alive"; a lock says "only I". Implementations: `memory.py` and `redis/`.

    lock:   free --acquire--> held(owner, token) --release by same owner and token--> free, or handed to the first waiter
                                   '--TTL passes--> free (reclaimed by the next acquire, with a higher token)

Waiting is FIFO. A token grows with every acquisition of that lock, so that a late holder can be told from the present one.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class Held(msgspec.Struct, frozen=True):
    """Proof of holding. `reclaimed_from` names the owner whose lock had run out, empty otherwise."""

    lock: str
    owner: str
    token: int
    waited_ms: int = 0
    reclaimed_from: str = ""


class Busy(msgspec.Struct, frozen=True):
    """Not acquired within the wait: who holds it, with which token, and how many wait before us."""

    lock: str
    holder: str
    token: int
    ahead: int = 0
    waited_ms: int = 0


class Release(StrEnum):
    """What a release found. STALE: somebody else holds it now, nothing was changed."""

    RELEASED = "released"
    STALE = "stale"
    ABSENT = "absent"


class LockState(msgspec.Struct, frozen=True):
    """`ttl_ms` is what is left unless it is renewed, `age_ms` how long the present holder has had it."""

    lock: str
    holder: str
    token: int
    ttl_ms: int
    waiters: tuple[str, ...] = ()
    age_ms: int = 0


class Locks(Protocol):
    """Fenced FIFO locks. An owner is a pod uid; asking again while holding gives the same token (re-entrant, TTL refreshed)."""

    async def acquire(self, lock: str, owner: str, *, ttl_ms: int, wait_ms: int = 0) -> Held | Busy: ...

    async def renew(self, held: Held, *, ttl_ms: int) -> bool:
        """False when it is no longer ours."""
        ...

    async def release(self, held: Held) -> Release: ...

    async def evict(self, lock: str, owner: str) -> Release:
        """Free the lock if that owner holds it, whatever the token: its pod is gone. Its place in the queue goes too."""
        ...

    async def state(self, lock: str) -> LockState | None: ...

    async def held(self) -> Sequence[LockState]:
        """All locks now held or waited for."""
        ...


class Leases(Protocol):
    """Liveness of nodes and single jobs: a key with a TTL."""

    async def keep(self, name: str, value: str, *, ttl_ms: int) -> None: ...

    async def alive(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """Name -> value, None when expired or never kept."""
        ...
