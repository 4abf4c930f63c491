"""Placement in small worlds; agreement with HAMi on a hundred nodes."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.domain.allocation import Allocation, ContainerShares, DeviceShare, Phase, PodOwner, Reservation
from hami.domain.cluster import ClusterSnapshot, Liveness, NodeState
from hami.domain.device import Device, DeviceState, DeviceUsage, Health
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, EpochMs, MiB, Slots
from hami.scheduler.decide.place import Placement, Unschedulable, place, score_all
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy, policy_of
from tests.support.clusters import VENDORS

DATA = Path(__file__).parent.parent / "data" / "hami-v2.10.0"


def card(uuid: str, used: DeviceUsage | None = None, **changes: Any) -> DeviceState:
    device = Device(
        uuid=uuid, vendor="NVIDIA", model="NVIDIA A10", memory=MiB(24_000), cores=CorePercent(100), slots=Slots(10), **changes
    )
    return DeviceState(device=device, used=used or DeviceUsage())


def pod(*memory: int, count: int = 1, cores: int = 0, uid: str = "u") -> PodRequest:
    containers = tuple(
        ContainerRequest(
            name=f"c{number}",
            kind=ContainerKind.APP,
            requests=(DeviceRequest(vendor="NVIDIA", count=count, memory=MiB(each), cores=CorePercent(cores)),),
        )
        for number, each in enumerate(memory)
    )
    return PodRequest(uid=uid, namespace="team", name="p", containers=containers)


def world(*nodes: NodeState) -> tuple[ClusterSnapshot, Planes]:
    snapshot = ClusterSnapshot(nodes={node.name: node for node in nodes})
    planes = Planes(VENDORS)
    planes.sync(snapshot)
    return snapshot, planes


def test_equal_nodes_are_taken_in_order_of_name() -> None:
    snapshot, planes = world(*(NodeState(name=name, devices=(card(f"GPU-{name}"),)) for name in ("b", "c", "a")))
    result = place(snapshot, planes, pod(1000), ["c", "b", "a"], SchedulingPolicy())
    assert isinstance(result, Placement)
    assert (result.node, result.fitting, result.failed) == ("a", 3, {})


def test_binpack_takes_the_fullest_and_spread_the_emptiest() -> None:
    busy = NodeState(name="busy", devices=(card("GPU-1", DeviceUsage(1, 8000, 10)),))
    snapshot, planes = world(busy, NodeState(name="idle", devices=(card("GPU-2"),)))
    for policy, node in (("binpack", "busy"), ("spread", "idle")):
        result = place(snapshot, planes, pod(1000), ["busy", "idle"], SchedulingPolicy(node=policy))
        assert isinstance(result, Placement)
        assert result.node == node


def test_every_refused_node_has_its_reason() -> None:
    full = NodeState(name="full", devices=(card("GPU-1", DeviceUsage(1, 24_000, 10)), card("GPU-2")))
    lost = NodeState(name="lost", liveness=Liveness.LOST, devices=(card("GPU-3"),))
    spoiled = NodeState(name="spoiled", quarantine="what", devices=(card("GPU-4"),))
    sick = NodeState(name="sick", devices=(msgspec.structs.replace(card("GPU-5"), health=Health.UNKNOWN),))
    snapshot, planes = world(full, lost, spoiled, sick, NodeState(name="bare"))
    names = ["full", "lost", "spoiled", "sick", "bare", "ghost"]
    result = place(snapshot, planes, pod(20_000, count=2), names, SchedulingPolicy())
    assert isinstance(result, Unschedulable)
    assert result.reasons == {
        "full": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
        "lost": "node lost: its agent's lease expired",
        "spoiled": "node quarantined: an event of it could not be read",
        "sick": "NodeInsufficientDevice",
        "bare": "node unregistered",
        "ghost": "node unregistered",
    }
    assert result.counts["node unregistered"] == 2
    assert result.counts["CardInsufficientMemory"] == 1


def test_a_pod_filtered_again_is_not_in_its_own_way() -> None:
    share = DeviceShare(vendor="NVIDIA", uuid="GPU-1", memory=MiB(20_000), cores=CorePercent(0))
    own = Allocation(
        reservation=Reservation(
            id="r",
            owner=PodOwner("u", "team", "p"),
            node="n",
            containers=(ContainerShares(name="c", kind=ContainerKind.APP, shares=(share,)),),
            scheduler="s",
            deadline_ms=EpochMs(0),
        ),
        phase=Phase.RESERVED,
    )
    snapshot, planes = world(NodeState(name="n", devices=(card("GPU-1", DeviceUsage(1, 20_000, 0)),)))
    snapshot = msgspec.structs.replace(snapshot, allocations={"r": own}, by_owner={"u": "r"})
    assert isinstance(place(snapshot, planes, pod(20_000), ["n"], SchedulingPolicy(), exclude_owner="u"), Placement)
    assert isinstance(place(snapshot, planes, pod(20_000), ["n"], SchedulingPolicy()), Unschedulable)


def test_a_node_that_fills_up_is_seen_at_once() -> None:
    snapshot, planes = world(NodeState(name="n", devices=(card("GPU-1"),)))
    assert isinstance(place(snapshot, planes, pod(20_000), ["n"], SchedulingPolicy()), Placement)
    filled = NodeState(name="n", devices=(card("GPU-1", DeviceUsage(1, 20_000, 0)),))
    snapshot = ClusterSnapshot(nodes={"n": filled})
    planes.put(filled)
    result = place(snapshot, planes, pod(20_000), ["n"], SchedulingPolicy())
    assert isinstance(result, Unschedulable)
    assert result.reasons == {"n": "1/1 CardInsufficientMemory"}
    planes.remove("n")
    assert place(ClusterSnapshot(), planes, pod(1), ["n"], SchedulingPolicy()) == Unschedulable(
        {"n": "node unregistered"}, {"node unregistered": 1}
    )


def test_many_nodes_and_many_cards_make_the_planes_grow() -> None:
    nodes = [
        NodeState(name=f"n{n}", devices=tuple(card(f"GPU-{n}-{c}", index=c) for c in range(1 + 20 * (n % 2))))
        for n in range(200)
    ]
    snapshot, planes = world(*nodes)
    result = place(snapshot, planes, pod(1000, count=21), [node.name for node in nodes], SchedulingPolicy())
    assert isinstance(result, Placement)
    assert result.fitting == 100
    assert set(result.failed.values()) == {"NodeInsufficientDevice"}


def test_absurd_numbers_of_one_node_do_not_hurt_the_others() -> None:
    absurd = msgspec.structs.replace(card("GPU-x").device, memory=MiB(2**40), numa=2**40, index=2**35)
    snapshot, planes = world(
        NodeState(name="absurd", devices=(DeviceState(device=absurd),)), NodeState(name="sane", devices=(card("GPU-1"),))
    )
    result = place(snapshot, planes, pod(2**30), ["absurd", "sane"], SchedulingPolicy())
    assert isinstance(result, Placement)
    assert (result.node, result.failed) == ("absurd", {"sane": "1/1 CardInsufficientMemory"})


def test_bad_weights_are_a_value_with_the_users_text_in_it() -> None:
    found = policy_of({"hami.io/device-scoring-weights": "slot=1,core=x,memory=1"}, SchedulingPolicy())
    assert isinstance(found, BadPolicy)
    assert '"core" weight must be an integer' in found.message


SHAPES = {
    "1x1_mem": [(1, 8192, 101, 30)],
    "1x8": [(8, 4096, 101, 10)],
    "3mixed": [(1, 8192, 101, 20), (2, 16384, 101, 30), (1, 0, 25, 10)],
    "pct50": [(1, 0, 50, 0)],
    "excl100": [(1, 0, 100, 100)],
    "unfit": [(8, 0, 95, 100)],
}


@pytest.fixture(scope="module")
def hundred() -> ClusterSnapshot:
    raw = json.loads(gzip.decompress((DATA / "large-cluster-100.json.gz").read_bytes()))
    used: dict[tuple[int, int], DeviceUsage] = {}
    for node, device, memory, cores in raw["allocs"]:
        used[node, device] = used.get((node, device), DeviceUsage()).plus(DeviceUsage(1, memory, cores))
    nodes = {}
    for number, node in enumerate(raw["nodes"]):
        devices = tuple(
            DeviceState(
                device=Device(
                    uuid=uuid,
                    vendor="NVIDIA",
                    model=model,
                    memory=MiB(memory),
                    cores=CorePercent(cores),
                    slots=Slots(slots),
                    index=at,
                    numa=numa,
                    mode="hami-core",
                ),
                health=Health.HEALTHY if healthy else Health.UNHEALTHY,
                used=used.get((number, at), DeviceUsage()),
            )
            for at, (uuid, slots, memory, cores, model, numa, healthy) in enumerate(node["devs"])
        )
        nodes[node["name"]] = NodeState(name=node["name"], devices=devices)
    return ClusterSnapshot(nodes=nodes)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hundred_loaded_nodes_are_judged_as_hami_judges_them(hundred: ClusterSnapshot, shape: str) -> None:
    recorded = json.loads(gzip.decompress((DATA / f"large-100-{shape}.json.gz").read_bytes()))
    containers = tuple(
        ContainerRequest(
            name=f"c{number}",
            kind=ContainerKind.APP,
            requests=(
                DeviceRequest(
                    vendor="NVIDIA",
                    count=count,
                    memory=MiB(memory),
                    memory_percent=None if percent == 101 else percent,
                    cores=CorePercent(cores),
                ),
            ),
        )
        for number, (count, memory, percent, cores) in enumerate(SHAPES[shape])
    )
    request = PodRequest(uid="u", namespace="d", name="p", containers=containers)
    names = list(hundred.nodes)
    scores, _, fits = score_all(hundred, VENDORS, request, names, SchedulingPolicy())
    ours = {
        name: [[[share.uuid, share.memory, share.cores] for share in each.shares] for each in found]
        for name, found in fits.items()
    }
    assert ours == {name: each[1] for name, each in recorded.items()}
    assert scores == {name: pytest.approx(each[0], rel=1e-6) for name, each in recorded.items()}
    planes = Planes(VENDORS)
    planes.sync(hundred)
    result = place(hundred, planes, request, names, SchedulingPolicy())
    if isinstance(result, Placement):
        assert scores[result.node] == max(scores.values())
    else:
        assert not recorded


def test_a_topology_of_many_cards_is_chosen_without_comparing_every_set() -> None:
    """20 out of 40 are 137 billion sets; the two islands of 20 are plain to see."""
    cards = tuple(
        card(
            f"GPU-{number}",
            index=number,
            pair_scores={f"GPU-{other}": 100 for other in range(number % 2, 40, 2) if other != number},
        )
        for number in range(40)
    )
    snapshot, planes = world(NodeState(name="big", devices=cards))
    result = place(snapshot, planes, pod(1000, count=20), ["big"], SchedulingPolicy(device="topology-aware"))
    assert isinstance(result, Placement)
    islands = {share.index % 2 for container in result.containers for share in container.shares}
    assert (len(result.containers[0].shares), len(islands)) == (20, 1)
