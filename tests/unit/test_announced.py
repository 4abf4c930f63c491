"""What nodes announce of a vendor, read device by device: whatever is wrong with one costs that one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.domain.pod import Node, NodeStatus, ObjectMeta
from hami.vendors.announced import MOST_UNREAD, announced, announces, joined, segments
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.vendor import Vendor

VENDORS = vendors_of(DeviceConfig())


def vendor(word: str) -> Vendor:
    found = by_word(VENDORS, word)
    assert found is not None
    return found


def a_node(word: str, text: str, **notes: str) -> Node:
    return Node(metadata=ObjectMeta(name="n1", annotations={vendor(word).keys.register: text, **notes}))


def read(word: str, text: str, **notes: str) -> tuple[list[str], list[str]]:
    found = announced(a_node(word, text, **notes), vendor(word))
    return [each.uuid for each in found.devices], [each.field for each in found.unread]


GOOD: dict[str, Any] = {"id": "a", "count": 1, "devmem": 1000, "devcore": 100, "health": True}
KEY = "hami.io/node-nvidia-register"


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({**GOOD, "id": "b", "count": "ten"}, "count"),
        ({**GOOD, "id": "b", "devmem": 2**40}, "devmem"),
        ({**GOOD, "id": "b", "devmem": -1}, "memory"),
        ({**GOOD, "id": ""}, "id"),
        ({**GOOD, "id": "b,c"}, "id"),
        ({**GOOD, "id": "a"}, "id"),
        ({**GOOD, "id": "b" * 129}, "id"),
        ("text", ""),
        (7, ""),
    ],
)
def test_one_device_that_cannot_be_read_costs_itself_only(bad: Any, field: str) -> None:
    found, unread = read("NVIDIA", json.dumps([GOOD, bad, {**GOOD, "id": "z"}]))
    assert found == ["a", "z"]
    assert unread == [f"{KEY}, device 1" + (f", {field}" if field else "")]


def test_pair_scores_that_cannot_be_read_cost_themselves_only() -> None:
    scores = {"hami.io/node-nvidia-score": "{"}
    assert read("NVIDIA", json.dumps([GOOD]), **scores) == (["a"], ["hami.io/node-nvidia-score"])
    both = read("NVIDIA", json.dumps([GOOD, {**GOOD, "id": "b", "count": "ten"}]), **scores)
    assert both == (["a"], [f"{KEY}, device 1, count"])


@pytest.mark.parametrize("text", ["", "nonsense", "{", "[", "[1", "null", "[]", '{"a": 1}', "[" * 10_000])
def test_what_is_no_announcement_at_all_is_one_complaint(text: str) -> None:
    found, unread = read("NVIDIA", text)
    assert (found, unread) == ([], [KEY])


def test_complaints_are_bounded() -> None:
    found, unread = read("NVIDIA", json.dumps([{**GOOD, "count": "x"}] * 100))
    assert (found, len(unread)) == ([], MOST_UNREAD)


def test_a_capacity_that_cannot_be_read_is_named() -> None:
    page = vendor("MLU")
    amounts: dict[str, str | int | float] = {page.resources.cores: "99999999", page.resources.memory: "1"}
    node = Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(capacity=amounts))
    assert announces(node, page)
    [unread] = announced(node, page).unread
    assert page.resources.cores in unread.field


def test_a_node_that_says_nothing_of_a_vendor_announces_nothing() -> None:
    for page in VENDORS:
        assert not announces(Node(metadata=ObjectMeta(name="n1")), page)
        assert announced(Node(), page) == announced(Node(metadata=ObjectMeta(name="n1")), page)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading(text: str) -> None:
    for word in ("NVIDIA", "DCU"):
        found, unread = read(word, text)
        assert found or unread, "whatever is written is taken or complained about"


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4), min_size=1, max_size=5))
def test_json_segments_join_to_what_they_came_from(rows: list[dict[str, Any]]) -> None:
    text = json.dumps(rows)
    parts = segments(text)
    assert parts is not None
    assert json.loads(joined(parts)) == rows


@given(st.lists(st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"]), min_size=1, max_size=9), min_size=1))
def test_colon_segments_join_to_what_they_came_from(parts: list[str]) -> None:
    text = "".join(f"{each}:" for each in parts)
    if not text.lstrip().startswith(("[", "{")):
        found = segments(text)
        assert found is not None
        assert joined(found) == text
