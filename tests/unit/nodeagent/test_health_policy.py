"""What an XID or a card's own state does to its health, and what it takes to forget it."""

from typing import Any

import pytest

from hami.domain.device import Health
from hami.domain.units import EpochMs
from hami.nodeagent.decide.faults import CardHealth, Evidence, Fault, FaultKind, RecoveryMode, Severity
from hami.nodeagent.decide.health import acknowledge, observe, policy_of, reaches_node, recover
from hami.nodeagent.decide.xid_policy import HAMI_IGNORED, RECOVERY_ACTIONS, XID_RULES
from tests.support.data import load_json

CARD = CardHealth(uuid="GPU-1")
DEFAULT = policy_of()
DATA: Any = load_json("xid-policy.json")
SEVERITIES = {
    "observed": Severity.OBSERVED,
    "degraded": Severity.DEGRADED,
    "unhealthy-until-reset": Severity.UNTIL_RESET,
    "unhealthy-until-replaced": Severity.UNTIL_REPLACED,
}
MINUTE = 60_000


def xid(code: int, action: int | None = None, gpu_instance: int | None = None) -> Fault:
    return Fault(uuid="GPU-1", kind=FaultKind.XID, code=code, recovery_action=action, gpu_instance=gpu_instance)


def after(*faults: Fault, policy: Any = DEFAULT, boot: str = "boot-1") -> CardHealth:
    card = CARD
    for number, fault in enumerate(faults):
        card = observe(card, fault, policy, now=EpochMs(1000 + number), boot_id=boot).card
    return card


@pytest.mark.parametrize("row", DATA["codes"], ids=lambda row: f"xid-{row['code']}")
def test_every_code_of_the_table_stands_as_published(row: Any) -> None:
    rule = XID_RULES[row["code"]]
    assert (rule.severity, rule.scope.value, rule.mode.value, rule.auto_recover, rule.follow_on) == (
        SEVERITIES[row["severity"]],
        row["scope"],
        row["recovery_action_mode"],
        row["auto_recover"],
        row["follow_on"],
    )
    assert after(xid(row["code"])).severity == SEVERITIES[row["severity"]]


def test_the_table_is_whole() -> None:
    assert set(XID_RULES) == {row["code"] for row in DATA["codes"]}
    listed = {row["value"]: SEVERITIES[row["severity"]] for row in DATA["recovery_actions"] if row["value"] is not None}
    assert {value: severity for value, (_, severity, _) in RECOVERY_ACTIONS.items()} == listed


@pytest.mark.parametrize("row", DATA["codes"], ids=lambda row: f"xid-{row['code']}")
@pytest.mark.parametrize("action", [0, 1, 2, 3, 4, 5, 6, 7, 99])
def test_the_recovery_action_raises_and_only_lowers_where_it_may(row: Any, action: int) -> None:
    asked = RECOVERY_ACTIONS.get(action, ("", Severity.UNTIL_RESET, None))[1]
    listed = SEVERITIES[row["severity"]]
    got = after(xid(row["code"], action)).severity
    if row["follow_on"]:
        assert got is Severity.OBSERVED
    elif row["recovery_action_mode"] == RecoveryMode.DEFER.value:
        assert got == asked
    else:
        assert got == max(listed, asked)


def test_a_fatal_code_condemns_the_card_once() -> None:
    seen = observe(CARD, xid(79), DEFAULT, now=EpochMs(1), boot_id="b")
    assert seen.transition is not None
    assert (seen.transition.before, seen.transition.after) == (Health.HEALTHY, Health.UNHEALTHY)
    assert "79" in seen.transition.reason
    again = observe(seen.card, xid(79), DEFAULT, now=EpochMs(2), boot_id="b")
    assert again.transition is None
    assert again.card.faults[0].count == 2


@pytest.mark.parametrize("harmless", [13, 31, 43, 45, 63, 154])
def test_a_harmless_code_after_a_worse_one_hides_nothing(harmless: int) -> None:
    card = after(xid(79), xid(harmless))
    assert (card.health, card.severity) == (Health.UNHEALTHY, Severity.UNTIL_RESET)
    assert card.reason.startswith("XID 79")


