"""The store's clock without asking the store each time: deadlines are measured by it."""

import time
from collections.abc import Callable

import anyio

from hami.domain.units import EpochMs
from hami.events.log import Log


class StoreClock:
    """`sample` before the first use; `run` keeps the difference to the machine's steady clock fresh."""

    def __init__(self, log: Log, *, every_s: float = 10.0, steady: Callable[[], float] = time.monotonic) -> None:
        self._log, self._every_s, self._steady = log, every_s, steady
        self._offset_ms = 0

    def now(self) -> EpochMs:
        return EpochMs(round(self._steady() * 1000) + self._offset_ms)

    async def sample(self) -> None:
        """Half of the round trip is taken for the way there. Raises StoreUnavailable."""
        before = self._steady()
        told = await self._log.now()
        self._offset_ms = told - round((before + self._steady()) * 500)

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._every_s)
            await self.sample()
