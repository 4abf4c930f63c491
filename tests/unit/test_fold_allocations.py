"""What allocations hold: from reservation to the one terminal event, per device and per namespace."""

import pytest

from hami.domain.allocation import Allocation, Phase
from hami.domain.cluster import NamespaceQuota, QuotaLimit
from hami.domain.device import DeviceUsage
from hami.domain.request import ContainerKind
from hami.events.catalog.device import MigApplyFailed, MigInstanceCreated, MigInstanceDestroyed
from hami.events.catalog.governance import QuotaChanged
from hami.events.catalog.node import NodeLost
from hami.events.catalog.union import Event
from hami.projections.folds.allocations import RETIRED_FOR_MS
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.projections.folds.state import ClusterState
from tests.support.builders import (
    a_bound,
    a_container,
    a_device,
    a_failed,
    a_lapsed,
    a_mig_slice,
    a_node_registered,
    a_prepared,
    a_released,
    a_reservation,
    a_reserved,
    a_share,
    a_shrunk,
    records_of,
)

ONE = a_reservation("r1", a_container(a_share("GPU-a", 1000, 10)))
NODE = a_node_registered(a_device("GPU-a"), a_device("GPU-b"))


def after(*events: Event, onto: ClusterState | None = None, every_ms: int = 10) -> ClusterState:
    state = onto or new_cluster()
    for record in records_of(events, after=state.position.g, every_ms=every_ms, versions=dict(state.versions)):
        apply(state, record)
    return state


def used(state: ClusterState, uuid: str = "GPU-a") -> DeviceUsage:
    return next(each.used for each in state.nodes["n1"].devices if each.device.uuid == uuid)


def only(state: ClusterState) -> Allocation:
    return next(iter(state.allocations.values()))


def kinds(state: ClusterState) -> list[str]:
    return [each.kind for each in state.drain_oddities()]


def holds_nothing(state: ClusterState) -> bool:
    return not (state.allocations or state.by_owner or state.held or state.quota_used)


@pytest.mark.parametrize(
    "way",
    [
        (a_released(ONE),),
        (a_lapsed(ONE),),
        (a_failed(ONE),),
        (a_bound(ONE), a_released(ONE)),
        (a_bound(ONE), a_failed(ONE)),
        (a_bound(ONE), a_prepared(ONE), a_released(ONE)),
        (a_bound(ONE), a_prepared(ONE), a_failed(ONE)),
        (a_bound(ONE), a_shrunk(ONE), a_prepared(ONE), a_released(ONE)),
    ],
)
def test_every_way_to_an_end_gives_everything_back_once(way: tuple[Event, ...]) -> None:
    state = after(NODE, a_reserved(ONE))
    assert used(state) == DeviceUsage(1, 1000, 10)
    assert state.quota_used == {"default": {"NVIDIA": (1000, 10)}}
    assert snapshot(state).allocation_of("u1") == Allocation(reservation=ONE)
    after(*way, onto=state)
    assert used(state) == DeviceUsage()
    assert holds_nothing(state)
    assert kinds(state) == []


@pytest.mark.parametrize("second", [a_released(ONE), a_lapsed(ONE), a_failed(ONE)])
def test_a_second_end_is_reported_and_gives_nothing_back_again(second: Event) -> None:
    state = after(NODE, a_reserved(a_reservation("r2", pod="u2")), a_reserved(ONE), a_released(ONE), second)
    assert used(state) == DeviceUsage(1, 1000, 10)
    assert state.quota_used == {"default": {"NVIDIA": (1000, 10)}}
    assert kinds(state) == ["not_live"]
    assert state.odd == {"not_live": 1}


def test_an_edge_that_does_not_exist_is_reported_and_not_applied() -> None:
    state = after(NODE, a_reserved(ONE), a_bound(ONE), a_lapsed(ONE), a_bound(ONE))
    assert only(state).phase is Phase.BOUND
    assert used(state) == DeviceUsage(1, 1000, 10)
    assert kinds(state) == ["illegal_edge", "illegal_edge"]


def test_reserving_the_same_allocation_twice_counts_once() -> None:
    state = after(NODE, a_reserved(ONE), a_reserved(ONE))
    assert used(state) == DeviceUsage(1, 1000, 10)
    assert kinds(state) == ["reserved_twice"]


def test_an_owner_with_two_allocations_counts_for_both_until_each_ends() -> None:
    two = a_reservation("r2", a_container(a_share("GPU-b", 500, 5)))
    state = after(NODE, a_reserved(ONE), a_reserved(two), a_released(ONE))
    assert snapshot(state).allocation_of("u1") == Allocation(reservation=two)
    assert (used(state), used(state, "GPU-b")) == (DeviceUsage(), DeviceUsage(1, 500, 5))
    assert kinds(state) == ["owner_has_two"]


def test_prepared_once_every_container_with_devices_is() -> None:
    pod = a_reservation(
        "r1", a_container(a_share(), name="a"), a_container(name="plain"), a_container(a_share("GPU-b"), name="b")
    )
    state = after(NODE, a_reserved(pod), a_bound(pod), a_prepared(pod, "a"))
    assert only(state).phase is Phase.BOUND
    after(a_prepared(pod, "b"), a_prepared(pod, "b"), onto=state)
    assert only(state).phase is Phase.PREPARED
    assert only(state).prepared == {"a", "b"}
    assert kinds(state) == []


