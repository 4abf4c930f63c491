"""Which notices follow from which events."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from hami.alerts.boot import SCHEMA
from hami.alerts.decide.notice import Alert, Notice, Status
from hami.alerts.decide.rules import watch
from hami.alerts.decide.state import AlertState
from hami.alerts.decide.wire import decode_notice, document, encode_notice
from hami.domain.device import Health
from hami.domain.errors import InvalidInput
from hami.events.catalog.device import DeviceCordoned, DeviceHealthChanged, DeviceUncordoned, FaultKind, FaultObserved
from hami.events.catalog.governance import LockWaitTimedOut
from hami.events.catalog.journal import GapAccepted, InputRejected, LogTruncated
from hami.events.catalog.node import NodeBack, NodeLost, NodeRemoved
from hami.events.catalog.union import EVENT_TYPES, Event
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.checkpoint import schema_of
from tests.support.builders import (
    FIRST_MS,
    a_device,
    a_failed,
    a_node_registered,
    a_prepared,
    a_released,
    a_reservation,
    a_reserved,
    again,
    an_example_of,
    records_of,
)

FIRING, RESOLVED, ONCE = Status.FIRING, Status.RESOLVED, Status.ONCE


def changed(was: Health, now: Health, device: str = "GPU-a", reason: str = "xid-79") -> DeviceHealthChanged:
    return DeviceHealthChanged(device=device, was=was, now=now, reason=reason)


SICK = changed(Health.HEALTHY, Health.UNHEALTHY)
WELL = changed(Health.UNHEALTHY, Health.HEALTHY, reason="operator")


def told(state: AlertState, records: Iterable[Record]) -> list[Notice]:
    return [notice for record in records for notice in watch(state, record)]


def short(notices: Iterable[Notice]) -> list[tuple[Alert, Status]]:
    return [(notice.alert, notice.status) for notice in notices]


def over(*events: Any) -> list[Notice]:
    return told(AlertState(), records_of(events))


# Conditions


@pytest.mark.parametrize(
    ("health", "alert"),
    [
        (Health.UNHEALTHY, Alert.DEVICE_UNHEALTHY),
        (Health.SUSPECT, Alert.DEVICE_SUSPECT),
        (Health.UNKNOWN, Alert.DEVICE_UNKNOWN),
    ],
)
def test_a_device_that_is_not_healthy_fires_until_it_is(health: Health, alert: Alert) -> None:
    fired, ended = over(changed(Health.HEALTHY, health), changed(health, Health.HEALTHY))
    assert short([fired, ended]) == [(alert, FIRING), (alert, RESOLVED)]
    assert (fired.node, fired.device, fired.pod) == ("n1", "GPU-a", "")
    assert fired.started_ms == ended.started_ms == FIRST_MS + 10
    assert ended.ended_ms == FIRST_MS + 20
    assert "xid-79" in fired.description
    assert fired.about == ended.about
    assert fired.key != ended.key


def test_saying_the_same_again_is_no_news() -> None:
    assert short(over(SICK, SICK)) == [(Alert.DEVICE_UNHEALTHY, FIRING)]


def test_from_bad_to_worse_ends_one_condition_and_begins_another() -> None:
    notices = over(changed(Health.HEALTHY, Health.SUSPECT), changed(Health.SUSPECT, Health.UNHEALTHY))
    assert short(notices)[1:] == [(Alert.DEVICE_SUSPECT, RESOLVED), (Alert.DEVICE_UNHEALTHY, FIRING)]


def test_registering_again_neither_heals_nor_repeats() -> None:
    again_here = a_node_registered(a_device(), a_device("GPU-b"))
    assert short(over(again_here, SICK, again_here)) == [(Alert.DEVICE_UNHEALTHY, FIRING)]


def test_a_device_that_is_registered_as_ill_fires() -> None:
    (notice,) = over(a_node_registered(a_device(health=Health.UNHEALTHY)))
    assert (notice.alert, notice.status) == (Alert.DEVICE_UNHEALTHY, FIRING)
    assert "as registered" in notice.description


def test_an_unknown_device_is_what_its_agent_says_next() -> None:
    unknown = a_node_registered(a_device(health=Health.UNKNOWN))
    assert short(over(unknown, a_node_registered(a_device()))) == [
        (Alert.DEVICE_UNKNOWN, FIRING),
        (Alert.DEVICE_UNKNOWN, RESOLVED),
    ]


def test_a_device_that_vanished_is_said_to_be_gone_and_fires_again_when_it_comes_back() -> None:
    with_it, without_it = a_node_registered(a_device(), a_device("GPU-b")), a_node_registered(a_device("GPU-b"))
    assert short(over(with_it, SICK, without_it, with_it)) == [
        (Alert.DEVICE_UNHEALTHY, FIRING),
        (Alert.DEVICE_GONE, ONCE),
        (Alert.DEVICE_UNHEALTHY, RESOLVED),
        (Alert.DEVICE_UNHEALTHY, FIRING),
    ]


def test_another_vendors_registration_takes_nothing_away() -> None:
    other = a_node_registered(a_device("MLU-a", vendor="MLU"), vendor="MLU")
    assert short(over(a_node_registered(a_device()), SICK, other)) == [(Alert.DEVICE_UNHEALTHY, FIRING)]


def test_another_machine_under_the_same_name_starts_afresh() -> None:
    other = a_node_registered(a_device("GPU-z"), node_uid="node-uid-2")
    assert short(over(a_node_registered(a_device()), SICK, other)) == [
        (Alert.DEVICE_UNHEALTHY, FIRING),
        (Alert.DEVICE_UNHEALTHY, RESOLVED),
    ]


def test_a_cordon_lasts_until_it_is_lifted() -> None:
    on, off = DeviceCordoned(device="GPU-a", actor="ann", reason="fan"), DeviceUncordoned(device="GPU-a", actor="ann")
    fired, ended = over(on, off)
    assert short([fired, ended]) == [(Alert.DEVICE_CORDONED, FIRING), (Alert.DEVICE_CORDONED, RESOLVED)]
    assert "by ann: fan" in fired.description


@pytest.mark.parametrize("end", [NodeBack(), a_node_registered(a_device()), NodeRemoved()])
def test_a_lost_node_is_lost_until_it_is_seen_or_removed(end: Event) -> None:
    assert short(over(a_node_registered(a_device()), NodeLost(), end)) == [
        (Alert.NODE_LOST, FIRING),
        (Alert.NODE_LOST, RESOLVED),
    ]


def test_removing_a_node_ends_all_that_is_said_of_it_and_its_return_brings_it_back() -> None:
    here = a_node_registered(a_device())
    assert short(over(here, SICK, NodeRemoved(), here)) == [
        (Alert.DEVICE_UNHEALTHY, FIRING),
        (Alert.DEVICE_UNHEALTHY, RESOLVED),
        (Alert.DEVICE_UNHEALTHY, FIRING),
    ]


def test_several_lost_nodes_are_a_matter_of_their_own() -> None:
    lost = [(NodeLost(), f"n{number}") for number in range(4)]
    notices = over(*lost, (NodeBack(), "n0"), (NodeBack(), "n1"))
    several = [each for each in notices if each.alert is Alert.SEVERAL_NODES_LOST]
    assert [each.status for each in several] == [FIRING, RESOLVED]
    assert (several[0].node, several[0].description) == ("", "3 nodes are lost: n0, n1, n2")
    assert len({notice.key for notice in notices}) == len(notices)


# What happens once


def test_each_repeat_of_a_fault_counts() -> None:
    fault = FaultObserved(device="GPU-a", kind=FaultKind.XID, code=79)
    notices = over(fault, fault)
    assert short(notices) == [(Alert.DEVICE_FAULT, ONCE)] * 2
    assert len({notice.key for notice in notices}) == 2
    assert notices[0].description == "GPU-a: saw xid 79"


def test_a_pods_name_is_known_from_its_reservation_while_it_lives() -> None:
    held = a_reservation(namespace="team", name="train")
    other = a_prepared(held, difference="served GPU-b instead of GPU-a")
    (served,) = over(a_reserved(held), other)
    assert (served.alert, served.pod) == (Alert.SERVED_OTHERWISE, "team/train")
    (failed,) = over(a_reserved(held), a_failed(held))
    assert (failed.alert, failed.pod) == (Alert.ALLOCATION_FAILED, "team/train")
    (late,) = over(a_reserved(held), a_released(held), other)
    assert late.pod == "u1"


def test_what_was_served_as_reserved_is_no_news() -> None:
    held = a_reservation()
    assert over(a_reserved(held), a_prepared(held), a_released(held)) == []


@pytest.mark.parametrize(
    ("event", "alert"),
    [
        (GapAccepted(producer="agent-n1", first_seq=3, last_seq=5), Alert.EVENTS_LOST),
        (InputRejected(source="pod", field="f", value="v", why="w"), Alert.INPUT_REJECTED),
        (LogTruncated(before="1-0", why="w"), Alert.LOG_TRUNCATED),
        (LockWaitTimedOut(lock="node/n1", waiter="u1"), Alert.LOCK_WAITED),
        (Undecodable("hami.node.registered", "bad"), Alert.EVENT_UNREADABLE),
    ],
)
def test_what_is_told_once(event: Any, alert: Alert) -> None:
    assert short(over(event)) == [(alert, ONCE)]


def test_an_unknown_type_is_passed_over() -> None:
    assert over(Unknown("hami.future.thing", 1)) == []


def test_every_event_is_judged_and_every_alert_can_come() -> None:
    """Nothing in the catalogue makes the rules stumble, and no alert is only a name."""
    seen = set()
    for kind in EVENT_TYPES:
        seen |= {notice.alert for notice in over(an_example_of(kind))}
    rest = {*Alert} - seen
    assert rest <= {
        *(Alert.DEVICE_SUSPECT, Alert.DEVICE_UNKNOWN, Alert.DEVICE_UNHEALTHY, Alert.SEVERAL_NODES_LOST),
        *(Alert.DEVICE_GONE, Alert.EVENT_UNREADABLE),
    }, "tested by name above"


# Reading


def test_a_record_is_judged_once() -> None:
    state = AlertState()
    records = records_of([SICK, WELL])
    assert len(told(state, records)) == 2
    assert told(state, records) == []


def test_an_event_appended_again_after_a_failover_is_no_news() -> None:
    state = AlertState()
    records = records_of([SICK, WELL])
    told(state, records)
    assert told(state, again(records, after=2)) == []
    assert state.position.g == 4


def test_entries_missing_in_the_middle_are_told() -> None:
    state = AlertState()
    told(state, records_of([NodeBack()]))
    (notice,) = told(state, records_of([NodeBack()], after=4))
    assert (notice.alert, "event 5 after event 1" in notice.description) == (Alert.LOG_TRUNCATED, True)


def test_a_log_whose_beginning_was_trimmed_is_no_news() -> None:
    assert told(AlertState(), records_of([NodeBack()], after=99)) == []


def test_the_state_survives_its_checkpoint_and_goes_on() -> None:
    first, rest = records_of([a_node_registered(a_device()), SICK]), records_of([WELL], after=2)
    state = AlertState()
    told(state, first)
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=AlertState)
    assert copy == state
    assert told(copy, rest) == told(state, rest) != []
    assert schema_of(AlertState) == SCHEMA


def test_a_notice_survives_as_bytes() -> None:
    (notice,) = over(SICK)
    assert decode_notice(encode_notice(notice)) == notice
    with pytest.raises(InvalidInput, match="notice"):
        decode_notice(b'{"alert": "HamiNoSuchAlert"}')


def test_the_operators_labels_do_not_hide_the_notices_own() -> None:
    (notice,) = over(SICK)
    assert document(notice, {"cluster": "east", "node": "x"})["labels"] == {
        "cluster": "east",
        "node": "n1",
        "device": "GPU-a",
    }


def test_a_long_description_is_cut() -> None:
    (notice,) = over(a_failed(a_reservation(), reason="x" * 5000))
    assert len(notice.description) == 1000


def test_the_same_node_is_forgotten_when_nothing_is_left_against_it() -> None:
    state = AlertState()
    told(state, records_of([a_node_registered(a_device()), SICK, WELL, NodeRemoved()]))
    assert (state.nodes, state.firing, state.pods) == ({}, {}, {})
