"""Quantities at the door."""

import pytest

from hami.domain.errors import InvalidInput
from hami.vendors import quantities

FIELD = 'spec.containers[2].resources.limits["nvidia.com/gpumem"]'


@pytest.mark.parametrize(
    ("written", "mib"),
    [
        ("8000", 8000),
        ("8k", 8000),
        ("1e3", 1000),
        ("2E3", 2000),
        (8000, 8000),
        ("16Gi", 16384),
        ("16.0Gi", 16384),
        ("1.5Gi", 1536),
        ("1Mi", 1),
        ("1024Ki", 1),
        ("0", 0),
        ("0.0", 0),
        ("-0", 0),
        ("+5", 5),
        ("3000m", 3),
    ],
)
def test_device_memory_counts_in_its_unit_unless_a_binary_suffix_says_bytes(written: str | int, mib: int) -> None:
    assert quantities.memory(FIELD, written, factor=1) == mib


def test_the_factor_applies_to_the_unit_and_not_to_bytes() -> None:
    assert quantities.memory(FIELD, "3", factor=256) == 768
    assert quantities.memory(FIELD, "1Gi", factor=256) == 1024


@pytest.mark.parametrize(
    "written",
    ["1.5", "500m", "-1", "2147483648", "99999999999999999999", "512Ki", "1e99", "16GB", "abc", "", "1_0", "0x10", "٣"],
)
def test_what_cannot_be_read_exactly_is_refused_with_field_and_value(written: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        quantities.memory(FIELD, written, factor=1)
    assert FIELD in str(refused.value)
    assert repr(written) in str(refused.value)


def test_a_fraction_is_refused_even_where_the_factor_would_make_it_whole() -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        quantities.memory(FIELD, "500m", factor=10)


def test_a_huge_exponent_costs_nothing() -> None:
    with pytest.raises(InvalidInput):
        quantities.whole(FIELD, "1e999999999")
