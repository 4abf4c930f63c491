"""Quantities come out as the API server writes them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.sim.apiserver.quantity import NotAQuantity, canonical, parse


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("1000", "1k"),
        (1000, "1k"),
        ("1500", "1500"),
        ("24576", "24576"),
        ("8000", "8k"),
        ("1.5", "1500m"),
        ("0.5Gi", "512Mi"),
        ("1024Mi", "1Gi"),
        ("16Gi", "16Gi"),
        ("0.5Ki", "512"),
        ("1000k", "1M"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("1e3", "1e3"),
        ("1E", "1E"),
        ("-1", "-1"),
        ("+5", "5"),
        ("0", "0"),
        ("0Gi", "0"),
        ("0.1n", "1n"),
    ],
)
def test_canonical_forms(written: str | int, shown: str) -> None:
    assert canonical(written) == shown


@pytest.mark.parametrize("written", ["", "one", "1 Gi", "1gi", "1KiB", "--1", "1e", "."])
def test_what_is_no_quantity(written: str) -> None:
    with pytest.raises(NotAQuantity):
        canonical(written)


@given(st.integers(min_value=-(10**15), max_value=10**15), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_rewriting_keeps_the_value_and_is_stable(number: int, suffix: str) -> None:
    shown = canonical(f"{number}{suffix}")
    assert parse(shown)[0] == parse(f"{number}{suffix}")[0]
    assert canonical(shown) == shown
    assert "." not in shown


def test_a_value_is_read_exactly() -> None:
    assert parse("0.1") == (Decimal("0.1"), "decimal")
