"""The door's decisions: what the log lacks of an announcement, and what a plugin has done for a pod."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.domain.allocation import Allocation, Phase, PodOwner
from hami.domain.cluster import Foreign, NodeState
from hami.domain.device import Device, DeviceState, Health
from hami.domain.pod import Node, NodeStatus, ObjectMeta
from hami.events.catalog.allocation import AllocationFailed, AllocationPrepared
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.journal import InputRejected
from hami.events.catalog.node import NodeRegistered
from hami.projections.folds.cluster import apply, new_cluster
from hami.projections.folds.state import ClusterState
from hami.scheduler.decide import door
from hami.scheduler.decide.door import NodeSeen, Seen
from hami.scheduler.decide.reconcile import PodFacts
from hami.vendors.announced import Unread
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.vendor import Vendor
from tests.support.builders import a_container, a_device, a_reservation, a_share, records_of

VENDORS = vendors_of(DeviceConfig())
MUTEX = "hami.io/mutex.lock"
OWNER = PodOwner("u1", "default", "p1")


def vendor(word: str) -> Vendor:
    found = by_word(VENDORS, word)
    assert found is not None
    return found


def dcu(number: int, health: Health = Health.HEALTHY, memory: int = 1000) -> Device:
    return a_device(f"DCU-{number}", vendor="DCU", health=health, memory=memory)


def seen(*devices: Device, unread: tuple[Unread, ...] = (), unreadable: bool = False, uid: str = "node-1") -> NodeSeen:
    what = Seen(devices=devices, unread=unread, unreadable=unreadable)
    return NodeSeen(name="n1", uid=uid, version="1", vendors={"DCU": what})


def told(state: ClusterState, what: NodeSeen, *, silent: bool | None = None) -> int:
    """Write what the log lacks until it lacks nothing; how many events that took."""
    count = 0
    for _ in range(3):
        events = door.registration(state.nodes.get("n1"), what, "DCU", silent=silent)
        if not events:
            return count
        count += len(events)
        for record in records_of(events, after=state.position.g, node="n1"):
            apply(state, record)
    raise AssertionError("the door never comes to rest")


def health_of(state: ClusterState) -> dict[str, Health]:
    return {each.device.uuid: each.health for each in state.nodes["n1"].devices}


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.integers(0, 3), st.tuples(st.sampled_from((Health.HEALTHY, Health.UNHEALTHY)), st.integers(1, 2))
            ),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_after_each_word_the_log_has_what_the_plugin_has(words: list[tuple[dict[int, tuple[Health, int]], bool]]) -> None:
    """Whatever the order of announcements, silences and returns; and the same word again is no news."""
    state = new_cluster()
    for cards, silent in words:
        what = seen(*[dcu(number, *given) for number, given in cards.items()])
        told(state, what, silent=silent)
        assert told(state, what) == 0
        assert told(state, what, silent=silent) == 0
        expected = {
            f"DCU-{number}": Health.UNKNOWN if silent and health is Health.HEALTHY else health
            for number, (health, _) in cards.items()
        }
        if "n1" in state.nodes:
            assert health_of(state) == expected
            assert state.nodes["n1"].is_foreign("DCU") is bool(cards)
        else:
            assert not expected


def test_a_complaint_is_told_once_and_goes_with_its_cause() -> None:
    state = new_cluster()
    first, second = Unread("device 1, count", "ten", "is not a number"), Unread("device 2", "x", "is odd")
    assert told(state, seen(dcu(0), unread=(first,))) == 2
    events = door.registration(state.nodes["n1"], seen(dcu(0), unread=(first, second)), "DCU", silent=False)
    assert [each.field for each in events if isinstance(each, InputRejected)] == ["device 2"]
    assert told(state, seen(dcu(0), unread=(first, second))) == 2
    assert told(state, seen(dcu(0))) == 1
    assert state.nodes["n1"].foreign == (Foreign("DCU"),)


def test_an_announcement_that_cannot_be_read_keeps_what_was_there() -> None:
    state = new_cluster()
    told(state, seen(dcu(0), dcu(1)))
    told(state, seen(unread=(Unread("all", "?", "is nonsense"),), unreadable=True))
    assert set(health_of(state)) == {"DCU-0", "DCU-1"}
    told(state, seen())
    assert state.nodes["n1"].devices == ()


def test_a_node_of_another_uid_is_another_node() -> None:
    state = new_cluster()
    told(state, seen(dcu(0)))
    [event] = door.registration(state.nodes["n1"], seen(dcu(0), uid="node-2"), "DCU", silent=False)
    assert isinstance(event, NodeRegistered)
    assert event.node_uid == "node-2"


def test_what_the_agent_registers_is_not_looked_at() -> None:
    notes = {vendor("NVIDIA").keys.register: "[]", vendor("DCU").keys.register: ":"}
    node = Node(metadata=ObjectMeta(name="n1", uid="node-1", annotations=notes))
    known = NodeState(name="n1", uid="node-1", own=("NVIDIA",))
    found = door.look_at(node, VENDORS, known)
    assert found is not None
    assert list(found.vendors) == ["DCU"]
    assert door.registration(known, NodeSeen(name="n1", uid="node-1", version="1"), "NVIDIA", silent=False) == []


def test_a_card_in_mig_mode_needs_the_nodes_own_agent() -> None:
    rows = '[{"id":"a","count":1,"mode":"mig","health":true},{"id":"b","count":1,"mode":"hami-core","health":true}]'
    node = Node(metadata=ObjectMeta(name="n1", uid="node-1", annotations={vendor("NVIDIA").keys.register: rows}))
    found = door.look_at(node, VENDORS, None)
    assert found is not None
    said = found.vendors["NVIDIA"]
    assert ([each.uuid for each in said.devices], [each.value for each in said.unread]) == (["b"], ["a"])
    assert not said.unreadable


def test_a_node_without_plugins_is_none_of_the_doors_business() -> None:
    node = Node(metadata=ObjectMeta(name="n1", annotations={MUTEX: "x"}), status=NodeStatus(capacity={"cpu": "8"}))
    assert door.look_at(node, VENDORS, None) is None


# --- handshake texts ---


@pytest.mark.parametrize(
    ("text", "report", "wants"),
    [
        (None, False, True),
        ("", False, True),
        ("Reported_2026.01.01 00:00:00", True, True),
        ("Reported 2026-01-01 00:00:00.1 +0000 UTC", True, True),
        ("Deleted_2026.01.01 00:00:00", False, True),
        ("Requesting_2026-01-01 00:00:00", False, False),
        ("Requesting", False, False),
    ],
)
def test_whose_word_a_handshake_is(text: str | None, report: bool, wants: bool) -> None:
    assert (door.is_report(text), door.wants_answer(text)) == (report, wants)


def test_the_question_is_written_as_hami_writes_it() -> None:
    assert door.requesting(1_767_225_600_000) == "Requesting_2026-01-01 00:00:00"


@pytest.mark.parametrize("text", ["Requesting", "Requesting_", "Requesting_2031-13-45 99:00:00", "xRequesting_now"])
def test_a_question_without_a_time_is_named(text: str) -> None:
    keys = vendor("DCU").keys
    node = Node(metadata=ObjectMeta(name="n1", annotations={keys.register: "a,1,1,1,m,0,true:", keys.handshake: text}))
    found = door.look_at(node, VENDORS, None)
    assert found is not None
    assert [each.field for each in found.vendors["DCU"].unread] == [keys.handshake]


# --- locks ---


def test_a_lock_names_its_pod_where_the_vendor_wants_that() -> None:
    at = 1_767_225_600_000
    assert door.lock_text(vendor("DCU"), at, OWNER) == "2026-01-01T00:00:00Z,default,p1"
    assert door.lock_text(vendor("MLU"), at, OWNER) == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("t,ns,pod", ("ns", "pod")),
        ("t", None),
        ("", None),
        ("t,ns", None),
        ("t,,pod", None),
        ("t,ns,", None),
        ("t,a,b,c", None),
    ],
)
def test_whom_a_lock_names(text: str, owner: tuple[str, str] | None) -> None:
    assert door.lock_owner(text) == owner


# --- serving ---

NODE = NodeState(
    name="n1",
    devices=(DeviceState(device=dcu(0)), DeviceState(device=a_device("GPU-a"))),
    own=("NVIDIA",),
    foreign=(Foreign("DCU"), Foreign("Mthreads")),
)
HELD = Allocation(
    reservation=a_reservation(
        "r1",
        a_container(a_share("DCU-0", vendor="DCU"), name="first"),
        a_container(name="bare"),
        a_container(a_share("DCU-0", vendor="DCU"), name="second"),
        a_container(a_share("GPU-a"), name="ours"),
    ),
    phase=Phase.BOUND,
)


def pod(phase: str = "", waiting: tuple[int, ...] | None = None, *, admitted: bool = False) -> PodFacts:
    return PodFacts(uid="u1", namespace="default", name="p1", bind_phase=phase, waiting=waiting, admitted=admitted)


@pytest.mark.parametrize(
    ("facts", "locked", "released", "expected"),
    [
        (pod("allocating", (0, 2)), True, False, []),
        (pod("success", ()), True, False, []),
        (pod("failed", (0, 2)), True, False, []),
        (pod("success", ()), True, True, ["first", "second"]),
        (pod("allocating", (0, 2)), True, True, ["first", "second"]),
        (pod("failed", (0, 2)), True, True, ["failed"]),
        (pod("failed", (0, 2), admitted=True), True, True, ["first", "second"]),
        (pod("allocating", (0, 2), admitted=True), True, False, ["first", "second"]),
        (pod("allocating", (0, 2)), False, False, []),
        (pod("allocating", (2,)), False, False, ["first"]),
        (pod("allocating", ()), False, False, ["first", "second"]),
        (pod("success", ()), False, False, ["first", "second"]),
        (pod("failed", (0, 2)), False, False, []),
    ],
)
def test_what_its_plugins_have_done_for_a_pod(facts: PodFacts, locked: bool, released: bool, expected: list[str]) -> None:
    events = door.served(HELD, NODE, facts, locked=locked, released=released)
    found = [each.container if isinstance(each, AllocationPrepared) else "failed" for each in events]
    assert found == expected
    assert all(isinstance(each, AllocationPrepared | AllocationFailed) for each in events)


def test_a_container_is_served_once() -> None:
    held = Allocation(reservation=HELD.reservation, phase=Phase.BOUND, prepared=frozenset({"first"}))
    [event] = door.served(held, NODE, pod("success"), locked=True, released=True)
    assert isinstance(event, AllocationPrepared)
    assert event.container == "second"


def test_only_vendors_of_the_door_need_their_lock() -> None:
    assert list(door.lock_keys(HELD, NODE, VENDORS)) == [MUTEX]
    assert door.lock_keys(HELD, NodeState(name="n1", own=("NVIDIA", "DCU")), VENDORS) == {}
    assert door.lock_keys(HELD, NodeState(name="n1", foreign=(Foreign("Mthreads"),)), VENDORS) == {}
    assert door.lock_keys(HELD, None, VENDORS) == {}


def test_health_says_who_decided() -> None:
    state = new_cluster()
    told(state, seen(dcu(0)))
    events = door.registration(state.nodes["n1"], seen(dcu(0)), "DCU", silent=True)
    [changed] = [each for each in events if isinstance(each, DeviceHealthChanged)]
    assert (changed.was, changed.now, changed.actor, changed.reason) == (
        Health.HEALTHY,
        Health.UNKNOWN,
        door.ACTOR,
        door.SILENT,
    )
