"""Whose Allocate it is: one answer, the same answer, or none."""

from typing import Any

import pytest

from hami.domain.allocation import DeviceShare
from hami.domain.units import CorePercent, MiB
from hami.nodeagent.decide.ordered import NONE_BOUND, Refusal, Waiting, whose
from tests.support.data import load_json


def waiting(name: str, *shares: tuple[str, int]) -> Waiting:
    made = tuple(DeviceShare(vendor="NVIDIA", uuid=uuid, memory=MiB(memory), cores=CorePercent(10)) for uuid, memory in shares)
    return Waiting(reservation=f"r-{name}", owner_uid=f"u-{name}", container="main", shares=made)


A, B = waiting("a", ("GPU-1", 1000)), waiting("b", ("GPU-2", 1000))
PAIR = waiting("pair", ("GPU-1", 1000), ("GPU-2", 1000))


def test_the_one_that_waits_is_served() -> None:
    assert whose([A], 1) is A


def test_shape_tells_two_apart() -> None:
    assert whose([A, PAIR], 2) is PAIR
    assert whose([A, PAIR], 1) is A


def test_nobody_waits_and_no_shape_fits() -> None:
    assert whose([], 1) == Refusal(NONE_BOUND)
    refused = whose([A], 3)
    assert isinstance(refused, Refusal)
    assert refused.why == "the kubelet asks for 3 devices, what waits here has (main: 1)"


@pytest.mark.parametrize("other", [B, waiting("c", ("GPU-1", 2000))])
def test_two_that_differ_in_anything_are_refused_in_the_same_words_every_time(other: Waiting) -> None:
    refused = whose([A, other], 1)
    assert isinstance(refused, Refusal)
    assert "could be meant" in refused.why
    assert refused == whose([other, A], 1)


def test_two_that_would_be_answered_alike_are_served_in_turn() -> None:
    twin = waiting("twin", ("GPU-1", 1000))
    assert whose([A, twin], 1) is A


def test_the_reported_case_of_two_unserved_pods_is_never_a_guess() -> None:
    case: Any = next(each for each in load_json("pain-cases.json") if each["id"] == "match-01-two-unserved")
    unserved = [waiting(each["id"], (each["device"], each["mem_mib"])) for each in case["given"]["reservations"]]
    refused = whose(unserved, len(case["when"][0]["kubelet_ids"]))
    assert isinstance(refused, Refusal)
    assert all(each["id"] in refused.why for each in case["given"]["reservations"])
