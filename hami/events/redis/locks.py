"""Fenced FIFO locks on Redis. The rules stand in functions/hami_v1.lua; here is the waiting.

A waiter sleeps on a list of its own, and looks again when the present holder's time is over: nobody is told of an expiry.
"""

import time
from collections.abc import Sequence
from typing import Any

import anyio

from hami.domain.errors import StoreUnavailable
from hami.events.lease import Busy, Held, LockState, Release
from hami.events.redis.client import Arg, Client, text

_RELEASES = {b"RELEASED": Release.RELEASED, b"STALE": Release.STALE, b"ABSENT": Release.ABSENT}


class RedisLocks:
    """Implements hami.events.lease.Locks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys = client.keys

    async def _call(self, function: str, lock: str, *args: Arg) -> list[Any]:
        keys = [self._keys.lock(lock), self._keys.queue(lock), self._keys.locks]
        reply: list[Any] = await self._client.fcall(function, keys, [lock, self._keys.wake_prefix(lock), *args])
        return reply

    async def acquire(self, lock: str, owner: str, *, ttl_ms: int, wait_ms: int = 0) -> Held | Busy:
        started = time.monotonic()
        first = True
        try:
            while True:
                waited = int((time.monotonic() - started) * 1000)
                left = max(0, wait_ms - waited)
                reply = await self._call("hami_lock_acquire", lock, owner, ttl_ms, left)
                if reply[0] == b"HELD":
                    return Held(lock, owner, int(reply[1]), 0 if first else waited, text(reply[2]))
                _, holder, token, ahead, holder_ttl = reply
                if left <= 0:
                    return Busy(lock, text(holder), int(token), int(ahead), 0 if first else waited)
                first = False
                await self._sleep(lock, owner, min(left, max(int(holder_ttl), 0) + 1))
        except BaseException:
            if wait_ms > 0:
                await self._leave(lock, owner)
            raise

    async def _sleep(self, lock: str, owner: str, ms: int) -> None:
        """Until woken, or that long; in pieces, since one blocking read may not outlast its connection's patience."""
        seconds = min(ms / 1000, self._client.block_s)
        await self._client.blocking.call("BLPOP", self._keys.wake_prefix(lock) + owner, f"{max(seconds, 0.001):.3f}")

    async def _leave(self, lock: str, owner: str) -> None:
        """Cancelled or cut off while waiting: nobody waits for a ghost. Should this fail, it costs them a second."""
        with anyio.move_on_after(1, shield=True):
            try:
                await self._call("hami_lock_leave", lock, owner)
            except StoreUnavailable:
                return

    async def renew(self, held: Held, *, ttl_ms: int) -> bool:
        reply = await self._call("hami_lock_renew", held.lock, held.owner, held.token, ttl_ms)
        return bool(reply[0] == b"RENEWED")

    async def release(self, held: Held) -> Release:
        return _RELEASES[(await self._call("hami_lock_release", held.lock, held.owner, held.token))[0]]

    async def evict(self, lock: str, owner: str) -> Release:
        return _RELEASES[(await self._call("hami_lock_evict", lock, owner))[0]]

    async def state(self, lock: str) -> LockState | None:
        return _state(lock, await self._call("hami_lock_state", lock))

    async def held(self) -> Sequence[LockState]:
        rows = await self._client.command.call("HGETALL", self._keys.locks)
        names = sorted(text(rows[i]) for i in range(0, len(rows), 2) if not rows[i + 1].endswith(b":"))
        replies = await self._client.bulk.pipeline(
            [
                ("FCALL", "hami_lock_state", 3, self._keys.lock(name), self._keys.queue(name), self._keys.locks, name)
                for name in names
            ]
        )
        found = [_state(name, reply) for name, reply in zip(names, replies, strict=True)]
        return [each for each in found if each is not None]


def _state(lock: str, reply: list[Any]) -> LockState | None:
    if reply[0] != b"STATE":
        return None
    _, holder, token, ttl, waiters, age = reply
    return LockState(lock, text(holder), int(token), int(ttl), tuple(text(each) for each in waiters), int(age))