@pytest.mark.parametrize("code", [row["code"] for row in DATA["codes"] if row["follow_on"]])
def test_a_follow_on_alone_changes_nothing(code: int) -> None:
    seen = observe(CARD, xid(code, action=1), DEFAULT, now=EpochMs(1))
    assert seen.transition is None
    assert seen.card.health is Health.HEALTHY


def test_a_later_milder_verdict_of_the_same_code_does_not_lower_it() -> None:
    assert after(xid(94, action=1), xid(94, action=0)).severity is Severity.UNTIL_RESET


def test_an_unlisted_code_degrades_and_an_unknown_action_asks_for_a_reset() -> None:
    assert after(xid(9999)).health is Health.SUSPECT
    assert after(xid(94, action=42)).health is Health.UNHEALTHY


@pytest.mark.parametrize(
    ("kind", "health"),
    [
        (FaultKind.GPU_LOST, Health.UNHEALTHY),
        (FaultKind.RESET_REQUIRED, Health.UNHEALTHY),
        (FaultKind.ECC_DOUBLE_BIT, Health.UNHEALTHY),
        (FaultKind.RETIREMENT_FAILURE, Health.UNHEALTHY),
        (FaultKind.POISON_CONTAINED, Health.HEALTHY),
        (FaultKind.UNREACHABLE, Health.UNKNOWN),
    ],
)
def test_a_cards_own_state_counts_without_an_xid(kind: FaultKind, health: Health) -> None:
    assert after(Fault(uuid="GPU-1", kind=kind, detail="seen")).health is health


def test_not_knowing_never_hides_a_fault_and_ends_when_the_card_answers() -> None:
    silent = Fault(uuid="GPU-1", kind=FaultKind.UNREACHABLE, detail="no answer")
    back = Fault(uuid="GPU-1", kind=FaultKind.ANSWERS_AGAIN)
    assert after(xid(79), silent).health is Health.UNHEALTHY
    assert after(xid(79), silent, back).health is Health.UNHEALTHY
    assert after(silent, back).health is Health.HEALTHY


@pytest.mark.parametrize("case", load_json("allocate-cases.json")["xid_env"], ids=lambda c: f"{c['disable']}|{c['enable']}")
def test_hamis_health_check_variables(case: Any) -> None:
    policy = policy_of("hami", disable=case["disable"], enable=case["enable"])
    if case["disable"] == "all" and case["enable"]:
        # HAMi switches everything off before it looks at what is enabled; here the enabled number is watched, as documented.
        assert not policy.off
        assert after(xid(79), policy=policy).health is Health.UNHEALTHY
        assert after(xid(48), policy=policy).health is Health.HEALTHY
        return
    assert policy.off == case["healthcheck_off"]
    if not policy.off:
        assert policy.ignored == frozenset(case["ignored"])


def test_profile_hami_condemns_whatever_it_does_not_ignore() -> None:
    policy = policy_of("hami")
    unhealthy = {code for code in XID_RULES if after(xid(code), policy=policy).health is Health.UNHEALTHY}
    assert unhealthy == set(XID_RULES) - HAMI_IGNORED


def test_an_enabled_number_condemns_whatever_the_table_says() -> None:
    assert after(xid(13), policy=policy_of(enable="13")).health is Health.UNHEALTHY
    assert after(xid(79), policy=policy_of(disable="79")).health is Health.HEALTHY
    assert after(xid(79), policy=policy_of(disable="79", enable="79")).health is Health.UNHEALTHY


@pytest.mark.parametrize(
    ("fault", "whole"),
    [
        (xid(151), True),
        (xid(79), False),
        (xid(79, action=2), True),
        (xid(79, action=1), False),
        (xid(13, action=2), True),
        (Fault(uuid="GPU-1", kind=FaultKind.RECOVERY_ACTION, recovery_action=7), True),
        (Fault(uuid="GPU-1", kind=FaultKind.RECOVERY_ACTION, recovery_action=1), False),
        (Fault(uuid="GPU-1", kind=FaultKind.UNREACHABLE), False),
    ],
)
def test_some_faults_speak_of_the_whole_machine(fault: Fault, whole: bool) -> None:
    assert reaches_node(fault, DEFAULT) is whole
    assert not reaches_node(fault, policy_of(disable="all"))


