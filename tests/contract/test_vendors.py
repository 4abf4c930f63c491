"""What every vendor in the registry keeps to, and one that no page of ours knows: made up here, from data alone."""

import itertools
from collections.abc import Iterator

import pytest

from hami.domain.cluster import ClusterSnapshot
from hami.domain.device import Device
from hami.domain.pod import Container, ObjectMeta, Pod, PodSpec, Quantity, Resources
from hami.domain.request import PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.events.catalog.node import NodeRegistered
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.projections.folds.state import ClusterState
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, mutate
from hami.scheduler.decide.place import Placement, Unschedulable, place
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.reserve import binding_annotations, reservation
from hami.vendors.annotations import decode_pod
from hami.vendors.config import AscendChip, AscendConfig, DeviceConfig, IluvatarConfig
from hami.vendors.registry import vendors_of
from hami.vendors.requests import pod_request
from hami.vendors.vendor import AnnotationKeys, ResourceNames, Select, Size, Vendor
from tests.support.builders import a_reserved, records_of

LUMEN = Vendor(
    word="Lumen",
    about="Lumen accelerators: made up.",
    resources=ResourceNames(count="lumen.example/card", memory="lumen.example/mem", cores="lumen.example/cores"),
    keys=AnnotationKeys(
        allocated="hami.io/lumen-devices-allocated",
        to_allocate="hami.io/lumen-devices-to-allocate",
        register="hami.io/node-lumen-register",
        handshake="hami.io/node-handshake-lumen",
        use_uuid="lumen.example/use-uuid",
        nouse_uuid="lumen.example/nouse-uuid",
    ),
    memory_factor=256,
)
"""The whole of it: docs/howto/add-a-vendor.md."""

CHIP = IluvatarConfig(word="MR-V100", count="iluvatar.ai/MR-V100-vgpu", memory="iluvatar.ai/MR-V100.vMem")
CHIPS = tuple(AscendChip(word=word, count=f"huawei.com/{word}") for word in ("Ascend310P", "Ascend910B4", "Ascend910C"))
VENDORS = (*vendors_of(DeviceConfig(iluvatars=(CHIP,), vnpus=AscendConfig(configs=CHIPS))), LUMEN)
POLICY = SchedulingPolicy()
ATTRIBUTES = {"profiles": '{"1g.12gb":"0","2g.24gb":"1"}', "maxSlice": "6"}
MOST_PODS = 400


def cards(vendor: Vendor, count: int = 8) -> tuple[Device, ...]:
    """Cards on which one of every size that vendors sell has room."""
    neuron = vendor.size is Size.NEURON_CORES
    return tuple(
        Device(
            uuid=f"{vendor.word}-{number}",
            vendor=vendor.word,
            model=vendor.word,
            memory=MiB(0 if neuron else 98_304),
            cores=CorePercent(2 if neuron else 100),
            slots=Slots(4),
            index=number,
            numa=number // 4,
            attributes=ATTRIBUTES,
        )
        for number in range(count)
    )


def cluster(vendor: Vendor) -> ClusterState:
    state = new_cluster()
    for record in records_of([NodeRegistered(vendor=vendor.word, devices=cards(vendor), node_uid="uid", boot_id="b")]):
        apply(state, record)
    return state


def asking(vendor: Vendor, uid: str, amount: int = 1) -> Pod:
    """What a user writes for one of them, with a memory where the vendor shares cards by it."""
    limits: dict[str, Quantity] = {vendor.resources.count: str(amount)}
    if vendor is LUMEN:
        limits[vendor.resources.memory] = "20"
    container = Container(name="main", resources=Resources(limits=limits))
    return Pod(metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid), spec=PodSpec(containers=[container]))


def planes_of(snap: ClusterSnapshot) -> Planes:
    planes = Planes(VENDORS)
    planes.sync(snap)
    return planes


def decided(state: ClusterState, request: PodRequest, names: tuple[str, ...] = ("n1",)) -> Placement | Unschedulable:
    snap = snapshot(state)
    return place(snap, planes_of(snap), request, names, POLICY)


