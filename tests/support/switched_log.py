"""A log behind a switch: it can be away, and it can be exchanged for one that lost its last entries (a failover)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType

from hami.domain.errors import StoreUnavailable
from hami.domain.units import EpochMs
from hami.events.envelope import Envelope, Position
from hami.events.log import Appended, Duplicate, Fence, Log, Record


class SwitchedLog:
    """Implements hami.events.log.Log by passing everything on to `inner`, unless `away`."""

    def __init__(self, inner: Log) -> None:
        self.inner = inner
        self.away = False

    def _there(self) -> Log:
        if self.away:
            raise StoreUnavailable("switched off by the test")
        return self.inner

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate:
        return await self._there().append(envelopes, entities, expected=expected, fence=fence, feeds=feeds)

    async def read(self, after: Position, *, limit: int = 1000) -> Sequence[Record]:
        return await self._there().read(after, limit=limit)

    async def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        async for batch in self._there().tail(after):
            self._there()
            yield batch

    async def head(self) -> Position:
        return await self._there().head()

    async def at_or_before(self, recorded_ms: EpochMs) -> Position:
        return await self._there().at_or_before(recorded_ms)

    async def now(self) -> EpochMs:
        return await self._there().now()

    async def last_of(self, producer: str) -> tuple[int, int, str]:
        return await self._there().last_of(producer)
