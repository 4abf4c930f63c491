"""One result: a figure, its baseline measured in the same run, and the limit it is held against."""

import statistics
from collections.abc import Sequence

import msgspec


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`limit` is compared with `ratio` when a baseline exists, with `value` otherwise; `at_least` says in which direction."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""
    ratio: float | None = None
    limit: float | None = None
    at_least: bool = False
    met: bool | None = None
    note: str = ""


def row(
    name: str,
    value: float,
    unit: str,
    *,
    baseline: float | None = None,
    baseline_name: str = "",
    limit: float | None = None,
    at_least: bool = False,
    note: str = "",
) -> Row:
    ratio = None if not baseline else value / baseline
    judged = value if ratio is None else ratio
    met = None if limit is None else (judged >= limit if at_least else judged <= limit)
    return Row(
        name=name,
        value=round(value, 4),
        unit=unit,
        baseline=None if baseline is None else round(baseline, 4),
        baseline_name=baseline_name,
        ratio=None if ratio is None else round(ratio, 3),
        limit=limit,
        at_least=at_least,
        met=met,
        note=note,
    )


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-th part (0..1) of samples, by rank."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)
