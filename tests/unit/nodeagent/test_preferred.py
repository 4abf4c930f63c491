"""Which ids lie on the wanted cards: HAMi's cases, and never an error."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.nodeagent.decide.preferred import card_of, preferred
from tests.support.data import load_json

CASES = load_json("allocate-cases.json")


@pytest.mark.parametrize("case", CASES["physical_device_id"], ids=lambda case: case["in"])
def test_the_card_behind_an_id(case: Any) -> None:
    assert card_of(case["in"]) == case["out"]


@pytest.mark.parametrize("case", CASES["preferred_allocation"], ids=lambda case: case["id"])
def test_hamis_preferences(case: Any) -> None:
    wanted = case.get("annotated") or next(filter(None, case["annotated_per_container"]))
    got = preferred(case["available"], case["must_include"], case["size"], wanted)
    assert sorted(got) == sorted(case.get("expect_any_order", ()))


IDS = st.lists(st.builds(lambda card, slot: f"GPU-{card}-0-0-0-0-{slot}", st.integers(0, 3), st.integers(0, 3)), unique=True)


@given(available=IDS, must=st.integers(0, 2), size=st.integers(-1, 5), wanted=st.lists(st.integers(0, 3), max_size=4))
def test_a_preference_is_whole_or_empty(available: list[str], must: int, size: int, wanted: list[int]) -> None:
    cards = [f"GPU-{card}-0-0-0-0" for card in wanted]
    got = preferred(available, available[:must], size, cards)
    if got:
        assert len(got) == size == len(set(got))
        assert set(got) <= set(available)
        assert sorted(card_of(each) for each in got) == sorted(cards)
