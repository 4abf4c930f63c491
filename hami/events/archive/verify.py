"""Is the history whole and unchanged? Checks what archive and log hold, and names the first thing that is wrong.

A `Checker` is fed every entry in order: g must grow by one, stream ids must grow, each producer's numbers must follow each
other within an epoch, and its chain value must be the hash of what came before. Where history begins in the middle, the first
event seen of a producer is taken as its beginning.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from hami.domain.errors import ArchiveBroken, InvalidInput
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.history import check_continues
from hami.events.archive.manifest import Manifest, check_follows, place_of
from hami.events.catalog.journal import LogSealed
from hami.events.codec import decode_envelope, decode_event
from hami.events.envelope import START, Envelope, Position, chain_of, entry_before, entry_key
from hami.events.log import Log
from hami.events.retention import RawEntry, Retention


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """`wrong` is empty when everything that was looked at is as it was written."""

    first_g: int
    last_g: int
    entries: int
    producers: int
    segments: int = 0
    wrong: str = ""


class Checker:
    """Remembers one row for each producer. After the first finding nothing more is worth looking at."""

    def __init__(self) -> None:
        self._first, self._last = START, START
        self._producers: dict[str, tuple[int, int, str]] = {}
        self._sealed: dict[str, LogSealed] = {}
        self.entries = 0

    @property
    def last(self) -> Position:
        return self._last

    def result(self, wrong: str = "", *, segments: int = 0) -> Checked:
        return Checked(
            first_g=self._first.g,
            last_g=self._last.g,
            entries=self.entries,
            producers=len(self._producers),
            segments=segments,
            wrong=wrong,
        )

    def take(self, raw: RawEntry) -> str:
        """What is wrong with the next entry, in words; empty when nothing is."""
        try:
            at = Position(place_of(raw).g, raw.entry)
            envelope = decode_envelope(raw.envelope)
        except InvalidInput as error:
            return f"entry {raw.entry}, after g {self._last.g}: {error}"
        begins_at = self._first.g or at.g
        wrong = self._order(at) or self._producer(envelope, whole=begins_at == 1)
        if wrong:
            return f"g {at.g} ({at.entry}): {wrong}"
        self._first = at if self._first == START else self._first
        self._last = at
        self.entries += 1
        self._remember_seal(envelope)
        return ""

    def _order(self, at: Position) -> str:
        last = self._last
        if last == START:
            return ""
        if at.g != last.g + 1:
            return f"follows g {last.g} ({last.entry}): entries between are missing or were put in"
        if entry_key(at.entry) <= entry_key(last.entry):
            return f"its id is not above that of g {last.g} ({last.entry})"
        return ""

    def _producer(self, envelope: Envelope, *, whole: bool) -> str:
        known = self._producers.get(envelope.producer)
        epoch, last, before = known or (0, 0, "")
        seq, chain = (last, before) if envelope.epoch == epoch else (0, "")
        self._producers[envelope.producer] = (envelope.epoch, envelope.seq, envelope.chain)
        if known is None and not whole and envelope.seq != 1:
            return ""
        if envelope.epoch < epoch or envelope.seq != seq + 1:
            return (
                f"{envelope.id} follows {envelope.producer}/{epoch}/{last}: events of this producer are missing or were put in"
            )
        if envelope.chain != chain_of(chain, envelope.id, bytes(envelope.data)):
            return f"the chain value of {envelope.id} does not fit: this event or one before it was changed"
        return ""

    def _remember_seal(self, envelope: Envelope) -> None:
        event = decode_event(envelope)
        if isinstance(event, LogSealed):
            self._sealed[event.segment] = event

    def seals(self, manifests: Sequence[Manifest]) -> str:
        """Segments against what the log says of them: whoever rewrites a segment must rewrite all that follows as well."""
        for each in manifests:
            said = self._sealed.get(each.segment)
            if said is not None and (said.sha256, said.first_g, said.last_g) != (each.sha256, each.first.g, each.last.g):
                return f"segment {each.segment} is not what the log says was sealed"
        named = {each.first.g: each for each in manifests}
        for said in self._sealed.values():
            here = named.get(said.first_g)
            if here is not None and here.segment != said.segment:
                return f"segment {here.segment} lies where the log says that {said.segment} was sealed"
        return ""


def check_folder(folder: ArchiveFolder, checker: Checker) -> tuple[str, list[Manifest]]:
    """What is wrong first, and the manifests. Blocking."""
    manifests: list[Manifest] = []
    try:
        manifests = folder.manifests()
        for previous, manifest in pairwise([None, *manifests]):
            if manifest is not None:
                check_follows(manifest, previous)
                wrong = _check_segment(folder, manifest, checker)
                if wrong:
                    return wrong, manifests
    except ArchiveBroken as broken:
        return str(broken), manifests
    return checker.seals(manifests), manifests


def _check_segment(folder: ArchiveFolder, manifest: Manifest, checker: Checker) -> str:
    entries = folder.entries_of(manifest)
    for raw in entries:
        wrong = checker.take(raw)
        if wrong:
            return f"segment {manifest.segment}: {wrong}"
    ends = (entries[0].entry, entries[-1].entry, place_of(entries[0]).g) if entries else ("", "", 0)
    if (len(entries), *ends) != (manifest.count, manifest.first.entry, manifest.last.entry, manifest.first.g):
        return f"segment {manifest.segment} does not hold what its manifest says"
    return ""


async def check_all(
    log: Log,
    retention: Retention,
    checker: Checker,
    folder: ArchiveFolder | None,
    manifests: Sequence[Manifest],
    *,
    incarnation: str,
) -> str:
    """The log, after `check_folder` found nothing wrong with the archive (None: there is none)."""
    archived = START
    if manifests:
        archived = manifests[-1].last
        try:
            await check_continues(log, manifests[-1], incarnation=incarnation)
        except ArchiveBroken as broken:
            return str(broken)
    wrong = await check_log(retention, checker, folder, archived)
    return wrong or checker.seals(manifests)


async def check_log(retention: Retention, checker: Checker, folder: ArchiveFolder | None, archived: Position) -> str:
    """The log after the archive, and where both hold an entry, whether it is the same one."""
    kept = await retention.entries("0-0", limit=1)
    both: Iterator[RawEntry] = iter(()) if folder is None or not kept else folder.entries(entry_before(kept[0].entry))
    after = "0-0"
    while batch := await retention.entries(after):
        for raw in batch:
            if entry_key(raw.entry) <= entry_key(archived.entry):
                wrong = "" if next(both, None) == raw else f"entry {raw.entry}: log and archive do not hold the same"
            else:
                wrong = checker.take(raw)
            if wrong:
                return wrong
        after = batch[-1].entry
    return ""
