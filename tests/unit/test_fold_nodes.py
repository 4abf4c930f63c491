"""Nodes and devices as the log tells them: registration, health that cannot be laundered, liveness, cordons, quarantine."""

import pytest

from hami.domain.cluster import Delivery, Foreign, Liveness, NodeState, Source
from hami.domain.device import DeviceState, DeviceUsage, Health
from hami.events.catalog.device import (
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    FaultKind,
    FaultObserved,
    HealthWatchPaused,
    HealthWatchResumed,
)
from hami.events.catalog.journal import Corrected
from hami.events.catalog.node import NodeBack, NodeLost, NodeRegistered, NodeRemoved
from hami.events.catalog.union import Event
from hami.events.log import Undecodable, Unknown
from hami.projections.folds.cluster import apply, new_cluster
from hami.projections.folds.state import ClusterState
from tests.support.builders import a_device, a_node_registered, a_reservation, a_reserved, records_of


def after(*events: Event | Unknown | Undecodable, onto: ClusterState | None = None) -> ClusterState:
    state = onto or new_cluster()
    for record in records_of(events, after=state.position.g):
        apply(state, record)
    return state


def node(state: ClusterState) -> NodeState:
    return state.nodes["n1"]


def device(state: ClusterState, uuid: str = "GPU-a") -> DeviceState:
    return next(each for each in node(state).devices if each.device.uuid == uuid)


def uuids(state: ClusterState) -> list[str]:
    return [each.device.uuid for each in node(state).devices]


def health(uuid: str, now: Health, reason: str = "xid 48", was: Health = Health.HEALTHY) -> DeviceHealthChanged:
    return DeviceHealthChanged(device=uuid, was=was, now=now, reason=reason)


def test_a_registration_replaces_its_own_vendors_devices_where_they_stood() -> None:
    state = after(
        a_node_registered(a_device("GPU-a"), a_device("GPU-b")),
        a_node_registered(a_device("NPU-a", vendor="Ascend"), vendor="Ascend"),
        a_node_registered(a_device("GPU-c"), a_device("GPU-a")),
    )
    assert uuids(state) == ["GPU-c", "GPU-a", "NPU-a"]


def test_a_vendor_that_vanished_takes_its_devices_along_and_no_others() -> None:
    state = after(
        a_node_registered(a_device("GPU-x-0")),
        a_node_registered(a_device("NPU-x-0", vendor="Ascend"), vendor="Ascend"),
        a_node_registered(vendor="Ascend"),
    )
    assert uuids(state) == ["GPU-x-0"]


def test_a_node_without_devices_that_was_lost_revives_by_registering() -> None:
    state = after(a_node_registered(), NodeLost())
    assert node(state).liveness is Liveness.LOST
    after(a_node_registered(a_device("GPU-s-0"), a_device("GPU-s-1")), onto=state)
    assert node(state).liveness is Liveness.LIVE
    assert sum(each.schedulable for each in node(state).devices) == 2
    assert state.drain_touched() == ("n1",)


@pytest.mark.parametrize("claimed", [Health.HEALTHY, Health.UNKNOWN])
@pytest.mark.parametrize("known", [Health.SUSPECT, Health.UNHEALTHY])
def test_registering_again_clears_no_fault(known: Health, claimed: Health) -> None:
    state = after(
        a_node_registered(a_device()),
        health("GPU-a", known),
        NodeLost(),
        NodeBack(),
        a_node_registered(a_device(health=claimed)),
    )
    assert (device(state).health, device(state).health_reason) == (known, "xid 48")
    after(health("GPU-a", Health.HEALTHY, "cleared by operator", known), onto=state)
    assert (device(state).health, device(state).health_reason) == (Health.HEALTHY, "")
    assert device(state).schedulable


def test_a_fault_outlives_the_device_and_its_node() -> None:
    state = after(
        a_node_registered(a_device()),
        health("GPU-a", Health.UNHEALTHY),
        a_node_registered(),
        NodeRemoved(node_uid="node-uid-1"),
        a_node_registered(a_device(), node_uid="node-uid-2"),
    )
    assert (device(state).health, device(state).health_reason) == (Health.UNHEALTHY, "xid 48")
    assert state.marks == {}


def test_a_fault_outlives_the_removal_of_a_node_that_still_had_the_device() -> None:
    state = after(
        a_node_registered(a_device()),
        health("GPU-a", Health.UNHEALTHY),
        NodeRemoved(),
        a_node_registered(a_device(), node_uid="node-uid-2"),
    )
    assert device(state).health is Health.UNHEALTHY