def reserved(state: ClusterState, request: PodRequest, found: Placement) -> dict[str, str]:
    """Write the placement down as the scheduler does; the annotations that its binding carries."""
    node = snapshot(state).nodes[found.node]
    made = reservation(
        found,
        request,
        VENDORS,
        reservation_id=f"r-{request.uid}",
        scheduler="s",
        node_state=node,
        deadline_ms=2**42,
        policy_version="v",
        now_s=1_700_000_000,
    )
    for record in records_of([a_reserved(made)], after=state.position.g, producer=request.uid):
        apply(state, record)
    return binding_annotations(
        made.containers, VENDORS, reservation_id=made.id, node=node, now_s=1_700_000_000, request=request
    )


def admitted(vendor: Vendor, uid: str = "u") -> PodRequest:
    """Through the door first: what a pod asks is read from the pod that admission made of it."""
    pod = asking(vendor, uid)
    answer = mutate(pod, AdmissionSettings(vendors=VENDORS), ClusterSnapshot())
    assert isinstance(answer, Admitted), answer
    return pod_request(pod, VENDORS)


def until_full(state: ClusterState, vendor: Vendor) -> Iterator[tuple[PodRequest, Placement]]:
    for number in itertools.count():
        assert number < MOST_PODS, "a node that never fills"
        request = admitted(vendor, f"u{number}")
        found = decided(state, request)
        if isinstance(found, Unschedulable):
            return
        yield request, found


each_vendor = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.word)


@each_vendor
def test_its_allocation_reads_back_from_the_annotation(vendor: Vendor) -> None:
    state, request = cluster(vendor), admitted(vendor)
    found = decided(state, request)
    assert isinstance(found, Placement), found
    notes = reserved(state, request, found)
    [entries, *rest] = decode_pod(notes[vendor.keys.allocated])
    shares = found.containers[0].shares
    assert [(each.uuid, each.memory, each.cores) for each in entries] == [(s.uuid, s.memory, s.cores) for s in shares]
    assert not any(rest)


@each_vendor
def test_a_node_is_filled_to_the_brim_and_not_beyond(vendor: Vendor) -> None:
    state, pods = cluster(vendor), 0
    for request, found in until_full(state, vendor):
        reserved(state, request, found)
        pods += 1
    assert pods > 0
    for card in snapshot(state).nodes["n1"].devices:
        assert card.used.slots <= card.device.slots
        assert card.used.memory <= card.device.memory
        if vendor.size is not Size.NEURON_CORES:
            assert card.used.cores <= card.device.cores


@each_vendor
def test_the_same_state_gives_the_same_answer(vendor: Vendor) -> None:
    request = admitted(vendor)
    answers = [decided(cluster(vendor), request) for _ in range(3)]
    assert len({(each.node, each.score, each.containers) for each in answers if isinstance(each, Placement)}) == 1


@each_vendor
def test_a_refusal_says_why_on_every_node(vendor: Vendor) -> None:
    state = cluster(vendor)
    for request, found in until_full(state, vendor):
        reserved(state, request, found)
    other = next(each for each in VENDORS if each.word != vendor.word)
    for record in records_of(
        [(NodeRegistered(vendor=other.word, devices=cards(other)), "n2")], after=state.position.g, producer="o"
    ):
        apply(state, record)
    refused = decided(state, admitted(vendor, "late"), ("n1", "n2", "n3"))
    assert isinstance(refused, Unschedulable)
    assert set(refused.reasons) == {"n1", "n2", "n3"}
    assert all(refused.reasons.values())
    assert refused.counts


@each_vendor
def test_its_page_says_what_it_is_and_what_asks_for_it(vendor: Vendor) -> None:
    assert len(vendor.about.split()) >= 3
    assert vendor.resources.count
    assert vendor.keys.allocated
    assert vendor.select in Select


def test_a_made_up_vendor_needs_its_page_and_nothing_else() -> None:
    state = cluster(LUMEN)
    request = admitted(LUMEN)
    found = decided(state, request)
    assert isinstance(found, Placement)
    notes = reserved(state, request, found)
    card = found.containers[0].shares[0].uuid
    assert notes["hami.io/lumen-devices-allocated"] == f"{card},Lumen,5120,0:;"
    assert notes["hami.io/lumen-devices-to-allocate"] == f"{card},Lumen,5120,0:;"
    [used] = {each.used.memory for each in snapshot(state).nodes["n1"].devices if each.used.slots}
    assert used == 20 * 256
