"""What a segment is: entries as JSON lines in a gzip file, and a manifest that says what must be in it.

    000000000001-3fa2b1c04d5e.jsonl.gz     entries g 1 to 50000; the name carries the beginning of its own sha256
    000000000001.json                      the manifest: the segment counts from the moment this name exists

A line is {"entry": stream id, "p": place, "d": envelope}, the fields as they lie in the log, byte for byte. A field that is not
one line of JSON (nobody's append writes that) is kept in base64 as `p64` or `d64`.
"""

import base64
import gzip
import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from hami.domain.errors import ArchiveBroken, InvalidInput
from hami.events.codec import Place
from hami.events.envelope import Position, entry_key
from hami.events.retention import RawEntry

FORMAT: Final = 1
_LEVEL: Final = 6


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`sha256` is of the file as it lies there, `previous` that of the segment before (empty: the first one)."""

    segment: str
    incarnation: str
    first: Position
    last: Position
    count: int
    sha256: str
    previous: str = ""
    format: int = FORMAT


class _Line(msgspec.Struct, frozen=True):
    entry: str
    p: msgspec.Raw = msgspec.Raw(b"")
    d: msgspec.Raw = msgspec.Raw(b"")
    p64: str = ""
    d64: str = ""


_line_decoder: Final = msgspec.json.Decoder(_Line)
_place_decoder: Final = msgspec.json.Decoder(Place)
_manifest_decoder: Final = msgspec.json.Decoder(Manifest)


def place_of(raw: RawEntry) -> Place:
    """Raises InvalidInput."""
    try:
        return _place_decoder.decode(raw.place)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("p", raw.place[:200].decode("utf-8", "replace"), f"entry {raw.entry} of the log: {error}") from error


def line_of(raw: RawEntry) -> bytes:
    fields = b",".join(_field(name, value) for name, value in ((b"p", raw.place), (b"d", raw.envelope)))
    return b'{"entry":"' + raw.entry.encode() + b'",' + fields + b"}\n"


def _field(name: bytes, value: bytes) -> bytes:
    if _is_one_line_of_json(value):
        return b'"' + name + b'":' + value
    return b'"' + name + b'64":"' + base64.b64encode(value) + b'"'


def _is_one_line_of_json(value: bytes) -> bool:
    if b"\n" in value or b"\r" in value or value != value.strip():
        return False
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def entry_of(line: bytes) -> RawEntry:
    """Raises ArchiveBroken."""
    try:
        found = _line_decoder.decode(line)
        place = base64.b64decode(found.p64, validate=True) if found.p64 else bytes(found.p)
        envelope = base64.b64decode(found.d64, validate=True) if found.d64 else bytes(found.d)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise ArchiveBroken(f"a line of a segment cannot be read ({error}): {line[:80]!r}") from error
    return RawEntry(found.entry, envelope, place)


def packed(entries: Sequence[RawEntry]) -> bytes:
    """The file of a segment: the same entries give the same bytes."""
    return gzip.compress(b"".join(line_of(each) for each in entries), compresslevel=_LEVEL, mtime=0)


def unpacked(data: bytes, segment: str) -> list[RawEntry]:
    """Raises ArchiveBroken."""
    try:
        lines = gzip.decompress(data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveBroken(f"segment {segment} cannot be unpacked: {error}") from error
    return [entry_of(line) for line in lines]


def sealed(entries: Sequence[RawEntry], data: bytes, *, incarnation: str, previous: Manifest | None) -> Manifest:
    """The manifest for entries and their file. Raises ArchiveBroken unless they are the log's next ones without a gap."""
    places = [Position(place_of(each).g, each.entry) for each in entries]
    before = previous.last if previous is not None else None
    for at in places:
        if before is not None and (at.g != before.g + 1 or entry_key(at.entry) <= entry_key(before.entry)):
            raise ArchiveBroken(f"after g {before.g} ({before.entry}) the log goes on with g {at.g} ({at.entry})")
        before = at
    digest = sha256_of(data)
    return Manifest(
        segment=f"{places[0].g:012d}-{digest[:12]}.jsonl.gz",
        incarnation=incarnation,
        first=places[0],
        last=places[-1],
        count=len(places),
        sha256=digest,
        previous=previous.sha256 if previous is not None else "",
    )


def check_follows(manifest: Manifest, previous: Manifest | None) -> None:
    """Raises ArchiveBroken where a segment does not continue the one before it."""
    if previous is None:
        if manifest.previous:
            raise ArchiveBroken(f"segment {manifest.segment} follows another one, which is missing")
        return
    if manifest.first.g != previous.last.g + 1:
        raise ArchiveBroken(f"after g {previous.last.g} the archive goes on with g {manifest.first.g}: a segment is missing")
    if manifest.previous != previous.sha256:
        raise ArchiveBroken(f"segment {manifest.segment} names another segment before it than {previous.segment}")
    if manifest.incarnation != previous.incarnation:
        raise ArchiveBroken(f"segment {manifest.segment} is of incarnation {manifest.incarnation}, not {previous.incarnation}")


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(raw: bytes, name: str) -> Manifest:
    """Raises ArchiveBroken."""
    try:
        found = _manifest_decoder.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ArchiveBroken(f"manifest {name} cannot be read: {error}") from error
    if found.format != FORMAT:
        raise ArchiveBroken(f"manifest {name} has format {found.format}, this version reads {FORMAT}")
    return found
