"""Every situation in tests/data/pain-cases.json has a test that asserts its point.

A case whose test is renamed or removed shows up, and so does a new case that nobody has looked at.
"""

import ast
from collections.abc import Sequence
from typing import Any, Final

import pytest

from hami.domain.cluster import Liveness
from hami.domain.device import Health
from hami.domain.units import EpochMs
from hami.events.catalog.handshake import HandshakeExpired
from hami.events.catalog.node import NodeLost, NodeRegistered
from hami.events.catalog.union import Event
from hami.events.codec import seal
from hami.events.envelope import Position
from hami.events.log import Draft, Record
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from tests.support.builders import a_device
from tests.support.cli import ROOT
from tests.support.data import load_json

CASES: Final[dict[str, Any]] = {case["id"]: case for case in load_json("pain-cases.json")}

AGENT: Final = "tests/integration/agent"
FAULTS: Final = "tests/unit/nodeagent/test_reported_faults.py"
LOCKS: Final = "tests/contract/test_reported_locks.py"
WHOLE: Final = "tests/integration/test_reported_cases.py"
DOOR: Final = "tests/integration/test_compat_handshake.py"
HERE: Final = "tests/unit/test_reported_index.py"

TESTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "lock-01-prefix-name": ((LOCKS, "test_a_pod_whose_name_is_a_prefix_does_not_free_anothers_lock"),),
    "lock-02-owner-deleted": ((LOCKS, "test_the_lock_of_a_deleted_pod_is_free_at_once"),),
    "lock-05-expiry-while-waiting": ((LOCKS, "test_while_the_holder_waits_for_its_allocate_nobody_else_gets_the_lock"),),
    "lock-06-two-vendors-one-pod": ((LOCKS, "test_two_vendors_of_one_pod_share_its_lock"),),
    "lock-07-compare-and-delete": ((LOCKS, "test_who_looked_before_its_time_ran_out_cannot_free_the_next_ones_lock"),),
    "match-01-two-unserved": (
        (WHOLE, "test_match_01_two_unserved_pods_on_one_card"),
        ("tests/unit/nodeagent/test_ordered.py", "test_the_reported_case_of_two_unserved_pods_is_never_a_guess"),
    ),
    "match-03-forged-annotation": (
        (WHOLE, "test_match_03_forged_annotations_are_refused_before_the_pod_exists"),
        (f"{AGENT}/test_agent.py", "test_whoever_bypassed_the_control_plane_sees_no_device"),
    ),
    "xid-01-app-level": (
        (FAULTS, "test_xids_end_where_the_report_says"),
        (f"{AGENT}/test_health.py", "test_an_application_error_is_on_record_and_changes_nothing"),
    ),
    "xid-02-severity-lattice": ((FAULTS, "test_xids_end_where_the_report_says"),),
    "xid-04-restart-does-not-launder": (
        (f"{AGENT}/test_health.py", "test_a_restart_of_the_agent_launders_no_fault"),
        (f"{AGENT}/test_lost_memory.py", "test_without_a_record_cards_are_unknown_until_the_log_has_told"),
        ("tests/unit/test_fold_nodes.py", "test_registering_again_clears_no_fault"),
    ),
    "xid-05-ecc-without-xid": (
        (FAULTS, "test_errors_that_no_xid_announced_take_the_card_out_of_use"),
        (f"{AGENT}/test_health.py", "test_uncorrected_errors_are_seen_without_any_xid_and_survive_a_restart"),
    ),
    "xid-07-follow-on-not-root": (
        (FAULTS, "test_xids_end_where_the_report_says"),
        (FAULTS, "test_bursts_of_a_root_and_its_follow_on_are_counted_apart"),
    ),
    "xid-09-silence-is-not-sickness": ((FAULTS, "test_a_silent_node_is_neither_well_nor_sick"),),
    "hs-01-revive-after-deleted": ((HERE, "test_hs_01_a_node_that_expired_is_live_when_it_registers"),),
    "hs-04-vendor-vanished": ((HERE, "test_hs_04_a_vendor_that_is_gone_takes_its_devices_along"),),
    "pod-01-empty-slots": ((WHOLE, "test_pod_01_a_container_without_devices_keeps_its_place"),),
    "race-01-two-filters": (
        (WHOLE, "test_race_01_two_filters_at_once"),
        (LOCKS, "test_two_decisions_on_one_state_of_a_node_end_with_one_reservation"),
    ),
    "leak-01-missed-delete": ((WHOLE, "test_leak_01_a_deletion_that_nobody_saw"),),
    "quota-01-per-card-times-count": ((WHOLE, "test_quota_01_a_limit_counts_each_card_of_the_request_once"),),
    "quota-03-sidecar-lifetime": ((WHOLE, "test_quota_03_a_sidecar_stays_and_an_init_container_gives_back"),),
    "percent-01-own-card-total": ((WHOLE, "test_percent_01_a_percentage_is_of_each_cards_own_memory"),),
    "restart-01-not-ready": (
        ("tests/integration/test_scheduler_behind.py", "test_restart_01_nothing_is_given_out_before_the_head_is_reached"),
    ),
    "restart-03-kubelet-before-agent": ((WHOLE, "test_restart_03_a_pod_that_failed_while_the_agent_was_away_counts_once"),),
    "scale-01-no-idle-writes": ((f"{AGENT}/test_idle.py", "test_scale_01_heartbeats_write_no_node_and_list_no_pod"),),
    "replay-01-no-side-effects": (("tests/integration/test_alerts.py", "test_replay_01_a_lost_offset_has_no_side_effects"),),
    "hs-03-bad-legacy-timestamp": ((DOOR, "test_hs_03_a_time_that_is_none_is_named_and_keeps_nobody_alive"),),
    "reg-01-one-bad-segment": ((DOOR, "test_reg_01_one_bad_segment_costs_itself_only"),),
    "mig-01-smallest-profile": ((WHOLE, "test_mig_01_the_smallest_profile_with_enough_memory"),),
}


