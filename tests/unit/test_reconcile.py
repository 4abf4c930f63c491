"""The API's pods against the log's allocations."""

from typing import Any

import msgspec
import pytest

from hami.domain.allocation import Allocation, ContainerShares, DeviceShare, Phase, PodOwner, Reservation, usage_of
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, EpochMs, MiB
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.journal import Corrected
from hami.scheduler.decide.reconcile import Action, PodFacts, reconcile
from tests.support.clusters import VENDORS

NAMED = {"reservation": "r", "owner_uid": "u", "namespace": "team"}


def share(memory: int) -> DeviceShare:
    return DeviceShare(vendor="NVIDIA", uuid="GPU-a", memory=MiB(memory), cores=CorePercent(0))


def allocation(phase: Phase, deadline: int = 1000) -> Allocation:
    containers = (
        ContainerShares(name="i", kind=ContainerKind.INIT, shares=(share(5000),)),
        ContainerShares(name="c", kind=ContainerKind.APP, shares=(share(1000),)),
    )
    owner = PodOwner("u", "team", "p")
    reservation = Reservation(
        id="r", owner=owner, node="n1", containers=containers, scheduler="s", deadline_ms=EpochMs(deadline)
    )
    return Allocation(reservation=reservation, phase=phase)


def run(held: Allocation | None, pod: PodFacts | None, now: int = 0) -> list[Action]:
    snapshot = ClusterSnapshot() if held is None else ClusterSnapshot(allocations={"r": held}, by_owner={"u": "r"})
    return reconcile(snapshot, {} if pod is None else {pod.uid: pod}, VENDORS, now_ms=now)


def pod(**facts: Any) -> PodFacts:
    return PodFacts(**{"uid": "u", "namespace": "team", "name": "p", **facts})


def test_a_bound_pod_on_its_node_needs_nothing() -> None:
    assert run(allocation(Phase.BOUND), pod(node="n1")) == []
    assert run(allocation(Phase.RESERVED), pod()) == []


@pytest.mark.parametrize("phase", [Phase.BOUND, Phase.PREPARED])
def test_a_pod_that_is_gone_gives_its_devices_back(phase: Phase) -> None:
    assert run(allocation(phase), None) == [AllocationReleased(**NAMED, reason="pod_absent")]


@pytest.mark.parametrize(("ended", "reason"), [("Succeeded", "pod_succeeded"), ("Failed", "pod_failed")])
def test_a_finished_pod_gives_its_devices_back(ended: str, reason: str) -> None:
    assert run(allocation(Phase.PREPARED), pod(node="n1", phase=ended)) == [AllocationReleased(**NAMED, reason=reason)]


def test_a_terminating_pod_that_still_runs_keeps_them() -> None:
    assert run(allocation(Phase.PREPARED), pod(node="n1", phase="Running")) == []


def test_a_reservation_lapses_after_its_deadline_and_not_before() -> None:
    for there in (None, pod()):
        assert run(allocation(Phase.RESERVED), there, now=1000) == []
        assert run(allocation(Phase.RESERVED), there, now=1001) == [AllocationLapsed(**NAMED, reason="deadline")]


def test_a_late_binding_that_landed_is_adopted_even_past_the_deadline() -> None:
    (event,) = run(allocation(Phase.RESERVED), pod(node="n1"), now=5000)
    assert isinstance(event, AllocationBound)
    assert event.adopted


def test_a_pod_on_another_node_fails_the_reservation_and_says_who_said_what() -> None:
    corrected, failed = run(allocation(Phase.BOUND), pod(node="n2"))
    assert corrected == Corrected(what="pod team/p", fold_said="n1", api_said="n2")
    assert isinstance(failed, AllocationFailed)


def test_a_pod_past_its_init_containers_shrinks_once() -> None:
    held = allocation(Phase.PREPARED)
    assert run(held, pod(node="n1", init_done=True)) == [AllocationShrunk(**NAMED)]
    assert run(msgspec.structs.replace(held, init_done=True), pod(node="n1", init_done=True)) == []


