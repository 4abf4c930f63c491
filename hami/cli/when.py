"""`--at` and `--since`: moments as people write them.

`2026-03-01T12:00:00Z` (RFC 3339, the zone is required), `1772366400` (Unix seconds), `1772366400000` (milliseconds), `-5m` or
`-1h30m` (before the store's present time), `g:1234` (the log's own counter), `now`.
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs


class AtTime(msgspec.Struct, frozen=True):
    """The state after the last event recorded at or before this time."""

    ms: EpochMs


class AtG(msgspec.Struct, frozen=True):
    """The state after event number `g`."""

    g: int


Moment = AtTime | AtG

FORMS: Final = "use 2026-03-01T12:00:00Z, unix seconds or milliseconds, -5m (s, m, h, d), g:123 or now"
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_RELATIVE: Final = re.compile(r"-(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS_END: Final = 100_000_000_000
"""Numbers below are seconds (until the year 5138), from here on milliseconds (since 1973)."""
_END_MS: Final = 253_402_300_800_000
"""The year 10000: what a date can show ends there."""


def parse_moment(text: str, *, now: EpochMs, field: str = "--at") -> Moment:
    """The moment a text names. Raises InvalidInput."""
    moment = _parsed(text.strip(), now, field, text)
    if isinstance(moment, AtTime) and not 0 <= moment.ms < _END_MS:
        raise InvalidInput(field, text, "too far from the present")
    return moment


def _parsed(text: str, now: EpochMs, field: str, written: str) -> Moment:
    if text == "now":
        return AtTime(now)
    if text.startswith("g:"):
        if not text[2:].isdecimal():
            raise InvalidInput(field, written, "g: is followed by a whole number")
        return AtG(int(text[2:]))
    if text.isdecimal():
        number = int(text)
        return AtTime(EpochMs(number * 1000 if number < _SECONDS_END else number))
    if text.startswith("-"):
        return AtTime(EpochMs(now - _span(text, field, written)))
    return AtTime(_rfc3339(text, field, written))


def _span(text: str, field: str, written: str) -> int:
    match = _RELATIVE.fullmatch(text)
    if match is None or not any(match.groups()):
        raise InvalidInput(field, written, FORMS)
    return sum(int(part) * unit for part, unit in zip(match.groups(), _UNITS.values(), strict=True) if part)


def _rfc3339(text: str, field: str, written: str) -> EpochMs:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(field, written, FORMS) from None
    if moment.tzinfo is None:
        raise InvalidInput(field, written, "the time zone is missing: end with Z for UTC, or an offset such as +02:00")
    return EpochMs(round(moment.timestamp() * 1000))


def shown(ms: int) -> str:
    """A time for people and programs alike: RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def shown_span(ms: int) -> str:
    """A duration in its two largest units, for people."""
    if ms < 1000:
        return f"{ms}ms"
    parts: list[str] = []
    rest = ms
    for name, unit in _UNITS.items():
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts[:2])
