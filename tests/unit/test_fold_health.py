"""A device's history: decided changes, and faults under their root."""

from hami.domain.device import Health
from hami.events.catalog.device import DeviceCordoned, DeviceHealthChanged, FaultKind, FaultObserved
from hami.events.log import Record
from hami.projections.folds.health import (
    FOLLOWS_WITHIN_MS,
    KEPT_CHANGES,
    DeviceHistory,
    FaultGroup,
    HealthState,
    apply,
)
from tests.support.builders import FIRST_MS, a_node_registered, a_position, an_envelope, records_of


def xids(*seen: tuple[float, int], device: str = "GPU-m-6") -> list[Record]:
    """(seconds on the agent's clock, XID), recorded together as after an outage."""
    records = []
    for i, (at_s, code) in enumerate(seen, start=1):
        event = FaultObserved(device=device, kind=FaultKind.XID, code=code)
        envelope = an_envelope(event, seq=i, at_ms=FIRST_MS + int(at_s * 1000))
        records.append(Record(position=a_position(i, every_ms=0), envelope=envelope, event=event))
    return records


def history(records: list[Record] | tuple[Record, ...], state: HealthState | None = None) -> DeviceHistory:
    state = state or HealthState()
    for record in records:
        apply(state, record)
    [only] = state.devices.values()
    return only


def groups(found: DeviceHistory) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    return [(each.code, each.count, each.follow_on) for each in found.faults]


def test_a_follow_on_is_counted_under_its_root() -> None:
    found = history(xids((0, 31), (1, 45), (600, 31), (601, 45), (1200, 31), (1201, 45)))
    assert groups(found) == [(31, 3, ((45, 3),))]
    assert found.now is Health.UNKNOWN


def test_a_follow_on_code_alone_or_late_is_a_fault_of_its_own() -> None:
    late = FOLLOWS_WITHIN_MS / 1000 + 1
    assert groups(history(xids((0, 45)))) == [(45, 1, ())]
    assert groups(history(xids((0, 31), (late, 45)))) == [(31, 1, ()), (45, 1, ())]


def test_which_codes_follow_is_the_callers_policy() -> None:
    state = HealthState(follow_on=frozenset({31}))
    assert groups(history(xids((0, 79), (1, 31), (2, 45)), state)) == [(79, 1, ((31, 1),)), (45, 1, ())]


def test_lesser_faults_after_a_grave_one_are_recorded_beside_it() -> None:
    assert [code for code, _, _ in groups(history(xids((0, 79), (30, 31))))] == [79, 31]


def test_changes_keep_evidence_and_actor_and_since_is_when_the_present_health_began() -> None:
    def to(was: Health, now: Health, actor: str = "policy") -> DeviceHealthChanged:
        return DeviceHealthChanged(device="GPU-a", was=was, now=now, reason="xid 48", evidence="ecc +1", actor=actor)

    found = history(
        records_of(
            [
                a_node_registered(),
                to(Health.HEALTHY, Health.SUSPECT),
                to(Health.SUSPECT, Health.UNHEALTHY),
                to(Health.UNHEALTHY, Health.UNHEALTHY, "ana"),
                DeviceCordoned(device="GPU-a", actor="ana"),
            ]
        )
    )
    assert (found.now, found.since, found.cordoned, found.node) == (Health.UNHEALTHY, a_position(3), True, "n1")
    assert [(each.now, each.actor, each.evidence) for each in found.changes][-1] == (Health.UNHEALTHY, "ana", "ecc +1")
    assert len(found.changes) == 3


def test_a_history_is_bounded() -> None:
    flapping = [
        DeviceHealthChanged(device="GPU-a", was=Health.HEALTHY, now=Health.SUSPECT, reason=str(i))
        for i in range(KEPT_CHANGES + 5)
    ]
    found = history(records_of(flapping))
    assert [each.reason for each in found.changes] == [str(i) for i in range(5, KEPT_CHANGES + 5)]


def test_a_group_says_when_it_was_first_and_last_seen() -> None:
    [group] = history(records_of([FaultObserved(device="GPU-a", kind=FaultKind.ECC, code=1)] * 3)).faults
    assert group == FaultGroup(
        kind=FaultKind.ECC, code=1, count=3, first=a_position(1), last=a_position(3), last_occurred_ms=group.last_occurred_ms
    )