GOOD = Evidence(boot_id="boot-2", recovery_action=0, probe_passed=True, memory_clean=True)


def recovered(card: CardHealth, evidence: Evidence, *, minutes: int) -> CardHealth:
    first = recover(card, evidence, DEFAULT, now=EpochMs(10 * MINUTE)).card
    return recover(first, evidence, DEFAULT, now=EpochMs((10 + minutes) * MINUTE)).card


def test_recovery_needs_a_reset_the_evidence_and_the_hold() -> None:
    card = after(xid(79))
    assert recovered(card, GOOD, minutes=15).health is Health.HEALTHY
    assert recovered(card, GOOD, minutes=14).health is Health.UNHEALTHY
    for doubt in (
        Evidence(boot_id="boot-1", recovery_action=0, probe_passed=True, memory_clean=True),
        Evidence(boot_id="", recovery_action=0, probe_passed=True, memory_clean=True),
        Evidence(boot_id="boot-2", recovery_action=1, probe_passed=True, memory_clean=True),
        Evidence(boot_id="boot-2", recovery_action=0, probe_passed=False, memory_clean=True),
        Evidence(boot_id="boot-2", recovery_action=0, probe_passed=None, memory_clean=True),
        Evidence(boot_id="boot-2", recovery_action=0, probe_passed=True, memory_clean=False),
    ):
        assert recovered(card, doubt, minutes=60).health is Health.UNHEALTHY, doubt


def test_memory_that_cannot_be_read_is_not_taken_for_clean() -> None:
    unread = Evidence(boot_id="boot-2", recovery_action=0, probe_passed=True, memory_clean=None)
    assert recovered(after(xid(64)), unread, minutes=60).health is Health.UNHEALTHY
    assert recovered(after(xid(79)), unread, minutes=60).health is Health.HEALTHY


def test_a_doubt_in_between_starts_the_hold_anew() -> None:
    card = recover(after(xid(79)), GOOD, DEFAULT, now=EpochMs(10 * MINUTE)).card
    card = recover(card, Evidence(boot_id="boot-2", probe_passed=False), DEFAULT, now=EpochMs(20 * MINUTE)).card
    card = recover(card, GOOD, DEFAULT, now=EpochMs(26 * MINUTE)).card
    assert card.health is Health.UNHEALTHY
    assert recover(card, GOOD, DEFAULT, now=EpochMs(41 * MINUTE)).card.health is Health.HEALTHY


def test_a_clock_that_is_set_back_starts_the_hold_anew() -> None:
    card = recover(after(xid(79)), GOOD, DEFAULT, now=EpochMs(1000 * MINUTE)).card
    card = recover(card, GOOD, DEFAULT, now=EpochMs(10 * MINUTE)).card
    assert recover(card, GOOD, DEFAULT, now=EpochMs(24 * MINUTE)).card.health is Health.UNHEALTHY
    assert recover(card, GOOD, DEFAULT, now=EpochMs(25 * MINUTE)).card.health is Health.HEALTHY


def test_the_third_recovery_of_a_day_waits_for_an_operator() -> None:
    card, hour = CARD, 60 * MINUTE
    for number in range(3):
        card = observe(card, xid(95), DEFAULT, now=EpochMs(number * hour + 1), boot_id=f"boot-{number}").card
        for minute in (10, 30):
            evidence = Evidence(boot_id=f"boot-{number + 1}", recovery_action=0, probe_passed=True, memory_clean=True)
            card = recover(card, evidence, DEFAULT, now=EpochMs(number * hour + minute * MINUTE)).card
        assert card.health is (Health.HEALTHY if number < 2 else Health.UNHEALTHY)
    seen = acknowledge(card, "kim", DEFAULT)
    assert seen.card.health is Health.HEALTHY
    assert seen.transition is not None
    assert "kim" in seen.transition.evidence


def test_a_worn_out_card_only_leaves_by_an_operator() -> None:
    card = after(xid(54))
    assert recovered(card, GOOD, minutes=600).severity is Severity.UNTIL_REPLACED
    assert acknowledge(card, "kim", DEFAULT).card.health is Health.HEALTHY