def test_every_case_has_its_test() -> None:
    assert set(TESTS) == set(CASES)


@pytest.mark.parametrize("name", TESTS)
def test_the_named_tests_exist(name: str) -> None:
    for path, function in TESTS[name]:
        tree = ast.parse((ROOT / path).read_text())
        found = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in found, path


def folded(*events: Event) -> Any:
    state = new_cluster()
    for g, event in enumerate(events, start=1):
        envelope = seal(Draft(event=event, node="n1"), producer="p", epoch=1, seq=g, occurred_ms=EpochMs(0))
        apply(state, Record(position=Position(g, f"{g}-0"), envelope=envelope, event=event))
    return snapshot(state).nodes["n1"]


def registered(vendor: str, uuids: Sequence[str]) -> NodeRegistered:
    return NodeRegistered(vendor=vendor, devices=tuple(a_device(uuid, vendor=vendor) for uuid in uuids))


def test_hs_01_a_node_that_expired_is_live_when_it_registers() -> None:
    """Pending pods are tried again by kube-scheduler when the kubelet, told by the plugin, changes what is allocatable."""
    case = CASES["hs-01-revive-after-deleted"]
    gone = (registered("NVIDIA", case["given"]["devices"]), HandshakeExpired(nonce="n"), NodeLost())
    assert folded(*gone).liveness is Liveness.LOST
    node = folded(*gone, registered("NVIDIA", case["when"][0]["devices"]))
    assert node.liveness.value == case["then"]["state"]
    assert sum(each.schedulable for each in node.devices) == case["then"]["schedulable_devices"]


def test_hs_04_a_vendor_that_is_gone_takes_its_devices_along() -> None:
    """A registration is one vendor's whole set. A vendor with nothing left says so by an empty one."""
    case = CASES["hs-04-vendor-vanished"]
    before = [registered(vendor, uuids) for vendor, uuids in case["given"]["registered"].items()]
    left = case["when"][0]["full_set"]
    now = [registered(vendor, left.get(vendor, [])) for vendor in case["given"]["registered"]]
    node = folded(*before, *now)
    assert [each.device.uuid for each in node.devices] == case["then"]["devices"]
    assert {each.health for each in node.devices} == {Health.HEALTHY}
