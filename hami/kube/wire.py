"""Lists and watch lines as bytes on the wire, decoded so that one bad object costs only itself."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from hami.domain.errors import InvalidInput
from hami.kube.errors import ApiError, error_of
from hami.kube.kinds import HasMetadata
from hami.kube.results import Added, Bookmark, Deleted, Gone, Modified, Skipped, Undecodable, WatchEvent

T = TypeVar("T", bound=HasMetadata)


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] = []


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    """As little of an object as can be told of one that is otherwise broken."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)


_raw_list = msgspec.json.Decoder(_RawList).decode
_line = msgspec.json.Decoder(_Line).decode
_named = msgspec.json.Decoder(_Named).decode


@lru_cache(maxsize=64)
def decoder_of(type_: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(type_)


def decoded(type_: type[T], body: bytes) -> T:
    """One object; InvalidInput when it does not fit its struct."""
    try:
        found: T = decoder_of(type_).decode(body)
    except msgspec.DecodeError as error:
        raise InvalidInput(type_.__name__, name_in(body), str(error)) from error
    return found


@lru_cache(maxsize=64)
def _list_decoder(type_: type[Any]) -> msgspec.json.Decoder[Any]:
    items: Any = list[type_] | None  # type: ignore[valid-type]  # built at run time
    listed = msgspec.defstruct(f"{type_.__name__}List", [("metadata", ListMeta), ("items", items, None)])
    return msgspec.json.Decoder(listed)


def name_in(raw: bytes | msgspec.Raw) -> str:
    """`namespace/name` as far as it can still be read."""
    try:
        meta = _named(raw).metadata
    except msgspec.DecodeError:
        return "(unreadable)"
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name or "(unnamed)"


def decode_list(type_: type[T], body: bytes) -> tuple[list[T], ListMeta, list[Undecodable]]:
    """Items, list metadata and the objects that do not fit. The whole page is decoded at once unless one of them is bad."""
    try:
        page = _list_decoder(type_).decode(body)
        return page.items or [], page.metadata, []
    except msgspec.ValidationError:
        return _one_by_one(type_, body)
    except msgspec.DecodeError as error:
        raise InvalidInput("list", body[:80], f"is not JSON: {error}") from error


def _one_by_one(type_: type[T], body: bytes) -> tuple[list[T], ListMeta, list[Undecodable]]:
    try:
        page = _raw_list(body)
    except msgspec.DecodeError as error:
        raise InvalidInput("list", body[:80], str(error)) from error
    items: list[T] = []
    bad: list[Undecodable] = []
    decode = decoder_of(type_).decode
    for raw in page.items:
        try:
            items.append(decode(raw))
        except msgspec.DecodeError as error:
            bad.append(Undecodable(name_in(raw), str(error)))
    return items, page.metadata, bad


class Splitter:
    """Cuts a byte stream at newlines; what comes after the last one waits for more."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *whole, self._tail = (self._tail + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())

    @property
    def incomplete(self) -> bytes:
        return self._tail


def decode_line(type_: type[T], line: bytes) -> WatchEvent[T]:
    """One watch line. ApiError for an in-stream error other than 410; everything unreadable is Skipped."""
    try:
        parsed = _line(line)
    except msgspec.DecodeError as error:
        return Skipped("(unreadable)", f"{error}: {line[:80]!r}")
    if parsed.type == "ERROR":
        return _stream_error(bytes(parsed.object))
    if parsed.type == "BOOKMARK":
        return Bookmark(_named(parsed.object).metadata.resource_version)
    try:
        found: T = decoder_of(type_).decode(parsed.object)
    except msgspec.DecodeError as error:
        return Skipped(name_in(parsed.object), str(error), _version_in(parsed.object))
    match parsed.type:
        case "ADDED":
            return Added(found)
        case "MODIFIED":
            return Modified(found)
        case "DELETED":
            return Deleted(found)
    return Skipped(name_in(parsed.object), f"unknown change {parsed.type!r}", _version_in(parsed.object))


def _version_in(raw: msgspec.Raw) -> str:
    try:
        return _named(raw).metadata.resource_version
    except msgspec.DecodeError:
        return ""


class _Code(msgspec.Struct):
    code: int = 0


def _stream_error(body: bytes) -> Gone:
    error, code = error_of(0, body), msgspec.json.decode(body, type=_Code).code
    if code == 410 or error.reason in {"Expired", "Gone"}:
        return Gone(error.message)
    raise ApiError(code, error.reason, error.message, retry_after=error.retry_after)
