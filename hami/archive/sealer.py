"""Log entries into sealed segments, in order, each entry in one segment.

    last manifest --does the log go on from it?--> entries g+1... --enough, or old enough--> seal --> LogSealed in the log

`LogSealed` ties the two together: a segment cannot be exchanged without changing the log, which is itself in the next segment.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio.to_thread
import msgspec

from hami.archive.metrics import Metrics
from hami.domain.units import EpochMs
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.history import check_continues
from hami.events.archive.manifest import Manifest
from hami.events.catalog.journal import LogSealed
from hami.events.codec import decode_record
from hami.events.envelope import START, Position, entry_key
from hami.events.log import Draft, Log
from hami.events.retention import AT_ONCE, RawEntry, Retention
from hami.events.writer import EventWriter
from hami.telemetry import get_logger

_log = get_logger("archive")
_SEALED_BYTES: Final = f'"{LogSealed.TYPE}"'.encode()

Now = Callable[[], Awaitable[EpochMs]]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """When a segment is full, when it is old enough, and how young an entry must not be."""

    events: int
    age_ms: int
    settle_ms: int


class Sealer:
    """One life of it: from `begin` on, the folder is this one's. Make a new one after any error."""

    def __init__(
        self,
        log: Log,
        retention: Retention,
        folder: ArchiveFolder,
        writer: EventWriter,
        bounds: Bounds,
        metrics: Metrics,
        *,
        incarnation: str,
        now: Now,
    ) -> None:
        self._log, self._retention, self._folder, self._writer = log, retention, folder, writer
        self._bounds, self._metrics, self._incarnation, self._now = bounds, metrics, incarnation, now
        self._last: Manifest | None = None
        self._open: list[RawEntry] = []

    @property
    def archived(self) -> Position:
        return self._last.last if self._last is not None else START

    async def begin(self) -> None:
        """Raises ArchiveBroken where folder and log do not belong together."""
        # 1. What a predecessor left half done.
        for name in await anyio.to_thread.run_sync(self._folder.sweep):
            _log.info("removed what was never sealed", file=name)
        # 2. Where to go on.
        self._last = await anyio.to_thread.run_sync(self._folder.last)
        if self._last is None:
            return
        await anyio.to_thread.run_sync(self._folder.check_file, self._last)
        await check_continues(self._log, self._last, incarnation=self._incarnation)
        self._metrics.reached(self._last)
        # 3. It died between the manifest and the event, perhaps.
        if not await self._is_announced(self._last):
            await self._announce(self._last)

    async def _is_announced(self, manifest: Manifest) -> bool:
        after = manifest.last.entry
        while batch := await self._retention.entries(after):
            for raw in batch:
                if _SEALED_BYTES in raw.envelope:
                    event = decode_record(*raw).event
                    if isinstance(event, LogSealed) and event.segment == manifest.segment:
                        return True
            after = batch[-1].entry
        return False

    async def once(self) -> int:
        """Seal whatever is due; how many segments it were. Raises ArchiveBroken, OSError and the store's errors."""
        count = 0
        while await self._collect():
            await self._seal()
            count += 1
        head = await self._log.head()
        self._metrics.lag.set(head.g - self.archived.g)
        return count

    async def _collect(self) -> bool:
        """Read what is new. True when a segment is due."""
        now = await self._now()
        ripe = (now - self._bounds.settle_ms + 1, 0)
        while len(self._open) < self._bounds.events:
            after = self._open[-1].entry if self._open else self.archived.entry
            wanted = min(AT_ONCE, self._bounds.events - len(self._open))
            batch = await self._retention.entries(after, limit=wanted)
            settled = [raw for raw in batch if entry_key(raw.entry) < ripe]
            self._open += settled
            if not settled or len(settled) < len(batch):
                break
        return self._is_due(self._open, now)

    def _is_due(self, entries: Sequence[RawEntry], now: EpochMs) -> bool:
        if len(entries) >= self._bounds.events:
            return True
        if not entries or now - entry_key(entries[0].entry)[0] < self._bounds.age_ms:
            return False
        # What says that the last segment was sealed is not worth one of its own: that would never end.
        return any(_SEALED_BYTES not in raw.envelope for raw in entries)

    async def _seal(self) -> None:
        entries, previous = self._open, self._last

        def seal() -> Manifest:
            return self._folder.seal(entries, incarnation=self._incarnation, previous=previous)

        self._last = await anyio.to_thread.run_sync(seal)
        self._open = []
        self._metrics.reached(self._last)
        self._metrics.segments.inc()
        _log.info("sealed", segment=self._last.segment, first_g=self._last.first.g, last_g=self._last.last.g)
        await self._announce(self._last)

    async def _announce(self, manifest: Manifest) -> None:
        event = LogSealed(segment=manifest.segment, first_g=manifest.first.g, last_g=manifest.last.g, sha256=manifest.sha256)
        await self._writer.append([Draft(event=event, subject=manifest.segment)])
