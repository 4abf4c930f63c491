"""Fenced FIFO locks in memory: the same state machine as functions/hami_v1.lua, step by step, as a verified fake."""

from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from hami.domain.units import EpochMs
from hami.events.clock import Clock, SystemClock
from hami.events.lease import Busy, Held, LockState, Release

CONFIRM_MS: Final = 1000
"""How long a grant to a waiter stands before it is confirmed: what a dead waiter costs."""


class _Lock(msgspec.Struct):
    token: int = 0
    owner: str = ""
    """The last holder that has not let go; it may have run out."""
    confirmed: bool = False
    until: int = 0
    queue: list[tuple[int, str]] = msgspec.field(default_factory=list)

    def held_by(self, now: int) -> str:
        return self.owner if self.until > now else ""

    def drop_late_waiters(self, now: int) -> None:
        while self.queue and self.queue[0][0] <= now:
            self.queue.pop(0)

    def leave(self, owner: str) -> None:
        self.queue = [each for each in self.queue if each[1] != owner]

    def give(self, owner: str, until: int, *, confirmed: bool) -> None:
        self.token, self.owner, self.until, self.confirmed = self.token + 1, owner, until, confirmed

    def hand_over(self, now: int) -> None:
        self.drop_late_waiters(now)
        if self.queue:
            self.give(self.queue.pop(0)[1], now + CONFIRM_MS, confirmed=False)

    def free(self, now: int) -> None:
        self.owner, self.until = "", 0
        self.hand_over(now)

    def acquire(self, owner: str, now: int, ttl_ms: int, wait_ms: int) -> str | int:
        """Held now: the owner it was reclaimed from (may be empty). Busy: how many wait before this one."""
        if self.held_by(now) == owner:
            self.until, self.confirmed = now + ttl_ms, True
            self.leave(owner)
            return ""
        self.drop_late_waiters(now)
        if not self.held_by(now):
            if not self.queue or self.queue[0][1] == owner:
                before = self.owner
                self.leave(owner)
                self.give(owner, now + ttl_ms, confirmed=True)
                return before
            self.hand_over(now)
        names = [waiting for _, waiting in self.queue]
        queued = owner in names
        if wait_ms <= 0:
            self.leave(owner)
        elif not queued:
            self.queue.append((now + wait_ms, owner))
        return names.index(owner) if queued else len(names)


class MemoryLocks:
    """Implements hami.events.lease.Locks."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._locks: dict[str, _Lock] = {}
        self._changed = anyio.Event()
        self._clock.on_move(self._poke)

    def _poke(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _lock(self, name: str) -> _Lock:
        return self._locks.setdefault(name, _Lock())

    async def acquire(self, lock: str, owner: str, *, ttl_ms: int, wait_ms: int = 0) -> Held | Busy:
        state, started = self._lock(lock), self._clock.now()
        deadline = started + wait_ms
        try:
            while True:
                now = self._clock.now()
                left = deadline - now
                found = state.acquire(owner, now, ttl_ms, left)
                if isinstance(found, str):
                    return Held(lock, owner, state.token, now - started, found)
                if left <= 0:
                    return Busy(lock, state.held_by(now), state.token, found, now - started)
                await self._wait(min(deadline, max(state.until, now + 1)))
        except BaseException:
            self._give_up(state, owner)
            raise

    def _give_up(self, state: _Lock, owner: str) -> None:
        now = self._clock.now()
        state.leave(owner)
        if state.held_by(now) == owner and not state.confirmed:
            state.free(now)
            self._poke()

    async def _wait(self, until: int) -> None:
        changed, seconds = self._changed, self._clock.seconds_until(EpochMs(until))
        if seconds is None:
            await changed.wait()
            return
        with anyio.move_on_after(seconds):
            await changed.wait()

    async def renew(self, held: Held, *, ttl_ms: int) -> bool:
        state, now = self._lock(held.lock), self._clock.now()
        if state.held_by(now) != held.owner or state.token != held.token:
            return False
        state.until, state.confirmed = now + ttl_ms, True
        return True

    async def release(self, held: Held) -> Release:
        state, now = self._lock(held.lock), self._clock.now()
        holder = state.held_by(now)
        if not holder:
            if (state.owner, state.token) == (held.owner, held.token):
                state.free(now)
                self._poke()
            return Release.ABSENT
        if (holder, state.token) != (held.owner, held.token):
            return Release.STALE
        state.free(now)
        self._poke()
        return Release.RELEASED

    async def evict(self, lock: str, owner: str) -> Release:
        state, now = self._lock(lock), self._clock.now()
        state.leave(owner)
        holder = state.held_by(now)
        if holder and holder != owner:
            return Release.STALE
        if state.owner == owner:
            state.free(now)
            self._poke()
        return Release.RELEASED if holder else Release.ABSENT

    async def state(self, lock: str) -> LockState | None:
        state, now = self._lock(lock), self._clock.now()
        waiters = tuple(owner for deadline, owner in state.queue if deadline > now)
        holder = state.held_by(now)
        if not holder and not waiters:
            return None
        return LockState(lock, holder, state.token, max(0, state.until - now), waiters)

    async def held(self) -> Sequence[LockState]:
        found = [await self.state(name) for name in sorted(self._locks)]
        return [each for each in found if each is not None]

    def fence_holds(self, lock: str, owner: str, token: int) -> tuple[bool, str, int]:
        """What append checks: whether that proof is good, and who holds the lock with which token."""
        state = self._lock(lock)
        holder = state.held_by(self._clock.now())
        return (bool(holder) and (holder, state.token) == (owner, token)), holder, state.token
