"""Time for the in-memory store: the machine's, or one that a test moves by hand."""

import time
from collections.abc import Callable
from typing import Protocol

from hami.domain.units import EpochMs


class Clock(Protocol):
    def now(self) -> EpochMs: ...

    def seconds_until(self, at: EpochMs) -> float | None:
        """How long to sleep until then; None = it comes only when the clock is moved (`on_move` tells)."""
        ...

    def on_move(self, poke: Callable[[], None]) -> None: ...


class SystemClock:
    def now(self) -> EpochMs:
        return EpochMs(time.time_ns() // 1_000_000)

    def seconds_until(self, at: EpochMs) -> float | None:
        return max(0.0, (at - self.now()) / 1000)

    def on_move(self, poke: Callable[[], None]) -> None:
        """Nothing to tell: sleepers wake by themselves."""


class ManualClock:
    """Stands still until `advance`; whoever waits for a time is woken then."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = EpochMs(start)
        self._pokes: list[Callable[[], None]] = []

    def now(self) -> EpochMs:
        return self._now

    def seconds_until(self, at: EpochMs) -> float | None:
        return 0.0 if at <= self._now else None

    def on_move(self, poke: Callable[[], None]) -> None:
        self._pokes.append(poke)

    def advance(self, ms: int) -> None:
        self._now = EpochMs(self._now + ms)
        for poke in self._pokes:
            poke()
