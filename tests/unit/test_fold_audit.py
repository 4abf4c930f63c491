"""Timelines: each subject gets its own story, in words, with who and when."""

import pytest

from hami.domain.cluster import NamespaceQuota, QuotaLimit
from hami.domain.device import Health
from hami.events.catalog.device import (
    DeviceCordoned,
    DeviceHealthChanged,
    FaultKind,
    FaultObserved,
    MigApplyFailed,
    MigInstanceCreated,
)
from hami.events.catalog.governance import LockReclaimed, LockRefused, LockWaitTimedOut, PlacementRefused, QuotaChanged
from hami.events.catalog.journal import GapAccepted, InputRejected
from hami.events.catalog.node import NodeLost, NodeRegistered
from hami.events.catalog.union import EVENT_TYPES, Event
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.folds.audit import About, timeline
from hami.projections.folds.words import words_of
from tests.support.builders import (
    FIRST_MS,
    a_bound,
    a_container,
    a_device,
    a_mig_slice,
    a_node_registered,
    a_prepared,
    a_released,
    a_reservation,
    a_reserved,
    a_share,
    an_example_of,
    records_of,
)

MINE = a_reservation("r1", a_container(a_share("GPU-a", 4096, 30)), pod="u1", name="web")
OTHER = a_reservation("r2", a_container(a_share("GPU-b", 100, 1)), pod="u2", node="n2", name="db")
REFUSED = PlacementRefused(
    owner_uid="u1", namespace="default", name="web", request="1 x NVIDIA", counts={"CardInsufficientMemory": 2}, nodes_seen=2
)
FAULT = FaultObserved(device="GPU-a", kind=FaultKind.XID, code=79)
SICK = DeviceHealthChanged(device="GPU-a", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="XID 79")
LOG: tuple[Record, ...] = records_of(
    [
        (a_node_registered(a_device("GPU-a")), "n1"),
        (a_node_registered(a_device("GPU-b")), "n2"),
        (REFUSED, ""),
        (LockReclaimed(lock="n1", owner="u1", why="pod deleted"), ""),
        a_reserved(MINE),
        a_reserved(OTHER),
        (a_bound(MINE), "n1"),
        (a_bound(OTHER), "n2"),
        (a_prepared(MINE), "n1"),
        (FAULT, "n1"),
        (SICK, "n1"),
        (DeviceCordoned(device="GPU-a", actor="ana", reason="replace card"), "n1"),
        (a_node_registered(a_device("GPU-a")), "n1"),
        (a_released(MINE, "pod_failed"), "n1"),
        (a_node_registered(), "n1"),
        (NodeLost(), "n1"),
    ]
)


def story(**about: str) -> list[str]:
    return [entry.what for entry in timeline(LOG, About(**about))]


def test_a_pods_story_from_refusal_to_release() -> None:
    expected = [
        "no place for default/web (1 x NVIDIA) among 2 nodes: CardInsufficientMemory on 2",
        "lock n1 taken back from u1: pod deleted",
        "reserved r1 for default/web on n1: main: 4096 MiB + 30 % of GPU-a",
        "bound r1",
        "prepared r1, container main",
        "released r1: pod_failed",
    ]
    assert story(pod="u1") == expected
    assert story(pod="default/web") == expected


def test_a_devices_story_tells_coming_faults_users_and_going() -> None:
    assert story(device="GPU-a") == [
        "registered 1 NVIDIA devices: GPU-a",
        "reserved r1 for default/web on n1: main: 4096 MiB + 30 % of GPU-a",
        "bound r1",
        "prepared r1, container main",
        "GPU-a: saw xid 79",
        "GPU-a: healthy -> unhealthy: XID 79",
        "GPU-a: cordoned: replace card",
        "released r1: pod_failed",
        "registered 0 NVIDIA devices",
    ]


def test_a_nodes_story_is_what_its_envelopes_and_locks_say() -> None:
    assert [entry.position.g for entry in timeline(LOG, About(node="n2"))] == [2, 6, 8]
    assert story(node="n1")[-1] == "lost: lease expired"
    assert "lock n1 taken back from u1: pod deleted" in story(node="n1")


def test_entries_say_when_and_by_whom() -> None:
    entries = {entry.what: entry for entry in timeline(LOG, About(device="GPU-a"))}
    assert entries["GPU-a: cordoned: replace card"].by == "ana"
    fault = entries["GPU-a: healthy -> unhealthy: XID 79"]
    assert (fault.by, fault.recorded_ms, fault.occurred_ms, fault.node) == ("test", FIRST_MS + 110, FIRST_MS, "n1")


def test_locks_and_mig_of_a_pod_belong_to_its_story() -> None:
    instance = a_mig_slice("1g.5gb", 2)
    log = records_of(
        [
            a_reserved(MINE),
            MigApplyFailed(device="GPU-a", instance=instance, error="busy", reservation="r1"),
            MigInstanceCreated(device="GPU-a", instance=instance, reservation="r1"),
            MigInstanceCreated(device="GPU-a", instance=instance, reservation="r9"),
            LockWaitTimedOut(lock="n1", waiter="u1", holder="u2", waited_ms=5),
            LockRefused(lock="n1", by="u1", why="not held"),
            LockRefused(lock="n1", by="u2", why="not held"),
        ]
    )
    assert [entry.what for entry in timeline(log, About(pod="u1"))] == [
        "reserved r1 for default/web on n1: main: 4096 MiB + 30 % of GPU-a",
        "GPU-a: could not create (MIG 1g.5gb at 2): busy",
        "GPU-a: created (MIG 1g.5gb at 2) for r1",
        "lock n1: u1 waited 5 ms for u2",
        "lock n1: refused u1: not held",
    ]


def test_what_cannot_be_read_stays_in_the_story_its_envelope_names() -> None:
    log = records_of([Undecodable("hami.device.health_changed", "bad"), Unknown("hami.future", 3)])
    assert [entry.what for entry in timeline(log, About(node="n1"))] == [
        "unreadable event hami.device.health_changed: bad",
        "unknown event hami.future (schema 3)",
    ]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_has_words(kind: type[Event]) -> None:
    words = words_of(an_example_of(kind))
    assert words
    assert "{" not in words
    assert "<" not in words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (NodeRegistered(vendor="NVIDIA", devices=()), "registered 0 NVIDIA devices"),
        (
            QuotaChanged(namespace="a", quota=NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 8, "q"),))),
            "quota of a: nvidia.com/gpumem=8",
        ),
        (QuotaChanged(namespace="a", quota=NamespaceQuota()), "quota of a: none"),
        (
            GapAccepted(producer="agent-n1", epoch=2, first_seq=3, last_seq=5, why="outbox lost"),
            "events 3..5 of agent-n1 (epoch 2) are lost: outbox lost",
        ),
        (
            InputRejected(source="node spark-3", field="hami.io/node-handshake", value="x", why="no time"),
            "rejected input from node spark-3: hami.io/node-handshake=x: no time",
        ),
    ],
)
def test_words_name_what_the_event_holds(event: Event, words: str) -> None:
    assert words_of(event) == words
