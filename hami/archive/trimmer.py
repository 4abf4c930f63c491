"""Trims the log below what `decide.floor` allows, in small steps, and only what lies readable in the archive."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import anyio.to_thread

from hami.archive.decide.floor import Floor, Watched, floor_of, watched
from hami.archive.metrics import Metrics
from hami.domain.errors import ArchiveBroken, StoreRefuses
from hami.domain.units import EpochMs
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.manifest import check_follows, place_of
from hami.events.catalog.journal import LogTruncated
from hami.events.envelope import Position, entry_key
from hami.events.log import Draft, Log
from hami.events.retention import AT_ONCE, Retention
from hami.events.writer import EventWriter
from hami.telemetry import get_logger

_TOLD: Final = "told/"
_log = get_logger("archive")


class Trimmer:
    """`needed`: the fold that must have a checkpoint. `mine` is asked before each step: False ends the round."""

    def __init__(
        self,
        log: Log,
        retention: Retention,
        folder: ArchiveFolder,
        writer: EventWriter,
        metrics: Metrics,
        *,
        incarnation: str,
        keep_ms: int,
        needed: str,
        now: Callable[[], Awaitable[EpochMs]],
        mine: Callable[[], Awaitable[bool]],
    ) -> None:
        self._log, self._retention, self._folder, self._writer, self._metrics = log, retention, folder, writer, metrics
        self._incarnation, self._keep_ms, self._needed = incarnation, keep_ms, needed
        self._now, self._mine = now, mine
        self._readable: set[str] = set()

    async def once(self, archived: Position) -> int:
        """How many entries went. Raises ArchiveBroken where the archive does not hold what it should."""
        # 1. What is anything kept for?
        floor = await self._floor(archived)
        self._metrics.pinned(floor.pin.what)
        # 2. Is what goes really in the archive?
        first = await self._retention.entries("0-0", limit=1)
        if not first or entry_key(first[0].entry) >= entry_key(floor.pin.entry):
            return await self._done(0)
        await anyio.to_thread.run_sync(self._check_archive, first[0].entry, floor.pin.entry, archived)
        # 3. Who is not waited for any longer hears of it first.
        await self._tell(floor.cut_off, floor.pin.entry)
        # 4. Step by step.
        count = 0
        while await self._mine():
            gone = await self._retention.trim(floor.pin.entry)
            count += gone
            if gone < AT_ONCE:
                break
        return await self._done(count)

    async def _floor(self, archived: Position) -> Floor:
        now, notes = await self._now(), await self._retention.notes()
        groups, changes = watched(await self._retention.groups(), notes, head=await self._log.head(), now=now)
        if changes:
            await self._note(changes)
        return floor_of(
            archived=archived,
            kept=await self._retention.checkpoints(),
            groups=groups,
            keep_ms=self._keep_ms,
            incarnation=self._incarnation,
            needed=self._needed,
            now=now,
        )

    async def _note(self, changes: Mapping[str, str]) -> None:
        """A full store takes no notes; that must not keep it full."""
        try:
            await self._retention.note(changes)
        except StoreRefuses as full:
            _log.warning("cannot note when groups moved", why=str(full))

    def _check_archive(self, first: str, before: str, archived: Position) -> None:
        """No segment between is missing, and each file is there and is what was sealed (once in the life of this process)."""
        manifests = self._folder.manifests()
        if not manifests or manifests[-1].last.g < archived.g:
            raise ArchiveBroken(f"the newest segments, up to g {archived.g}, are no longer in the archive {self._folder.path}")
        concerned = [
            each
            for each in manifests
            if entry_key(each.last.entry) >= entry_key(first) and entry_key(each.first.entry) < entry_key(before)
        ]
        if not concerned or entry_key(concerned[0].first.entry) > entry_key(first):
            raise ArchiveBroken(f"the log begins with {first}, which is not in the archive {self._folder.path}")
        for previous, manifest in pairwise([None, *concerned]):
            if manifest is None:
                continue
            if previous is not None:
                check_follows(manifest, previous)
            if manifest.segment not in self._readable:
                self._folder.check_file(manifest)
                self._readable.add(manifest.segment)

    async def _tell(self, groups: Sequence[Watched], before: str) -> None:
        """Once for each place that a group stands at."""
        notes = await self._retention.notes()
        for group in groups:
            if notes.get(_TOLD + group.name) == group.needs:
                continue
            why = f"consumer group {group.name} has needed {group.needs} for a day and more and is not waited for"
            await self._writer.append([Draft(event=LogTruncated(before=before, why=why))])
            await self._retention.note({_TOLD + group.name: group.needs})
            _log.warning("a consumer group is left behind", group=group.name, needs=group.needs, before=before)

    async def _done(self, count: int) -> int:
        first = await self._retention.entries("0-0", limit=1)
        if first:
            self._metrics.trimmed.set(place_of(first[0]).g - 1)
        if count:
            _log.info("trimmed", entries=count, begins=first[0].entry if first else "")
        return count
