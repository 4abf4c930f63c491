"""Fenced FIFO locks in memory: the same rules as functions/hami_v1.lua, step by step, as a verified fake."""

from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from hami.domain.units import EpochMs
from hami.events.clock import Clock, SystemClock
from hami.events.lease import Busy, Held, LockState, Release

CONFIRM_MS: Final = 1000
"""How long a grant to a waiter stands before it is confirmed: what a dead waiter costs."""


class LockRules(msgspec.Struct):
    """One lock. Every step takes the time; nothing waits here."""

    token: int = 0
    owner: str = ""
    """The last holder that has not let go; it may have run out."""
    confirmed: bool = False
    since: int = 0
    until: int = 0
    queue: list[tuple[int, str]] = msgspec.field(default_factory=list)

    def holder(self, now: int) -> str:
        return self.owner if self.until > now else ""

    def waiters(self, now: int) -> tuple[str, ...]:
        return tuple(owner for deadline, owner in self.queue if deadline > now)

    def acquire(self, owner: str, now: int, ttl_ms: int, wait_ms: int) -> str | int:
        """Held now: the owner it was reclaimed from (may be empty). Busy: how many wait before this one."""
        if self.holder(now) == owner:
            self.until, self.confirmed = now + ttl_ms, True
            self._leave_queue(owner)
            return ""
        self._drop_late_waiters(now)
        if not self.holder(now):
            if not self.queue or self.queue[0][1] == owner:
                before = self.owner
                self._leave_queue(owner)
                self._give(owner, now, ttl_ms, confirmed=True)
                return before
            self._hand_over(now)
        names = [waiting for _, waiting in self.queue]
        queued = owner in names
        if wait_ms <= 0:
            self._leave_queue(owner)
        elif not queued:
            self.queue.append((now + wait_ms, owner))
        return names.index(owner) if queued else len(names)

    def renew(self, owner: str, token: int, now: int, ttl_ms: int) -> bool:
        if (self.holder(now), self.token) != (owner, token):
            return False
        self.until, self.confirmed = now + ttl_ms, True
        return True

    def release(self, owner: str, token: int, now: int) -> Release:
        if not self.holder(now):
            if (self.owner, self.token) == (owner, token):
                self._free(now)
            return Release.ABSENT
        if (self.owner, self.token) != (owner, token):
            return Release.STALE
        self._free(now)
        return Release.RELEASED

    def leave(self, owner: str, now: int) -> None:
        """A waiter gives up: out of the queue, and a grant that it never confirmed goes to the next."""
        self._leave_queue(owner)
        if self.holder(now) == owner and not self.confirmed:
            self._free(now)

    def evict(self, owner: str, now: int) -> Release:
        self._leave_queue(owner)
        holder = self.holder(now)
        if holder and holder != owner:
            return Release.STALE
        if self.owner == owner:
            self._free(now)
        return Release.RELEASED if holder else Release.ABSENT

    def _drop_late_waiters(self, now: int) -> None:
        while self.queue and self.queue[0][0] <= now:
            self.queue.pop(0)

    def _leave_queue(self, owner: str) -> None:
        self.queue = [each for each in self.queue if each[1] != owner]

    def _give(self, owner: str, now: int, ttl_ms: int, *, confirmed: bool) -> None:
        self.token, self.owner, self.confirmed = self.token + 1, owner, confirmed
        self.since, self.until = now, now + ttl_ms

    def _hand_over(self, now: int) -> None:
        self._drop_late_waiters(now)
        if self.queue:
            self._give(self.queue.pop(0)[1], now, CONFIRM_MS, confirmed=False)

    def _free(self, now: int) -> None:
        self.owner, self.until = "", 0
        self._hand_over(now)


class MemoryLocks:
    """Implements hami.events.lease.Locks."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._locks: dict[str, LockRules] = {}
        self._changed = anyio.Event()
        self._clock.on_move(self._poke)

    def _poke(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _lock(self, name: str) -> LockRules:
        return self._locks.setdefault(name, LockRules())

    async def acquire(self, lock: str, owner: str, *, ttl_ms: int, wait_ms: int = 0) -> Held | Busy:
        rules, started = self._lock(lock), self._clock.now()
        deadline = started + wait_ms
        try:
            while True:
                now = self._clock.now()
                left = deadline - now
                found = rules.acquire(owner, now, ttl_ms, left)
                if isinstance(found, str):
                    return Held(lock, owner, rules.token, now - started, found)
                if left <= 0:
                    return Busy(lock, rules.holder(now), rules.token, found, now - started)
                await self._wait(min(deadline, max(rules.until, now + 1)))
        except BaseException:
            rules.leave(owner, self._clock.now())
            self._poke()
            raise

    async def _wait(self, until: int) -> None:
        changed, seconds = self._changed, self._clock.seconds_until(EpochMs(until))
        if seconds is None:
            await changed.wait()
            return
        with anyio.move_on_after(seconds):
            await changed.wait()

    async def renew(self, held: Held, *, ttl_ms: int) -> bool:
        return self._lock(held.lock).renew(held.owner, held.token, self._clock.now(), ttl_ms)

    async def release(self, held: Held) -> Release:
        found = self._lock(held.lock).release(held.owner, held.token, self._clock.now())
        self._poke()
        return found

    async def evict(self, lock: str, owner: str) -> Release:
        found = self._lock(lock).evict(owner, self._clock.now())
        self._poke()
        return found

    async def state(self, lock: str) -> LockState | None:
        rules, now = self._lock(lock), self._clock.now()
        holder, waiters = rules.holder(now), rules.waiters(now)
        if not holder and not waiters:
            return None
        age = now - rules.since if holder else 0
        return LockState(lock, holder, rules.token, max(0, rules.until - now), waiters, age)

    async def held(self) -> Sequence[LockState]:
        found = [await self.state(name) for name in sorted(self._locks)]
        return [each for each in found if each is not None]

    def fence_holds(self, lock: str, owner: str, token: int) -> tuple[bool, str, int]:
        """What append checks: whether that proof is good, and who holds the lock with which token."""
        rules = self._lock(lock)
        holder = rules.holder(self._clock.now())
        return (bool(holder) and (holder, rules.token) == (owner, token)), holder, rules.token
