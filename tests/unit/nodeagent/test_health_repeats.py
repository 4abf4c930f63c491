"""Harmless codes that come again and again, faults that a reset did not cure, codes that take others back, linked cards."""

from typing import Any

import msgspec
import pytest

from hami.domain.device import Health
from hami.domain.units import EpochMs
from hami.nodeagent.decide.counters import remembered, shown
from hami.nodeagent.decide.faults import CardHealth, Counters, Evidence, Fault, FaultKind, Repeat, Severity
from hami.nodeagent.decide.health import acknowledge, hangs_library, observe, policy_of, reaches_linked, recover
from hami.nodeagent.decide.topology import linked
from hami.nodeagent.decide.xid_policy import XID_RULES
from tests.support.builders import a_device
from tests.support.data import load_json

DEFAULT = policy_of()
CODES: Any = load_json("xid-policy.json")["codes"]
HOUR, DAY = 3_600_000, 24 * 3_600_000
START = 1_000_000


def xid(code: int, *workloads: str, action: int | None = None) -> Fault:
    return Fault(uuid="GPU-1", kind=FaultKind.XID, code=code, workloads=workloads, recovery_action=action)


def state(kind: FaultKind, code: int = 0) -> Fault:
    return Fault(uuid="GPU-1", kind=kind, code=code)


def seen(
    *reports: tuple[int, Fault], boot: str = "boot-1", card: CardHealth | None = None, policy: Any = DEFAULT
) -> CardHealth:
    card = card or CardHealth(uuid="GPU-1")
    for at, fault in reports:
        card = observe(card, fault, policy, now=EpochMs(START + at), boot_id=boot).card
    return card


def cured(card: CardHealth, boot: str, at: int) -> CardHealth:
    proof = Evidence(boot_id=boot, recovery_action=0, probe_passed=True, memory_clean=True)
    for moment in (at, at + HOUR):
        card = recover(card, proof, DEFAULT, now=EpochMs(START + moment)).card
    return card


def repeat_of(text: str) -> Repeat:
    if "distinct workloads" in text:
        return Repeat.WORKLOADS
    return Repeat.BURSTS if text.startswith(">=3 bursts") else Repeat.NEVER


@pytest.mark.parametrize("row", CODES, ids=lambda row: f"xid-{row['code']}")
def test_every_code_repeats_and_cancels_as_published(row: Any) -> None:
    rule = XID_RULES[row["code"]]
    assert rule.repeat is repeat_of(row.get("repeat", ""))
    assert sorted(rule.cancels) == row.get("cancels", [])
    assert rule.worn_out_by_return is ("replaced" in row.get("escalate", ""))
    if rule.repeat is not Repeat.NEVER:
        assert rule.severity is Severity.OBSERVED


def test_three_bursts_within_a_day_speak_against_the_card() -> None:
    assert seen((0, xid(43)), (HOUR, xid(43))).health is Health.HEALTHY
    worn = seen((0, xid(43)), (HOUR, xid(43)), (2 * HOUR, xid(43)))
    assert (worn.health, worn.severity) == (Health.SUSPECT, Severity.DEGRADED)
    assert worn.reason.endswith("repeatedly")
    assert seen((0, xid(43)), (HOUR, xid(43)), (DAY + HOUR, xid(43))).health is Health.HEALTHY


def test_a_burst_counts_once_however_many_lines_it_has() -> None:
    lines = [(second * 1000, xid(43)) for second in range(500)]
    card = seen(*lines)
    assert (card.health, card.faults[0].count, len(card.faults[0].bursts)) == (Health.HEALTHY, 500, 1)


@pytest.mark.parametrize(
    ("tenants", "health"),
    [
        ((("a",), ("a",), ("a",)), Health.HEALTHY),
        ((("a", "b"), ("a",), ("a", "c")), Health.HEALTHY),
        ((("a",), ("b",), ("a",)), Health.SUSPECT),
        (((), (), ()), Health.HEALTHY),
        ((("a",), (), ()), Health.HEALTHY),
        ((("a",), (), ("b",)), Health.SUSPECT),
    ],
)
def test_an_applications_code_needs_bursts_that_no_single_workload_explains(
    tenants: tuple[tuple[str, ...], ...], health: Health
) -> None:
    assert seen(*((at * HOUR, xid(13, *who)) for at, who in enumerate(tenants))).health is health


