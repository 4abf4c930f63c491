"""Allocations move only along their table; usage peaks as Kubernetes counts."""

import pytest

from hami.domain.allocation import (
    TERMINAL,
    TRANSITIONS,
    Allocation,
    ContainerShares,
    DeviceShare,
    Phase,
    PodOwner,
    Reservation,
    usage_of,
)
from hami.domain.device import DeviceUsage
from hami.domain.errors import IllegalTransition
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, EpochMs, MiB


def container(name: str, kind: ContainerKind, memory: int, cores: int = 0, uuid: str = "GPU-a") -> ContainerShares:
    share = DeviceShare(vendor="NVIDIA", uuid=uuid, memory=MiB(memory), cores=CorePercent(cores))
    return ContainerShares(name=name, kind=kind, shares=(share,))


def allocation() -> Allocation:
    return Allocation(
        reservation=Reservation(
            id="r1",
            owner=PodOwner("u1", "default", "p1"),
            node="n1",
            containers=(),
            scheduler="s",
            deadline_ms=EpochMs(0),
        )
    )


@pytest.mark.parametrize("source", list(Phase))
@pytest.mark.parametrize("target", list(Phase))
def test_every_edge_of_the_table_and_no_other_can_be_taken(source: Phase, target: Phase) -> None:
    start = Allocation(reservation=allocation().reservation, phase=source)
    if target in TRANSITIONS[source]:
        assert start.moved_to(target).phase is target
    else:
        with pytest.raises(IllegalTransition, match=f"{source} -> {target}"):
            start.moved_to(target)


def test_terminal_phases_lead_nowhere_and_all_others_somewhere() -> None:
    assert {phase for phase in Phase if not TRANSITIONS[phase]} == set(TERMINAL)


def test_sidecars_count_beside_later_init_containers_and_beside_apps() -> None:
    containers = (
        container("agent", ContainerKind.SIDECAR, 2000),
        container("warm", ContainerKind.INIT, 5000),
        container("serve", ContainerKind.APP, 4000),
    )
    assert usage_of(containers)["GPU-a"].memory == 7000
    assert usage_of(containers, init_done=True)["GPU-a"].memory == 6000


def test_an_init_container_before_a_sidecar_runs_without_it() -> None:
    containers = (
        container("warm", ContainerKind.INIT, 5000),
        container("agent", ContainerKind.SIDECAR, 2000),
        container("serve", ContainerKind.APP, 4000),
    )
    assert usage_of(containers)["GPU-a"] == DeviceUsage(slots=2, memory=6000, cores=0)


def test_apps_add_up_and_init_containers_do_not() -> None:
    containers = (
        container("i1", ContainerKind.INIT, 3000, 10),
        container("i2", ContainerKind.INIT, 1000, 90),
        container("a1", ContainerKind.APP, 1000, 20),
        container("a2", ContainerKind.APP, 1000, 20),
    )
    assert usage_of(containers)["GPU-a"] == DeviceUsage(slots=2, memory=3000, cores=90)
