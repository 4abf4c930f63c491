"""Moments as people write them."""

import pytest

from hami.cli.when import AtG, AtTime, Moment, parse_moment, shown, shown_span
from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs

NOW = EpochMs(1_772_366_400_000)  # 2026-03-01T12:00:00Z


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", AtTime(NOW)),
        ("g:0", AtG(0)),
        ("g:123", AtG(123)),
        ("1772366400", AtTime(NOW)),
        ("1772366400000", AtTime(NOW)),
        ("2026-03-01T12:00:00Z", AtTime(NOW)),
        ("2026-03-01T14:00:00+02:00", AtTime(NOW)),
        ("2026-03-01 12:00:00.250Z", AtTime(EpochMs(NOW + 250))),
        ("-90s", AtTime(EpochMs(NOW - 90_000))),
        ("-5m", AtTime(EpochMs(NOW - 300_000))),
        ("-1h30m", AtTime(EpochMs(NOW - 5_400_000))),
        ("-2d", AtTime(EpochMs(NOW - 172_800_000))),
        (" -5m ", AtTime(EpochMs(NOW - 300_000))),
    ],
)
def test_a_moment_is_understood(text: str, moment: Moment) -> None:
    assert parse_moment(text, now=NOW) == moment


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("yesterday", "2026-03-01T12:00:00Z"),
        ("-", "-5m"),
        ("-5", "-5m"),
        ("-m5", "-5m"),
        ("g:", "whole number"),
        ("g:-1", "whole number"),
        ("g:x", "whole number"),
        ("2026-03-01T12:00:00", "time zone is missing"),
        ("2026-13-01T12:00:00Z", "use 2026"),
        ("", "use 2026"),
        ("99999999999999999999", "too far"),
        ("-99999999999d", "too far"),
    ],
)
def test_a_bad_moment_names_the_option_the_text_and_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_moment(text, now=NOW, field="--since")
    assert str(caught.value).startswith(f"--since: {text!r}: ")
    assert hint in str(caught.value)


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    assert shown(NOW + 7) == "2026-03-01T12:00:00.007Z"


def test_spans_are_shown_in_their_two_largest_units() -> None:
    assert [shown_span(ms) for ms in (0, 999, 1000, 61_000, 90_061_000)] == ["0ms", "999ms", "1s", "1m1s", "1d1h"]
