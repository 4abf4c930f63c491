"""Archive and log as one sequence: reads what is archived from the folder, the rest from the log."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import anyio.to_thread

from hami.domain.errors import ArchiveBroken, HistoryTrimmed
from hami.domain.units import EpochMs
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.manifest import Manifest, check_follows, place_of
from hami.events.codec import decode_record
from hami.events.envelope import START, Envelope, Position, entry_before, entry_key
from hami.events.group import Group
from hami.events.lease import Leases, Locks
from hami.events.log import Appended, Checkpoints, Duplicate, Fence, Inbox, Inboxes, Log, NodeFeed, Record
from hami.events.retention import RawEntry
from hami.events.store import Store


async def first_of(log: Log) -> Position:
    """The first position that can be read; START when there is none."""
    try:
        found = await log.read(START, limit=1)
    except HistoryTrimmed as trimmed:
        return Position(trimmed.g, trimmed.entry)
    return found[0].position if found else START


async def check_continues(log: Log, last: Manifest, *, incarnation: str) -> None:
    """Raises ArchiveBroken unless the log is the one that this archive is of, and goes on where it ends."""
    if last.incarnation != incarnation:
        raise ArchiveBroken(f"the archive is of incarnation {last.incarnation}, the store is {incarnation}: use another folder")
    found = await log.read(Position(0, entry_before(last.last.entry)), limit=1)
    at = found[0].position if found else await log.head()
    if at != last.last and at.g != last.last.g + (1 if found else 0):
        raise ArchiveBroken(
            f"the archive ends with g {last.last.g} ({last.last.entry}), the log has g {at.g} ({at.entry}) there: "
            "it lost entries that were archived, or is another log"
        )


async def with_history(store: Store, path: Path, *, incarnation: str) -> "Historical":
    """The store with its archive before its log. Raises ArchiveBroken where they do not belong together."""
    folder = ArchiveFolder(path)
    manifests = await anyio.to_thread.run_sync(folder.manifests)
    for previous, manifest in pairwise([None, *manifests]):
        if manifest is not None:
            check_follows(manifest, previous)
    if manifests:
        await check_continues(store.log, manifests[-1], incarnation=incarnation)
    return Historical(store, ArchivedLog(folder, manifests, store.log))


async def reaching_back(store: Store, path: str, *, incarnation: str) -> tuple[Log, str]:
    """For a process that can mostly do without: the log with its archive before it, else the log alone and why."""
    if not path:
        return store.log, ""
    try:
        return (await with_history(store, Path(path), incarnation=incarnation)).log, ""
    except (ArchiveBroken, OSError) as broken:
        return store.log, str(broken)


class ArchivedLog:
    """Implements hami.events.log.Log. Appends go to the log; reading begins in the archive."""

    def __init__(self, folder: ArchiveFolder, manifests: Sequence[Manifest], log: Log) -> None:
        self._folder, self._manifests, self._log = folder, tuple(manifests), log
        self._end = entry_key(manifests[-1].last.entry) if manifests else (0, 0)
        self._loaded: tuple[str, list[RawEntry]] = ("", [])

    async def read(self, after: Position, *, limit: int = 1000) -> Sequence[Record]:
        begin = entry_key(after.entry)
        for manifest in self._manifests if begin < self._end else ():
            if entry_key(manifest.last.entry) > begin:
                return await self._archived(manifest, after, limit)
        records = await self._log.read(after, limit=limit)
        if after.g and begin == self._end and records and records[0].position.g != after.g + 1:
            raise ArchiveBroken(f"the archive ends with g {after.g}, the log begins with g {records[0].position.g}")
        return records

    async def _archived(self, manifest: Manifest, after: Position, limit: int) -> Sequence[Record]:
        if after == START and manifest.first.g != 1:
            raise HistoryTrimmed(manifest.first.g, manifest.first.entry)
        entries = await self._entries_of(manifest)
        start = bisect_right(entries, entry_key(after.entry), key=lambda each: entry_key(each.entry))
        return [decode_record(*each) for each in entries[start : start + limit]]

    async def _entries_of(self, manifest: Manifest) -> list[RawEntry]:
        """Readers go forward in steps: the segment they are in is unpacked once."""
        if self._loaded[0] != manifest.segment:
            self._loaded = manifest.segment, await anyio.to_thread.run_sync(self._folder.entries_of, manifest)
        return self._loaded[1]

    async def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        at = after
        while entry_key(at.entry) < self._end:
            batch = await self.read(at)
            yield batch
            at = batch[-1].position
        async for batch in self._log.tail(at):
            yield batch

    async def at_or_before(self, recorded_ms: EpochMs) -> Position:
        try:
            return await self._log.at_or_before(recorded_ms)
        except HistoryTrimmed as trimmed:
            missing = trimmed
        before = [each for each in self._manifests if each.first.recorded_ms <= recorded_ms]
        if not before:
            first = self._manifests[0].first if self._manifests else Position(missing.g, missing.entry)
            if first.g == 1:
                return START
            raise HistoryTrimmed(first.g, first.entry)
        entries = await self._entries_of(before[-1])
        found = entries[bisect_right(entries, int(recorded_ms), key=lambda each: entry_key(each.entry)[0]) - 1]
        return Position(place_of(found).g, found.entry)

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate:
        return await self._log.append(envelopes, entities, expected=expected, fence=fence, feeds=feeds)

    async def head(self) -> Position:
        return await self._log.head()

    async def now(self) -> EpochMs:
        return await self._log.now()

    async def last_of(self, producer: str) -> tuple[int, int, str]:
        return await self._log.last_of(producer)


class Historical:
    """Implements hami.events.store.Store: another store, with its archive before its log."""

    def __init__(self, store: Store, log: ArchivedLog) -> None:
        self._store, self._history = store, log

    @property
    def log(self) -> Log:
        return self._history

    @property
    def locks(self) -> Locks:
        return self._store.locks

    @property
    def leases(self) -> Leases:
        return self._store.leases

    @property
    def checkpoints(self) -> Checkpoints:
        return self._store.checkpoints

    @property
    def inboxes(self) -> Inboxes:
        return self._store.inboxes

    def inbox(self, node: str) -> Inbox:
        return self._store.inbox(node)

    def feed(self, node: str) -> NodeFeed:
        return self._store.feed(node)

    def group(self, name: str, consumer: str) -> Group:
        return self._store.group(name, consumer)
