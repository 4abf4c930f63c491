"""Events nobody waits for: a refused placement, a lock that was busy. They are written beside the answer, never in its way.

The queue is bounded; what does not fit is counted and dropped: these events explain, no decision rests on them.
"""

import math
from typing import Final

import anyio

from hami.domain.errors import HamiError
from hami.events.log import Draft
from hami.events.writer import EventWriter
from hami.scheduler.metrics import Metrics
from hami.telemetry import get_logger

_ROOM: Final = 1000
_BATCH: Final = 50
_log = get_logger("scheduler.notes")


class Notes:
    def __init__(self, writer: EventWriter, metrics: Metrics) -> None:
        self._writer, self._metrics = writer, metrics
        self._waiting: list[Draft] = []
        self._some = anyio.Event()

    def write(self, draft: Draft) -> None:
        if len(self._waiting) >= _ROOM:
            self._metrics.notes_dropped.inc()
            return
        self._waiting.append(draft)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            if not self._waiting:
                self._some = anyio.Event()
            try:
                await self._writer.append(batch)
            except HamiError as error:
                self._metrics.notes_dropped.inc(len(batch))
                _log.warning("notes not written", count=len(batch), error=str(error))


class Once:
    """Remembers the last value said under a key, for a bounded number of keys: `news` is true when it is a new one."""

    def __init__(self, keep: int = 10_000) -> None:
        self._keep = keep
        self._said: dict[str, str] = {}

    def news(self, key: str, value: str) -> bool:
        if self._said.pop(key, None) == value:
            self._said[key] = value
            return False
        self._said[key] = value
        if len(self._said) > self._keep:
            del self._said[next(iter(self._said))]
        return True

    def forget(self, key: str) -> None:
        self._said.pop(key, None)


class TokenBucket:
    """`take` is false when more than `rate` a second (after a first burst) are asked for."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), -math.inf

    def take(self, now: float) -> bool:
        if self._at != -math.inf:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