def test_a_container_prepared_before_bound_is_remembered() -> None:
    state = after(NODE, a_reserved(ONE), a_prepared(ONE))
    assert only(state).phase is Phase.RESERVED
    after(a_bound(ONE), onto=state)
    assert only(state).phase is Phase.PREPARED


def test_a_container_served_otherwise_is_reported() -> None:
    state = after(NODE, a_reserved(ONE), a_bound(ONE), a_prepared(ONE, difference="GPU-b instead of GPU-a"))
    assert kinds(state) == ["served_differs"]


def test_a_sidecar_stays_and_a_finished_init_container_gives_back() -> None:
    pod = a_reservation(
        "r1",
        a_container(a_share("GPU-a", 2000, 0), name="agent", kind=ContainerKind.SIDECAR),
        a_container(a_share("GPU-a", 5000, 0), name="warm", kind=ContainerKind.INIT),
        a_container(a_share("GPU-a", 4000, 0), name="serve"),
    )
    state = after(NODE, a_reserved(pod))
    assert (used(state).memory, state.quota_used["default"]["NVIDIA"]) == (7000, (7000, 0))
    after(a_shrunk(pod), onto=state)
    assert (used(state).memory, state.quota_used["default"]["NVIDIA"]) == (6000, (6000, 0))
    after(a_shrunk(pod), a_bound(pod), a_released(pod), onto=state)
    assert used(state) == DeviceUsage()
    assert holds_nothing(state)


def test_an_init_container_alone_on_a_device_leaves_it_when_done() -> None:
    pod = a_reservation(
        "r1",
        a_container(a_share("GPU-a", 5000, 50), name="warm", kind=ContainerKind.INIT),
        a_container(a_share("GPU-b", 100, 1), name="serve"),
    )
    state = after(NODE, a_reserved(pod), a_shrunk(pod))
    assert (used(state, "GPU-a"), used(state, "GPU-b")) == (DeviceUsage(), DeviceUsage(1, 100, 1))
    assert state.quota_used == {"default": {"NVIDIA": (100, 1)}}


def test_quota_usage_sums_over_cards_and_keeps_vendors_and_namespaces_apart() -> None:
    mixed = a_reservation(
        "r2",
        a_container(a_share("GPU-a", 2048, 20), a_share("GPU-b", 2048, 20), a_share("NPU-a", 700, 0, vendor="Ascend")),
        pod="u2",
        namespace="team",
    )
    state = after(NODE, a_reserved(ONE), a_reserved(mixed))
    assert state.quota_used == {"default": {"NVIDIA": (1000, 10)}, "team": {"NVIDIA": (4096, 40), "Ascend": (700, 0)}}


def test_a_reader_may_keep_a_namespaces_usage() -> None:
    state = after(NODE, a_reserved(ONE))
    kept = snapshot(state).quota_used["default"]
    after(a_released(ONE), onto=state)
    assert kept == {"NVIDIA": (1000, 10)}


def test_limits_are_what_the_last_change_said() -> None:
    some = NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 4096, "q"),))
    state = after(QuotaChanged(namespace="team", quota=some))
    assert snapshot(state).quotas["team"].limit_of("nvidia.com/gpumem") == 4096
    after(QuotaChanged(namespace="team", quota=NamespaceQuota()), onto=state)
    assert state.quotas == {}


def test_an_allocation_counts_though_nobody_knows_its_node() -> None:
    state = after(a_reserved(ONE))
    assert state.quota_used == {"default": {"NVIDIA": (1000, 10)}}
    after(NODE, onto=state)
    assert used(state) == DeviceUsage(1, 1000, 10)


def test_a_lost_node_and_a_missed_deletion_hold_until_released() -> None:
    ghost = a_reservation("r-ghost", a_container(a_share("GPU-a"), a_share("GPU-b")), pod="u-ghost")
    state = after(NODE, a_reserved(ghost), a_bound(ghost), NodeLost())
    assert (used(state, "GPU-a").slots, used(state, "GPU-b").slots) == (1, 1)
    after(a_released(ghost, "pod_absent"), onto=state)
    assert (used(state, "GPU-a").slots, used(state, "GPU-b").slots) == (0, 0)
    assert holds_nothing(state)


