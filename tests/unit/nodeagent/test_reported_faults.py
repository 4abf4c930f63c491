"""Fault troubles that users reported (tests/data/pain-cases.json), replayed on the decisions.

Their event names and policy words are invented; what must come out stands. xid-04 (a restart launders nothing) is replayed on a
running agent in tests/integration/agent/test_health.py.
"""

from typing import Any

import msgspec
import pytest

from hami.cli.state_view import health_shown
from hami.domain.cluster import Liveness, NodeState
from hami.domain.device import DeviceState, Health
from hami.domain.units import EpochMs
from hami.nodeagent.decide.counters import shown
from hami.nodeagent.decide.faults import CardHealth, Counters, Fault, FaultKind
from hami.nodeagent.decide.health import observe, policy_of
from tests.support.builders import a_device
from tests.support.data import load_json

CASES: dict[str, Any] = {case["id"]: case for case in load_json("pain-cases.json")}
POLICY = policy_of()


def replayed(case: Any) -> CardHealth:
    card = CardHealth(uuid=case["given"]["device"])
    for step in case["when"]:
        fault = Fault(uuid=card.uuid, kind=FaultKind.XID, code=step["xid"], workloads=("u-1",))
        card = observe(card, fault, POLICY, now=EpochMs(1_000_000 + step["t_s"] * 1000), boot_id="boot-1").card
    return card


@pytest.mark.parametrize("name", ["xid-01-app-level", "xid-02-severity-lattice", "xid-07-follow-on-not-root"])
def test_xids_end_where_the_report_says(name: str) -> None:
    case = CASES[name]
    card = replayed(case)
    assert card.health.value == case["then"]["state"]
    if "reason_xid" in case["then"]:
        assert card.reason.startswith(f"XID {case['then']['reason_xid']} ")
        assert [fault.code for fault in card.faults] == case["then"]["recorded_xids"]


def test_bursts_of_a_root_and_its_follow_on_are_counted_apart() -> None:
    case = CASES["xid-07-follow-on-not-root"]
    [group] = case["then"]["grouped"]
    counts = {fault.code: len(fault.bursts) for fault in replayed(case).faults}
    assert counts == {group["root"]: group["count"], group["follow_on"]: group["count"]}


def test_errors_that_no_xid_announced_take_the_card_out_of_use() -> None:
    case = CASES["xid-05-ecc-without-xid"]

    def counters(raw: Any) -> Counters:
        return Counters(uncorrected=raw["ecc_uncorrectable_volatile"], remap_pending=raw["row_remap_pending"])

    before, now = counters(case["given"]["counters"]), counters(case["when"][0]["counters"])
    [fault] = shown(case["given"]["device"], before, now)
    assert (fault.kind, fault.code) == (FaultKind.ECC_UNCORRECTED, 1)
    card = observe(CardHealth(uuid=fault.uuid), fault, POLICY, now=EpochMs(1)).card
    assert card.health.value in case["then"]["state_in"]
    assert DeviceState(device=a_device(card.uuid), health=card.health).schedulable is case["then"]["schedulable"]


def test_a_silent_node_is_neither_well_nor_sick() -> None:
    case = CASES["xid-09-silence-is-not-sickness"]
    state = DeviceState(device=a_device("GPU-1"), health=Health(case["given"]["state"]))
    silent = NodeState(name="n1", liveness=Liveness.LOST, devices=(state,))
    assert health_shown(silent, state).value == case["then"]["health"]
    assert health_shown(msgspec.structs.replace(silent, liveness=Liveness.LIVE), state) is Health.HEALTHY
    sick = msgspec.structs.replace(state, health=Health.UNHEALTHY)
    assert health_shown(silent, sick) is Health.UNHEALTHY