def test_an_unknown_device_that_was_cordoned_comes_back_as_its_agent_says_and_cordoned() -> None:
    state = after(
        a_node_registered(a_device()),
        health("GPU-a", Health.UNKNOWN, "not monitored"),
        DeviceCordoned(device="GPU-a", actor="op"),
        a_node_registered(a_device()),
    )
    assert (device(state).health, device(state).cordoned) == (Health.HEALTHY, True)


def test_whoever_follows_changes_hears_of_every_kind_of_change() -> None:
    state = after(a_node_registered(a_device()))
    state.drain_touched()
    for event in (
        NodeLost(),
        NodeBack(),
        health("GPU-a", Health.SUSPECT),
        HealthWatchPaused(holder="mig-apply"),
        NodeRemoved(),
    ):
        after(event, onto=state)
        assert state.drain_touched() == ("n1",), event


def test_a_fault_known_before_the_device_is_registered_waits_for_it() -> None:
    state = after(health("GPU-a", Health.SUSPECT), a_node_registered(a_device()))
    assert device(state).health is Health.SUSPECT


def test_a_registration_may_make_health_worse() -> None:
    state = after(a_node_registered(a_device()), a_node_registered(a_device(health=Health.UNHEALTHY)))
    assert device(state).health is Health.UNHEALTHY


def test_an_unknown_device_takes_what_its_agent_now_says() -> None:
    state = after(
        a_node_registered(a_device()), health("GPU-a", Health.UNKNOWN, "not monitored"), a_node_registered(a_device())
    )
    assert device(state).health is Health.HEALTHY


def test_a_raw_fault_decides_nothing() -> None:
    state = after(a_node_registered(a_device()), FaultObserved(device="GPU-a", kind=FaultKind.XID, code=79))
    assert device(state).schedulable


def test_cordons_hold_until_taken_off_across_registration() -> None:
    state = after(
        a_node_registered(a_device()),
        DeviceCordoned(device="GPU-a", actor="op"),
        a_node_registered(),
        a_node_registered(a_device()),
    )
    assert device(state).cordoned
    assert not device(state).schedulable
    after(DeviceUncordoned(device="GPU-a", actor="op"), onto=state)
    assert device(state).schedulable


def test_a_device_that_comes_back_still_has_its_usage() -> None:
    state = after(a_node_registered(a_device()), a_reserved(), a_node_registered(), a_node_registered(a_device()))
    assert device(state).used == DeviceUsage(1, 1000, 10)


def test_a_removed_node_keeps_what_is_held_there_for_its_return() -> None:
    state = after(a_node_registered(a_device()), a_reserved(), NodeRemoved(node_uid="node-uid-1"))
    assert "n1" not in state.nodes
    assert "r1" in state.allocations
    after(a_node_registered(a_device(), node_uid="node-uid-2"), onto=state)
    assert device(state).used == DeviceUsage(1, 1000, 10)


def test_a_late_removal_of_the_former_node_object_does_not_touch_its_successor() -> None:
    state = after(
        a_node_registered(a_device()), a_node_registered(a_device(), node_uid="node-uid-2"), NodeRemoved(node_uid="node-uid-1")
    )
    assert uuids(state) == ["GPU-a"]


def test_a_new_node_object_of_the_same_name_starts_without_the_old_ones_devices() -> None:
    state = after(
        a_node_registered(a_device("NPU-a", vendor="Ascend"), vendor="Ascend"),
        a_node_registered(a_device(), node_uid="node-uid-2", boot_id="boot-2"),
    )
    assert uuids(state) == ["GPU-a"]
    assert (node(state).uid, node(state).boot_id) == ("node-uid-2", "boot-2")


def test_a_reboot_keeps_other_vendors_devices() -> None:
    state = after(
        a_node_registered(a_device("NPU-a", vendor="Ascend"), vendor="Ascend"), a_node_registered(a_device(), boot_id="boot-2")
    )
    assert uuids(state) == ["NPU-a", "GPU-a"]
    assert node(state).boot_id == "boot-2"


def test_a_paused_health_watch_shows_who_paused_it() -> None:
    state = after(a_node_registered(a_device()), HealthWatchPaused(holder="mig-apply"))
    assert node(state).health_paused_by == "mig-apply"
    after(HealthWatchResumed(holder="mig-apply"), onto=state)
    assert node(state).health_paused_by == ""


def test_an_unreadable_event_of_a_device_quarantines_its_node_until_it_registers() -> None:
    state = after(a_node_registered(a_device()), Undecodable("hami.device.health_changed", "now: invalid enum value"))
    assert "hami.device.health_changed" in node(state).quarantine
    after(NodeLost(), NodeBack(), onto=state)
    assert node(state).quarantine
    after(a_node_registered(a_device()), onto=state)
    assert node(state).quarantine == ""