def test_mig_slices_are_in_use_while_an_allocation_holds_them() -> None:
    planned, made = a_mig_slice("1g.5gb", 4, 1), a_mig_slice("1g.5gb", 4, 1, "MIG-1")
    pod = a_reservation("r1", a_container(a_share("GPU-a", 4864, 14, mig=planned)))
    other = a_reservation("r2", a_container(a_share("GPU-a", 4864, 14, mig=a_mig_slice("1g.5gb", 5, 1))), pod="u2")
    state = after(NODE, a_reserved(pod), a_reserved(other))
    assert list(state.nodes["n1"].devices[0].mig_in_use) == [planned, a_mig_slice("1g.5gb", 5, 1)]
    after(MigInstanceCreated(device="GPU-a", instance=made, reservation="r1"), onto=state)
    assert set(state.nodes["n1"].devices[0].mig_in_use) == {made, a_mig_slice("1g.5gb", 5, 1)}
    assert state.allocations["r1"].reservation.containers[0].shares[0].mig == made
    after(a_released(pod), MigInstanceDestroyed(device="GPU-a", instance=made), onto=state)
    assert list(state.nodes["n1"].devices[0].mig_in_use) == [a_mig_slice("1g.5gb", 5, 1)]
    assert used(state) == DeviceUsage(1, 4864, 14)


def test_why_a_node_cannot_make_an_instance_stands_with_the_allocation_until_it_can() -> None:
    planned, made = a_mig_slice("1g.5gb", 4, 1), a_mig_slice("1g.5gb", 4, 1, "MIG-1")
    pod = a_reservation("r1", a_container(a_share("GPU-a", 4864, 14, mig=planned)))
    failed = MigApplyFailed(device="GPU-a", instance=planned, error="Insufficient Resources", reservation="r1")
    state = after(NODE, a_reserved(pod), failed)
    assert state.allocations["r1"].trouble == "Insufficient Resources"
    after(MigApplyFailed(device="GPU-a", instance=planned, error="no", reservation="r2"), onto=state)
    assert "r2" not in state.allocations
    after(MigInstanceCreated(device="GPU-a", instance=made, reservation="r1"), onto=state)
    assert state.allocations["r1"].trouble == ""


def test_a_slice_shared_by_init_and_app_container_is_in_use_once() -> None:
    slice_ = a_mig_slice()
    pod = a_reservation(
        "r1",
        a_container(a_share(mig=slice_), name="warm", kind=ContainerKind.INIT),
        a_container(a_share(mig=slice_), name="serve"),
    )
    state = after(NODE, a_reserved(pod))
    assert state.nodes["n1"].devices[0].mig_in_use == (slice_,)


def test_versions_are_the_stores_own() -> None:
    state = after(NODE, a_reserved(ONE), a_bound(ONE))
    assert dict(snapshot(state).versions) == {"node/n1": 3, "pod/u1": 2, "quota/default": 2}


def test_a_released_pods_version_is_forgotten_after_a_day_but_not_a_lapsed_ones() -> None:
    two, three = a_reservation("r2", pod="u2"), a_reservation("r3", pod="u3")
    state = after(NODE, a_reserved(ONE), a_released(ONE), a_reserved(two), a_lapsed(two), a_reserved(three))
    later = records_of([a_released(three)], after=state.position.g, every_ms=RETIRED_FOR_MS)
    apply(state, later[0])
    assert "pod/u1" not in state.versions
    assert {"pod/u2", "pod/u3"} <= set(state.versions)


def test_a_pod_that_comes_back_after_a_mistaken_release_keeps_its_version() -> None:
    two = a_reservation("r2")
    state = after(NODE, a_reserved(ONE), a_released(ONE, "pod_absent"), a_reserved(two))
    other = a_reservation("r9", pod="u9")
    for record in records_of([a_reserved(other), a_released(other)], after=state.position.g, every_ms=RETIRED_FOR_MS):
        apply(state, record)
    assert state.versions["pod/u1"] == 3


def test_a_slice_of_a_finished_init_container_is_free_again() -> None:
    first, second = a_mig_slice("1g.5gb", 0), a_mig_slice("1g.5gb", 1)
    pod = a_reservation(
        "r1",
        a_container(a_share(mig=first), name="warm", kind=ContainerKind.INIT),
        a_container(a_share(mig=second), name="serve"),
    )
    state = after(NODE, a_reserved(pod))
    assert set(state.nodes["n1"].devices[0].mig_in_use) == {first, second}
    after(a_shrunk(pod), onto=state)
    assert list(state.nodes["n1"].devices[0].mig_in_use) == [second]


def test_only_nodes_whose_devices_changed_are_handed_on() -> None:
    state = after(NODE)
    state.drain_touched()
    after(a_reserved(ONE), onto=state)
    assert state.drain_touched() == ("n1",)
    after(a_bound(ONE), a_prepared(ONE), onto=state)
    assert state.drain_touched() == ()
    after(a_released(ONE), onto=state)
    assert state.drain_touched() == ("n1",)


def test_what_another_nodes_agent_says_of_an_allocation_changes_nothing() -> None:
    planned, made = a_mig_slice(), a_mig_slice(uuid="MIG-of-mine")
    held = a_reservation("r1", a_container(a_share("GPU-a", 1000, 10, mig=planned)))
    state = after(NODE, a_reserved(held), a_bound(held))
    created = MigInstanceCreated(device="GPU-a", instance=made, reservation="r1")
    for record in records_of([(a_prepared(held), "n2"), (created, "n2")], after=state.position.g):
        apply(state, record)
    assert kinds(state) == ["other_node", "other_node"]
    [share] = only(state).reservation.containers[0].shares
    assert (only(state).phase, share.mig) == (Phase.BOUND, planned)
