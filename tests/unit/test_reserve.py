"""What a placement becomes: the reservation and the annotations of the Binding."""

import msgspec
import pytest

from hami.domain.allocation import ContainerShares, DeviceShare, PodOwner
from hami.domain.cluster import Delivery, NodeState, Visible
from hami.domain.device import MigPlacement, MigSlice
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB
from hami.scheduler.decide.place import Placement
from hami.scheduler.decide.reserve import binding_annotations, request_digest, reservation
from hami.vendors import identity
from tests.support.clusters import VENDORS

NODE = NodeState(name="n1", uid="node-uid", epoch=7)


def share(uuid: str, memory: int = 3000, cores: int = 20, mig: MigSlice | None = None) -> DeviceShare:
    return DeviceShare(vendor="NVIDIA", uuid=uuid, memory=MiB(memory), cores=CorePercent(cores), model="NVIDIA", mig=mig)


CONTAINERS = (
    ContainerShares(name="warm", kind=ContainerKind.INIT, shares=(share("GPU-a", 5000),)),
    ContainerShares(name="log", kind=ContainerKind.SIDECAR),
    ContainerShares(name="main", kind=ContainerKind.APP, shares=(share("GPU-a"), share("GPU-b", 4000, 30))),
)


def test_the_binding_carries_hamis_keys_and_one_semicolon_a_container() -> None:
    found = binding_annotations(CONTAINERS, VENDORS, reservation_id="r1", node=NODE, now_s=1_700_000_000)
    text = "GPU-a,NVIDIA,5000,20:;;GPU-a,NVIDIA,3000,20:GPU-b,NVIDIA,4000,30:;"
    assert found["hami.io/vgpu-devices-allocated"] == text
    assert found["hami.io/vgpu-devices-to-allocate"] == text
    assert found["hami.io/vgpu-node"] == "n1"
    assert found["hami.io/vgpu-time"] == found["hami.io/bind-time"] == "1700000000"
    assert found["hami.io/reservation"] == "r1"
    assert found["hami.io/bind-phase"] == "success"


def test_every_reference_of_a_container_finds_its_annotation() -> None:
    found = binding_annotations(CONTAINERS, VENDORS, reservation_id="r1", node=NODE, now_s=1)
    values = {name: found[key] for name, key in identity.references("main", 2).items()}
    assert values == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "4000m",
        "CUDA_DEVICE_SM_LIMIT": "20",
        "HAMI_RESERVATION": "r1",
    }
    assert not any(key.startswith("container.hami.io/log.") for key in found)


def test_a_planned_mig_instance_shows_no_device_until_it_has_a_name() -> None:
    planned = MigSlice("1g.10gb", MigPlacement(6, 1))
    containers = (ContainerShares(name="main", kind=ContainerKind.APP, shares=(share("GPU-a", 9728, 14, planned),)),)
    before = binding_annotations(containers, VENDORS, reservation_id="r", node=NODE, now_s=1)
    assert before[identity.visible_key("main")] == "void"
    assert before["hami.io/vgpu-mig-allocations"] == (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"1g.10gb","placement":{"start":6,"size":1}}]'
    )
    made = msgspec.structs.replace(planned, uuid="MIG-1")
    realised = (ContainerShares(name="main", kind=ContainerKind.APP, shares=(share("GPU-a", 9728, 14, made),)),)
    after = binding_annotations(realised, VENDORS, reservation_id="r", node=NODE, now_s=1)
    assert after[identity.visible_key("main")] == "MIG-1"
    assert identity.memory_key("main", 0) not in after


@pytest.mark.parametrize(
    ("visible", "listed"),
    [
        (Visible.UUID, "GPU-a,GPU-b"),
        (Visible.INDEX, "0,1"),
        (Visible.MOUNTS, "/var/run/nvidia-container-devices"),
        (Visible.NOTHING, "void"),
    ],
)
@pytest.mark.parametrize("delivery", list(Delivery))
def test_the_pods_own_list_is_what_its_nodes_runtime_reads(delivery: Delivery, visible: Visible, listed: str) -> None:
    """The pod's environment beats the plugin's answer, so an empty one would take devices and limits away again."""
    main = ContainerShares(
        name="main", kind=ContainerKind.APP, shares=(share("GPU-a"), msgspec.structs.replace(share("GPU-b"), index=1))
    )
    node = msgspec.structs.replace(NODE, delivery=delivery, visible=visible)
    found = binding_annotations((main,), VENDORS, reservation_id="r1", node=node, now_s=1)
    assert found[identity.visible_key("main")] == listed
    assert found[identity.memory_key("main", 1)] == "3000m"
    assert found["hami.io/bind-phase"] == ("success" if delivery is Delivery.IDENTITY else "allocating")


def test_a_reservation_names_owner_node_and_deadline() -> None:
    asked = (DeviceRequest(vendor="NVIDIA", count=1, memory=MiB(3000)),)
    request = PodRequest(
        uid="u",
        namespace="team",
        name="p",
        containers=(ContainerRequest(name="main", kind=ContainerKind.APP, requests=asked),),
    )
    placement = Placement("n1", 4.5, CONTAINERS, 3, dict, lambda _: [])
    found = reservation(
        placement,
        request,
        VENDORS,
        reservation_id="r1",
        scheduler="s1",
        node_state=NODE,
        deadline_ms=99,
        policy_version="v1",
        now_s=1,
    )
    assert (found.owner, found.node, found.node_uid, found.node_epoch) == (PodOwner("u", "team", "p"), "n1", "node-uid", 7)
    assert (found.deadline_ms, found.score, found.policy_version) == (99, 4.5, "v1")
    assert found.request_digest == request_digest(msgspec.structs.replace(request, uid="other", name="q"))