def test_what_is_ignored_never_adds_up() -> None:
    reports = [(at * HOUR, xid(43)) for at in range(5)]
    assert seen(*reports, policy=policy_of(disable="43")).health is Health.HEALTHY
    assert seen(*reports, policy=policy_of("hami")).health is Health.HEALTHY


def test_a_follow_on_never_adds_up() -> None:
    assert seen(*((at * HOUR, xid(45)) for at in range(10))).health is Health.HEALTHY


def test_162_takes_163_back_and_nothing_else() -> None:
    assert seen((0, xid(163))).health is Health.SUSPECT
    assert seen((0, xid(163)), (1, xid(162))).health is Health.HEALTHY
    assert seen((0, xid(163)), (1, xid(79)), (2, xid(162))).reason.startswith("XID 79")


@pytest.mark.parametrize("code", [64, 79, 143])
def test_a_fault_that_returns_after_a_reset_is_final(code: int) -> None:
    once = seen((0, xid(code)))
    assert seen((10, xid(code)), card=once).severity is Severity.UNTIL_RESET
    assert seen((10, xid(code)), card=once, boot="").severity is Severity.UNTIL_RESET
    again = seen((10, xid(code)), card=once, boot="boot-2")
    assert again.severity is Severity.UNTIL_REPLACED
    assert again.reason.endswith("again after a reset")
    assert cured(again, "boot-3", DAY).health is Health.UNHEALTHY
    assert acknowledge(again, "kim", DEFAULT).card == CardHealth(uuid="GPU-1")


def test_a_second_loss_within_a_month_is_final_although_the_first_was_cured() -> None:
    well = cured(seen((0, xid(79))), "boot-2", HOUR)
    assert well.health is Health.HEALTHY
    assert seen((10 * DAY, xid(79)), card=well, boot="boot-2").severity is Severity.UNTIL_REPLACED
    assert seen((31 * DAY, xid(79)), card=well, boot="boot-2").severity is Severity.UNTIL_RESET
    assert seen((10 * DAY, xid(95)), card=well, boot="boot-2").severity is Severity.UNTIL_RESET


def test_a_card_that_is_still_missing_after_the_reboot_is_final() -> None:
    fallen = seen((0, xid(79)), (1, state(FaultKind.GPU_LOST)))
    assert fallen.severity is Severity.UNTIL_RESET
    assert seen((HOUR, state(FaultKind.GPU_LOST)), card=fallen, boot="boot-2").severity is Severity.UNTIL_REPLACED


def test_a_retirement_that_fails_after_the_reset_is_final() -> None:
    failed = seen((0, xid(64)))
    assert seen((HOUR, state(FaultKind.RETIREMENT_FAILURE)), card=failed, boot="boot-2").severity is Severity.UNTIL_REPLACED


# Linked cards


def test_a_link_fault_puts_the_linked_cards_in_doubt_until_each_says_otherwise() -> None:
    assert reaches_linked(xid(74), DEFAULT)
    assert not reaches_linked(xid(121), DEFAULT)
    assert not reaches_linked(xid(74, action=0), DEFAULT)
    assert not reaches_linked(xid(79), DEFAULT)
    assert reaches_linked(xid(79, action=3), DEFAULT) is False
    assert not reaches_linked(state(FaultKind.PEER_LINK), DEFAULT)
    assert not reaches_linked(xid(74), policy_of(disable="all"))
    peer = observe(CardHealth(uuid="GPU-1"), state(FaultKind.PEER_LINK), DEFAULT, now=EpochMs(START))
    assert (peer.card.health, peer.fresh) == (Health.SUSPECT, False)
    none = Evidence(boot_id="boot-1", recovery_action=0, probe_passed=True, memory_clean=None)
    once = recover(peer.card, none, DEFAULT, now=EpochMs(START)).card
    assert once.health is Health.SUSPECT
    assert recover(once, none, DEFAULT, now=EpochMs(START + 30_000)).card.health is Health.HEALTHY
    still = msgspec.structs.replace(none, recovery_action=3)
    assert recover(once, still, DEFAULT, now=EpochMs(START + 30_000)).card.health is Health.SUSPECT


