"""A folder of sealed segments.

    entries --> temporary file, fsync --> segment file --> temporary manifest, fsync --> manifest        from here on it counts

Whatever a crash leaves before the last step is no segment: the next archiver begins again after the last manifest and sweeps it
up. Two archivers that seal the same place at once do not harm each other: file names carry the digest, and only one gets the
manifest's name.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hami.domain.errors import ArchiveBroken
from hami.events.archive.disk import Disk, RealDisk
from hami.events.archive.manifest import Manifest, decode_manifest, encode_manifest, packed, sealed, sha256_of, unpacked
from hami.events.envelope import entry_key
from hami.events.retention import RawEntry

_MANIFEST: Final = re.compile(r"(\d{12,})\.json")
_SEGMENT: Final = re.compile(r"(\d{12,})-[0-9a-f]{12}\.jsonl\.gz")
_TEMPORARY: Final = ".sealing-"


class ArchiveFolder:
    """Blocking: call from a thread where that matters. Nothing is remembered between calls."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path, self._disk = path, disk or RealDisk()

    def manifests(self) -> list[Manifest]:
        """Sealed segments, oldest first. Raises ArchiveBroken where one cannot be read."""
        found = [decode_manifest(each.read_bytes(), each.name) for each in self._files(_MANIFEST)]
        return sorted(found, key=lambda each: each.first.g)

    def last(self) -> Manifest | None:
        """The newest one, without reading the others. Raises ArchiveBroken."""
        newest = max(self._files(_MANIFEST), key=_number, default=None)
        return None if newest is None else decode_manifest(newest.read_bytes(), newest.name)

    def seal(self, entries: Sequence[RawEntry], *, incarnation: str, previous: Manifest | None) -> Manifest:
        """Raises ArchiveBroken where these do not follow `previous`, or another archiver was first; OSError."""
        # 1. What it will be.
        data = packed(entries)
        manifest = sealed(entries, data, incarnation=incarnation, previous=previous)
        # 2. The entries.
        temporary = self.path / f"{_TEMPORARY}{os.getpid()}"
        self._disk.write(temporary, data)
        self._disk.replace(temporary, self.path / manifest.segment)
        # 3. The manifest: now it counts.
        self._disk.write(temporary, encode_manifest(manifest))
        try:
            self._disk.claim(temporary, self.path / f"{manifest.first.g:012d}.json")
        except FileExistsError as error:
            raise ArchiveBroken(f"g {manifest.first.g} is sealed already: another archiver writes to {self.path}") from error
        self._disk.remove(temporary)
        return manifest

    def sweep(self) -> list[str]:
        """Remove what an archiver that died left behind after the last manifest; the names. For the one archiver only."""
        last = self.last()
        left = [each for each in self._files(_SEGMENT) if last is None or _number(each) > last.first.g]
        left += [each for each in self._all() if each.name.startswith(_TEMPORARY)]
        for each in left:
            self._disk.remove(each)
        return sorted(each.name for each in left)

    def check_file(self, manifest: Manifest) -> None:
        """Raises ArchiveBroken unless the segment's file is the one that was sealed."""
        self._data_of(manifest)

    def entries_of(self, manifest: Manifest) -> list[RawEntry]:
        """Raises ArchiveBroken."""
        return unpacked(self._data_of(manifest), manifest.segment)

    def entries(self, after: str) -> Iterator[RawEntry]:
        """Everything archived after that entry, segment by segment."""
        begin = entry_key(after)
        for manifest in self.manifests():
            if entry_key(manifest.last.entry) > begin:
                yield from (each for each in self.entries_of(manifest) if entry_key(each.entry) > begin)

    def _data_of(self, manifest: Manifest) -> bytes:
        try:
            data = (self.path / manifest.segment).read_bytes()
        except FileNotFoundError as error:
            raise ArchiveBroken(f"segment {manifest.segment} (g {manifest.first.g} to {manifest.last.g}) is missing") from error
        found = sha256_of(data)
        if found != manifest.sha256:
            raise ArchiveBroken(
                f"segment {manifest.segment} has sha256 {found[:12]}..., its manifest says {manifest.sha256[:12]}..."
            )
        return data

    def _files(self, pattern: re.Pattern[str]) -> list[Path]:
        return [each for each in self._all() if pattern.fullmatch(each.name)]

    def _all(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []


def _number(path: Path) -> int:
    return int(re.split(r"[-.]", path.name)[0])
