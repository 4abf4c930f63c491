"""A report about a card in MIG mode: who is marked, and who is not."""

import pytest

from hami.nodeagent.decide.faults import Fault, FaultKind, Piece
from hami.nodeagent.decide.health import policy_of
from hami.nodeagent.decide.spread import spread

CARD = "GPU-a"
PIECES = (Piece(1, 0, "MIG-1-0"), Piece(1, 1, "MIG-1-1"), Piece(2, 0, "MIG-2-0"))
EVERYBODY = [CARD, "MIG-1-0", "MIG-1-1", "MIG-2-0"]
POLICY = policy_of()
INSTANCE, CONTAINED, UNCONTAINED, OFF_THE_BUS, APP_ERROR, UNLISTED = 78, 94, 95, 79, 13, 999


def hit(code: int, gpu: int | None = None, compute: int | None = None, action: int | None = None) -> list[str]:
    fault = Fault(
        uuid=CARD,
        kind=FaultKind.XID,
        code=code,
        recovery_action=action,
        gpu_instance=gpu,
        compute_instance=compute,
        pieces=PIECES,
    )
    return [each.uuid for each in spread(fault, POLICY)]


def test_a_named_instance_is_hit_alone() -> None:
    assert hit(CONTAINED, 2, 0, action=0) == ["MIG-2-0"]
    assert hit(CONTAINED, 1, 1, action=0) == ["MIG-1-1"]
    for code in (APP_ERROR, INSTANCE, UNLISTED):
        assert hit(code, 2, 0) == ["MIG-2-0"]


def test_a_named_gpu_instance_is_hit_with_all_in_it() -> None:
    assert hit(CONTAINED, 1, action=0) == ["MIG-1-0", "MIG-1-1"]


@pytest.mark.parametrize("code", [OFF_THE_BUS, UNCONTAINED])
def test_a_fault_of_the_card_hits_everybody_whoever_is_named(code: int) -> None:
    assert hit(code) == EVERYBODY
    assert hit(code, 2, 0) == EVERYBODY


def test_a_needed_reset_reaches_the_card_although_an_instance_was_named() -> None:
    assert hit(CONTAINED, 2, 0, action=1) == EVERYBODY


def test_a_fault_that_names_nobody_hits_everybody_unless_it_is_harmless() -> None:
    assert hit(INSTANCE) == hit(UNLISTED) == EVERYBODY
    assert hit(APP_ERROR) == hit(CONTAINED) == [CARD]


def test_an_instance_that_is_not_there_leaves_the_report_with_the_card() -> None:
    assert hit(CONTAINED, 5, 0, action=0) == [CARD]


def test_a_card_that_is_not_cut_is_hit_alone() -> None:
    fault = Fault(uuid=CARD, kind=FaultKind.XID, code=OFF_THE_BUS)
    assert spread(fault, POLICY) == (fault,)


def test_what_is_said_of_exactly_one_device_is_not_spread() -> None:
    for kind in (FaultKind.UNREACHABLE, FaultKind.ANSWERS_AGAIN, FaultKind.PEER_LINK):
        assert [each.uuid for each in spread(Fault(uuid=CARD, kind=kind, pieces=PIECES), POLICY)] == [CARD]


def test_a_state_of_the_card_hits_everybody() -> None:
    for kind in (FaultKind.GPU_LOST, FaultKind.RESET_REQUIRED):
        assert [each.uuid for each in spread(Fault(uuid=CARD, kind=kind, pieces=PIECES), POLICY)] == EVERYBODY


def test_the_instances_report_says_where_it_was_seen_and_who_it_is() -> None:
    seen = Fault(uuid=CARD, kind=FaultKind.XID, code=CONTAINED, gpu_instance=2, compute_instance=0, pieces=PIECES)
    [fault] = spread(seen, POLICY)
    assert (fault.gpu_instance, fault.compute_instance, fault.detail, fault.pieces) == (2, 0, "seen on GPU-a", ())