def test_linked_cards_are_those_with_a_link() -> None:
    cards = [a_device("GPU-1"), a_device("GPU-2"), a_device("GPU-3")]
    cards[1] = msgspec.structs.replace(cards[1], pair_scores={"GPU-1": 110})
    cards[2] = msgspec.structs.replace(cards[2], pair_scores={"GPU-1": 60})
    assert linked(cards, "GPU-1") == ("GPU-2",)


def test_after_some_codes_a_silent_library_is_the_cards_doing() -> None:
    assert hangs_library(seen((0, xid(119))))
    assert not hangs_library(seen((0, xid(79))))


# Counters


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (Counters(), Counters(), []),
        (Counters(uncorrected=0), Counters(uncorrected=1), [(FaultKind.ECC_UNCORRECTED, 1)]),
        (Counters(uncorrected=1), Counters(uncorrected=1), []),
        (Counters(uncorrected=7), Counters(uncorrected=2), [(FaultKind.ECC_UNCORRECTED, 2)]),
        (Counters(uncorrected=7), Counters(uncorrected=0), []),
        (Counters(), Counters(uncorrected=3), [(FaultKind.ECC_UNCORRECTED, 3)]),
        (Counters(uncorrected=7), Counters(uncorrected=None), []),
        (Counters(), Counters(remapped=5), []),
        (Counters(remapped=5), Counters(remapped=6), [(FaultKind.ROW_REMAPPED, 1)]),
        (Counters(), Counters(remap_pending=True), [(FaultKind.REMAP_PENDING, 0)]),
        (Counters(), Counters(remap_failure=True), [(FaultKind.RETIREMENT_FAILURE, 0)]),
        (Counters(), Counters(sram_threshold=True), [(FaultKind.SRAM_THRESHOLD, 0)]),
        (Counters(), Counters(unrepairable=True, sram_threshold=False), [(FaultKind.UNREPAIRABLE, 0)]),
    ],
)
def test_counters_speak_by_growth_and_levels_by_themselves(
    before: Counters, now: Counters, kinds: list[tuple[FaultKind, int]]
) -> None:
    assert [(fault.kind, fault.code) for fault in shown("GPU-1", before, now)] == kinds


def test_a_counter_that_cannot_be_read_keeps_its_last_value() -> None:
    kept = remembered(Counters(uncorrected=4, remapped=1), Counters(remapped=2, remap_pending=True))
    assert kept == Counters(uncorrected=4, remapped=2)


@pytest.mark.parametrize(
    ("counters", "clean"),
    [
        (Counters(), None),
        (Counters(uncorrected=0), None),
        (Counters(remap_pending=False), True),
        (Counters(remap_pending=False, remap_failure=False, sram_threshold=None), True),
        (Counters(remap_pending=True), False),
        (Counters(sram_threshold=True), False),
    ],
)
def test_what_cannot_be_read_is_neither_clean_nor_dirty(counters: Counters, clean: bool | None) -> None:
    assert counters.clean is clean


def test_a_pending_remap_ends_with_the_reset_that_applies_it_whatever_the_driver_can_say() -> None:
    card = seen((0, state(FaultKind.REMAP_PENDING)))
    assert card.health is Health.SUSPECT
    for action in (0, None):
        proof = Evidence(boot_id="boot-2", recovery_action=action, probe_passed=True, memory_clean=True)
        held = recover(card, proof, DEFAULT, now=EpochMs(START + HOUR)).card
        assert recover(held, proof, DEFAULT, now=EpochMs(START + 2 * HOUR)).card.health is Health.HEALTHY
    unread = Evidence(boot_id="boot-2", recovery_action=0, probe_passed=True, memory_clean=None)
    assert recover(card, unread, DEFAULT, now=EpochMs(START + HOUR)).card.clean_since_ms == 0
