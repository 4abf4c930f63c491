"""The log about itself."""

from typing import ClassVar

import msgspec


class LogTruncated(msgspec.Struct, frozen=True, kw_only=True):
    """Entries below `before` were trimmed although a reader still wanted them (`why`)."""

    TYPE: ClassVar[str] = "hami.log.truncated"
    SCHEMA: ClassVar[int] = 1

    before: str
    why: str


class GapAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's events from..to are lost for good; the log goes on after them."""

    TYPE: ClassVar[str] = "hami.log.gap_accepted"
    SCHEMA: ClassVar[int] = 1

    producer: str
    first_seq: int
    last_seq: int
    why: str = ""
    epoch: int = 0


class LogSealed(msgspec.Struct, frozen=True, kw_only=True):
    """An archive segment is complete: its digest and its range."""

    TYPE: ClassVar[str] = "hami.log.sealed"
    SCHEMA: ClassVar[int] = 1

    segment: str
    first_g: int
    last_g: int
    sha256: str


class IncarnationStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A new life of the store begins (first start, or recovery after loss)."""

    TYPE: ClassVar[str] = "hami.log.incarnation_started"
    SCHEMA: ClassVar[int] = 1

    incarnation: str
    store: str = ""
    previous: str = ""


class Corrected(msgspec.Struct, frozen=True, kw_only=True):
    """The reconciler found the fold and the API apart: what each said. The correction itself is an event of its own kind."""

    TYPE: ClassVar[str] = "hami.log.corrected"
    SCHEMA: ClassVar[int] = 1

    what: str
    fold_said: str
    api_said: str


class InputRejected(msgspec.Struct, frozen=True, kw_only=True):
    """Something from outside was malformed and was left out: where it came from, which field, which value, why."""

    TYPE: ClassVar[str] = "hami.input.rejected"
    SCHEMA: ClassVar[int] = 1

    source: str
    field: str
    value: str
    why: str
