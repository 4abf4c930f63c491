"""Versions of pods that left long ago are forgotten, so that the store does not grow with every pod that ever was.

Reads the archive behind the trim point, each event once: a release is the end of a pod. What moved the pod after its release
counts as well, and a pod that was reserved again is no longer gone. How far it came is noted beside the log; doing a part again
does no harm, as a version is forgotten only while it is still the one given.
"""

from collections.abc import Sequence
from typing import Final

import anyio.to_thread

from hami.archive.metrics import Metrics
from hami.domain.units import EpochMs
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.manifest import Manifest
from hami.events.catalog.allocation import AllocationReleased, AllocationReserved
from hami.events.codec import decode_record
from hami.events.envelope import entry_key
from hami.events.retention import RawEntry, Retention
from hami.projections.folds.allocations import RETIRED_FOR_MS, SWEEP_EVERY_MS

_NOTE: Final = "forgotten"
LATER_MS: Final = RETIRED_FOR_MS + 6 * SWEEP_EVERY_MS
"""Later than a fold forgets: whoever still knows a version gets a conflict, nobody meets a version that begins anew."""


class Forgetter:
    def __init__(self, retention: Retention, folder: ArchiveFolder, metrics: Metrics) -> None:
        self._retention, self._folder, self._metrics = retention, folder, metrics

    async def once(self, now: EpochMs) -> int:
        """How many pods were forgotten. Raises ArchiveBroken and the store's errors."""
        kept = await self._retention.entries("0-0", limit=1)
        if not kept:
            return 0
        end = min(entry_key(kept[0].entry), (now - LATER_MS, 0))
        after, count = (await self._retention.notes()).get(_NOTE, "0-0"), 0
        for manifest in await anyio.to_thread.run_sync(self._folder.manifests):
            if entry_key(manifest.last.entry) <= entry_key(after):
                continue
            if entry_key(manifest.first.entry) >= end:
                break
            after, gone = await self._segment(manifest, after, end)
            count += gone
        self._metrics.forgotten.inc(count)
        return count

    async def _segment(self, manifest: Manifest, after: str, end: tuple[int, int]) -> tuple[str, int]:
        entries = await anyio.to_thread.run_sync(self._folder.entries_of, manifest)
        past = [raw for raw in entries if entry_key(after) < entry_key(raw.entry) < end]
        if not past:
            return after, 0
        gone = await self._retention.forget(released(past))
        await self._retention.note({_NOTE: past[-1].entry})
        return past[-1].entry, gone


def released(entries: Sequence[RawEntry]) -> dict[str, int]:
    """Pods whose allocation ended here and who were not reserved again, each with the version of its last event."""
    found: dict[str, int] = {}
    for raw in entries:
        record = decode_record(*raw)
        for entity, version in record.versions.items():
            if not entity.startswith("pod/"):
                continue
            if isinstance(record.event, AllocationReserved):
                found.pop(entity, None)
            elif entity in found or isinstance(record.event, AllocationReleased):
                found[entity] = version
    return found