def test_a_running_pod_that_the_log_does_not_know_is_adopted_from_its_annotations() -> None:
    facts = pod(
        node="n1",
        containers=(("i", ContainerKind.INIT), ("c", ContainerKind.APP)),
        annotations={"hami.io/vgpu-devices-allocated": ";GPU-a,NVIDIA,3000,20:;", "hami.io/reservation": "old"},
    )
    reserved, bound = run(None, facts)
    assert isinstance(reserved, AllocationReserved)
    assert isinstance(bound, AllocationBound)
    assert reserved.reservation.id == "old"
    assert [each.name for each in reserved.reservation.containers if each.shares] == ["c"]
    assert usage_of(reserved.reservation.containers)["GPU-a"].memory == 3000


def test_unreadable_annotations_of_one_pod_cost_only_that_pod() -> None:
    bad = pod(uid="a", node="n1", annotations={"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,much,0:;"})
    good = pod(uid="b", node="n1", annotations={"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:;"})
    events = reconcile(ClusterSnapshot(), {"a": bad, "b": good}, VENDORS, now_ms=0)
    assert [type(event) for event in events] == [Corrected, AllocationReserved, AllocationBound]
    assert isinstance(events[0], Corrected)
    assert "container 0" in events[0].api_said
    assert "much" in events[0].api_said


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,-40960,0:;"}, "not negative"),
        ({"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,-100:;"}, "not negative"),
        ({"hami.io/vgpu-devices-allocated": ",NVIDIA,1,0:;"}, "needs a uuid"),
        ({"hami.io/vgpu-devices-allocated": ";" * 200_000 + "GPU-a,NVIDIA,1,0:;"}, "containers more than the pod has"),
        ({"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:" * 5000 + ";"}, "more than 4096 devices"),
        (
            {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:;", VENDORS[0].keys.mig: '[{"x":' + "[" * 100_000},
            "recursion",
        ),
    ],
    ids=["negative memory", "negative cores", "no uuid", "containers without end", "devices without end", "nesting"],
)
def test_a_tenant_gains_nothing_by_writing_an_allocation_himself(written: dict[str, str], why: str) -> None:
    forged = pod(uid="a", node="n1", containers=(("c", ContainerKind.APP),), annotations=written)
    [event] = run(None, forged)
    assert isinstance(event, Corrected)
    assert why in event.api_said


def test_a_pod_that_asks_for_nothing_was_given_nothing() -> None:
    forged = pod(node="n1", asks=False, annotations={"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,40960,0:;"})
    [event] = run(None, forged)
    assert isinstance(event, Corrected)
    assert "asks for no device" in event.api_said


def test_the_id_of_another_pods_reservation_is_not_believed() -> None:
    held = allocation(Phase.RESERVED)
    written = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:;", "hami.io/reservation": "r"}
    thief = pod(uid="thief", name="q", node="n1", annotations=written)
    snapshot = ClusterSnapshot(allocations={"r": held}, by_owner={"u": "r"})
    events = reconcile(snapshot, {"u": pod(), "thief": thief}, VENDORS, now_ms=0)
    assert [type(each) for each in events] == [AllocationReserved, AllocationBound]
    assert {each.reservation.id if isinstance(each, AllocationReserved) else each.reservation for each in events} == {  # type: ignore[union-attr]  # narrowed above
        "adopted-thief"
    }


def test_a_pod_without_devices_is_none_of_our_business() -> None:
    assert run(None, pod(node="n1")) == []
    assert run(None, pod(node="n1", annotations={"hami.io/vgpu-devices-allocated": ";;"})) == []


def test_a_pod_that_its_plugin_gave_up_is_adopted_only_once_it_runs() -> None:
    """Its annotations still tell what it was to get."""
    notes = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1000,10:;"}
    waits = pod(node="n1", annotations=notes, containers=(("c", ContainerKind.APP),), bind_phase="failed")
    assert run(None, waits) == []
    runs = msgspec.structs.replace(waits, admitted=True, phase="Running")
    assert [type(each) for each in run(None, runs)] == [AllocationReserved, AllocationBound]