def test_an_unreadable_registration_of_a_new_node_shows_as_a_quarantined_node() -> None:
    state = after(Undecodable("hami.node.registered", "devices: expected array"))
    assert node(state).quarantine
    assert uuids(state) == []


def test_an_unreadable_allocation_event_needs_somebody_to_act() -> None:
    state = after(
        a_node_registered(a_device()), Undecodable("hami.allocation.reserved", "no such field"), a_node_registered(a_device())
    )
    assert node(state).quarantine
    after(Corrected(what="quarantine", fold_said="quarantined", api_said="pods compared"), onto=state)
    assert node(state).quarantine == ""


def test_other_nodes_go_on_beside_a_quarantined_one() -> None:
    state = new_cluster()
    bad = Undecodable("hami.node.registered", "devices: expected array")
    for record in records_of([(bad, "n1"), (a_node_registered(a_device("GPU-b")), "n2"), (bad, "")]):
        apply(state, record)
    assert [each.name for each in state.nodes.values() if not each.quarantine] == ["n2"]
    assert state.undecodable == {"hami.node.registered": 2}


def test_unknown_events_are_counted_and_skipped() -> None:
    state = after(Unknown("hami.future.thing", 1), Unknown("hami.future.thing", 2), a_reserved(a_reservation()))
    assert state.unknown == {"hami.future.thing": 2}
    assert set(state.allocations) == {"r1"}


def test_node_events_without_a_node_are_reported() -> None:
    state = new_cluster()
    for record in records_of([(NodeLost(), "")]):
        apply(state, record)
    assert [each.kind for each in state.drain_oddities()] == ["node_missing"]
    assert state.nodes == {}


# Through the door


def through_the_door(*uuids: str, unread: tuple[str, ...] = (), uid: str = "node-uid-1") -> NodeRegistered:
    devices = tuple(a_device(each, vendor="DCU") for each in uuids)
    return NodeRegistered(vendor="DCU", devices=devices, node_uid=uid, source=Source.DOOR, unread=unread)


def test_a_vendor_through_the_door_speaks_for_itself_only() -> None:
    agent = NodeRegistered(vendor="NVIDIA", devices=(a_device(),), node_uid="node-uid-1", delivery=Delivery.ORDERED)
    state = after(agent, NodeLost(), through_the_door("DCU-0"))
    assert uuids(state) == ["GPU-a", "DCU-0"]
    assert (node(state).liveness, node(state).delivery) == (Liveness.LOST, Delivery.ORDERED)
    assert (node(state).own, node(state).foreign) == (("NVIDIA",), (Foreign("DCU"),))
    assert node(state).has_agent


def test_a_node_of_the_door_alone_is_there_without_an_agent() -> None:
    state = after(through_the_door("DCU-0"))
    assert node(state).liveness is Liveness.LIVE
    assert not node(state).has_agent
    assert node(state).is_foreign("DCU")


def test_what_could_not_be_read_is_kept_until_it_can() -> None:
    state = after(through_the_door(unread=("device 1",)))
    assert node(state).foreign == (Foreign("DCU", ("device 1",)),)
    assert node(after(through_the_door("DCU-0"), onto=state)).foreign == (Foreign("DCU"),)
    assert node(after(through_the_door(), onto=state)).foreign == ()


def test_an_agent_takes_a_vendor_over_and_the_door_never_does() -> None:
    agent = NodeRegistered(vendor="DCU", devices=(a_device("DCU-own", vendor="DCU"),), node_uid="node-uid-1")
    state = after(through_the_door("DCU-0"), agent, through_the_door("DCU-1"))
    assert uuids(state) == ["DCU-own"]
    assert (node(state).own, node(state).foreign) == (("DCU",), ())
    assert state.odd == {"door_after_agent": 1}


def test_a_node_made_anew_under_its_name_remembers_neither() -> None:
    state = after(a_node_registered(a_device()), through_the_door("DCU-0"), through_the_door("DCU-1", uid="node-uid-2"))
    assert uuids(state) == ["DCU-1"]
    assert (node(state).own, node(state).foreign) == ((), (Foreign("DCU"),))


def test_a_plugins_next_word_ends_unknown_health() -> None:
    state = after(through_the_door("DCU-0"), health("DCU-0", Health.UNKNOWN, "silent"))
    assert device(state, "DCU-0").health is Health.UNKNOWN
    assert device(after(through_the_door("DCU-0"), onto=state), "DCU-0").health is Health.HEALTHY
