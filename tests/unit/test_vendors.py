"""Vendor pages: what each does that the others do not."""

from typing import Any

import msgspec
import pytest

from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import Device, DeviceState, DeviceUsage
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node, Pod
from hami.domain.request import PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, Ignored, mutate
from hami.scheduler.decide.checks import CHECKS, SIZES, WORDS
from hami.scheduler.decide.fit import Fit, Misfit, fit_node, question
from hami.scheduler.decide.place import Placement, place, place_exactly
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.decide.selects import SELECTS
from hami.scheduler.decide.vendorscore import SCORES
from hami.scheduler.dryrun import node_state
from hami.vendors.config import DeviceConfig, IluvatarConfig, device_config
from hami.vendors.constraints import wishes_of
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.requests import pod_request
from hami.vendors.vendor import Check, Score, Select, Size

CHIP = IluvatarConfig(
    word="MR-V100", count="iluvatar.ai/MR-V100-vgpu", memory="iluvatar.ai/MR-V100.vMem", cores="iluvatar.ai/MR-V100.vCore"
)
VENDORS = vendors_of(DeviceConfig(iluvatars=(CHIP,)))
SETTINGS = AdmissionSettings(vendors=VENDORS)
BINPACK = SchedulingPolicy(device="binpack")


def pod_of(*containers: dict[str, str], notes: dict[str, str] | None = None) -> Pod:
    raw: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": notes},
        "spec": {"containers": [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(containers)]},
    }
    return msgspec.convert(raw, Pod)


def request_of(*containers: dict[str, str], notes: dict[str, str] | None = None) -> PodRequest:
    return pod_request(pod_of(*containers, notes=notes), VENDORS)


def admit(*containers: dict[str, str]) -> Admitted | Denied | Ignored:
    return mutate(pod_of(*containers), SETTINGS, ClusterSnapshot())


def node_of(name: str = "n", *, capacity: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> NodeState:
    raw = {"metadata": {"name": name, "labels": labels}, "status": {"capacity": capacity}}
    return node_state(msgspec.convert(raw, Node), VENDORS)


def card(word: str, number: int, used: DeviceUsage | None = None, **more: Any) -> DeviceState:
    facts: dict[str, Any] = {"memory": MiB(32_000), "cores": CorePercent(100), "slots": Slots(10), "numa": 0, **more}
    return DeviceState(
        device=Device(uuid=f"{word}-{number}", vendor=word, model=word, index=number, **facts), used=used or DeviceUsage()
    )


def fit(node: NodeState, request: PodRequest, policy: SchedulingPolicy = BINPACK) -> Fit | Misfit:
    return fit_node(node, question(request, policy, VENDORS, {}))


def chosen(verdict: Fit | Misfit) -> list[list[tuple[int, int]]]:
    assert isinstance(verdict, Fit), verdict
    return [[(share.index, share.cores) for share in each.shares] for each in verdict.containers]


def test_every_rule_that_a_page_can_name_has_its_code_and_its_word() -> None:
    assert set(CHECKS) == set(WORDS) == set(Check)
    assert set(SIZES) == set(Size)
    assert set(SELECTS) == set(Select)
    assert set(SCORES) == set(Score) - {Score.NONE}


def test_words_and_keys_of_vendors_do_not_collide() -> None:
    words = [each.word for each in VENDORS]
    keys = [key for each in VENDORS for key in (each.keys.allocated, each.keys.to_allocate, each.keys.register) if key]
    resources = [name for each in VENDORS for name in each.resources.all()]
    for names in (words, keys, resources):
        assert len(names) == len(set(names))


def test_a_file_sells_only_what_it_names() -> None:
    found = vendors_of(device_config({"nvidia": {}, "amd": {"resourceCountName": "amd.com/gpu"}, "biren": None}))
    assert [each.word for each in found] == ["NVIDIA", "AMD"]
    assert found[1].resources.all() == ("amd.com/gpu",)
    with pytest.raises(InvalidInput, match="hygon"):
        device_config({"hygon": {"memoryFactor": -1}})


def test_amd_memory_without_a_count_is_refused_at_both_doors() -> None:
    answer = admit({"amd.com/gpumem": "1000"})
    assert isinstance(answer, Denied)
    assert "amd.com/gpumem needs amd.com/gpu" in answer.message
    with pytest.raises(InvalidInput, match=r"needs amd\.com/gpu"):
        request_of({"amd.com/gpumem": "1000"})


def test_amd_cores_are_percent_of_compute_units_and_the_model_stands_in_the_allocation() -> None:
    node = NodeState(name="n", devices=(card("AMD", 0, cores=CorePercent(304)),))
    asked = request_of({"amd.com/gpu": "1", "amd.com/gpumem": "1000", "amd.com/gpucores": "33"})
    assert chosen(fit(node, asked)) == [[(0, 100)]]
    one = request_of({"amd.com/gpu": "1", "amd.com/gpumem": "1000", "amd.com/gpucores": "1"})
    small = NodeState(name="n", devices=(card("AMD", 0, cores=CorePercent(8)),))
    assert chosen(fit(small, one)) == [[(0, 1)]]


def test_neuron_cores_are_bits_and_a_device_is_all_of_them() -> None:
    node = node_of(capacity={"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"})
    cores, device = {"aws.amazon.com/neuroncore": "1"}, {"aws.amazon.com/neuron": "1"}
    assert chosen(fit(node, request_of(cores, cores, cores))) == [[(1, 1)], [(1, 2)], [(0, 1)]]
    assert chosen(fit(node, request_of(cores, device))) == [[(1, 1)], [(0, 3)]]
    four = node_of(capacity={"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "4"})
    assert chosen(fit(four, request_of(device))) == [[(0, 15)]]
    refused = fit(four, request_of(cores, device))
    assert refused == Misfit("1/1 CardInsufficientCore")


def test_neuron_devices_are_neighbours_by_index_whatever_is_loaded() -> None:
    sizes = {"aws.amazon.com/neuron": "4", "aws.amazon.com/neuroncore": "8"}
    ring = node_of(capacity=sizes, labels={"node.kubernetes.io/instance-type": "inf2.48xlarge"})
    first, *rest = ring.devices
    loaded = msgspec.structs.replace(ring, devices=(msgspec.structs.replace(first, used=DeviceUsage(1, 0, 1)), *rest))
    three = request_of({"aws.amazon.com/neuron": "3"})
    assert chosen(fit(loaded, three, SchedulingPolicy(device="mutex"))) == [[(1, 3), (2, 3), (3, 3)]]
    other = node_of(capacity=sizes, labels={"node.kubernetes.io/instance-type": "trn1.32xlarge"})
    assert fit(other, three) == Misfit("1/4 NumaNotFit")
    assert chosen(fit(other, request_of({"aws.amazon.com/neuron": "4"}))) == [[(0, 3), (1, 3), (2, 3), (3, 3)]]


def test_odd_neuron_cores_are_refused_by_name() -> None:
    answer = admit({"aws.amazon.com/neuroncore": "3"})
    assert answer == Denied(500, "aws.amazon.com/neuroncore must be 1 or a multiple of 2, got 3")


def test_mthreads_several_cards_are_whole_ones_and_one_card_has_legal_sizes() -> None:
    answer = admit({"mthreads.com/vgpu": "2"})
    assert isinstance(answer, Admitted)
    added = {str(each["path"]): each["value"] for each in answer.patch}
    assert added["/spec/containers/0/resources/limits/mthreads.com~1sgpu-core"] == "32"
    assert added["/spec/containers/0/resources/limits/mthreads.com~1sgpu-memory"] == "192"
    assert added["/metadata/annotations"] == {"mthreads.com/request-gpu-num": "2"}
    assert isinstance(admit({"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "5"}), Denied)
    assert isinstance(admit({"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "8"}), Admitted)


def test_mthreads_containers_of_a_pod_share_one_card() -> None:
    node = NodeState(name="n", devices=tuple(card("Mthreads", n, cores=CorePercent(16), slots=Slots(100)) for n in (0, 1)))
    part = {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "2", "mthreads.com/sgpu-core": "4"}
    spread = SchedulingPolicy(device="spread")
    indices = [[index for index, _ in each] for each in chosen(fit(node, request_of(part, part), spread))]
    assert indices[0] == indices[1]
    whole = {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "2", "mthreads.com/sgpu-core": "16"}
    assert fit(node, request_of(whole, whole)) == Misfit("1/2 CardInsufficientCore, 1/2 CardNotFoundCustomFilterRule")


def test_cards_are_counted_up_from_capacity_within_reason() -> None:
    node = node_of(capacity={"cambricon.com/mlu.smlu.vcore": "150", "cambricon.com/mlu.smlu.vmemory": "300"})
    assert [(each.device.uuid, each.device.memory) for each in node.devices] == [
        ("n-cambricon-mlu-0", 51_200),
        ("n-cambricon-mlu-1", 51_200),
    ]
    assert node_of(capacity={"cambricon.com/mlu.smlu.vcore": "99999999", "cambricon.com/mlu.smlu.vmemory": "1"}).devices == ()
    assert node_of(capacity={"aws.amazon.com/neuron": "2000", "aws.amazon.com/neuroncore": "4000"}).devices == ()


def test_cambricon_gets_both_spellings_and_the_first_share() -> None:
    node = NodeState(name="n", devices=tuple(card("MLU", n) for n in (0, 1)))
    asked = request_of({"cpu": "1"}, {"cambricon.com/vmlu": "1", "cambricon.com/mlu.smlu.vmemory": "4"})
    verdict = fit(node, asked)
    assert isinstance(verdict, Fit)
    notes = binding_annotations(verdict.containers, VENDORS, reservation_id="r", node=node, now_s=1, request=asked)
    assert notes["CAMBRICON_DSMLU_ASSIGNED"] == notes["CAMBRICON_DSMLU_ASSIGHED"] == "false"
    assert notes["CAMBRICON_DSMLU_PROFILE"] == "1_100_4"
    assert notes["hami.io/cambricon-mlu-devices-allocated"] == ";MLU-1,MLU,1024,100:;"


def dies(*boards: str) -> tuple[DeviceState, ...]:
    return tuple(card("Vastai", n, attributes={"DeviceStrategy": "die", "AIC": board}) for n, board in enumerate(boards))


def test_vastai_dies_come_from_one_board_and_the_node_that_can_do_so_wins() -> None:
    asked = request_of({"vastaitech.com/va": "2"})
    assert chosen(fit(NodeState(name="n", devices=dies("a", "b", "b", "a", "b")), asked)) == [[(4, 0), (2, 0)]]
    nodes = {"a": NodeState(name="a", devices=dies("x", "y")), "b": NodeState(name="b", devices=dies("x", "x"))}
    snapshot = ClusterSnapshot(nodes=nodes)
    planes = Planes(VENDORS)
    planes.sync(snapshot)
    for found in (
        place(snapshot, planes, asked, ["a", "b"], BINPACK),
        place_exactly(snapshot, VENDORS, asked, ["a", "b"], BINPACK),
    ):
        assert isinstance(found, Placement)
        assert (found.node, found.score) == ("b", 1.0)


def test_vastai_mutex_means_the_whole_board() -> None:
    first, *rest = dies("a", "a", "b")
    node = NodeState(name="n", devices=(msgspec.structs.replace(first, used=DeviceUsage(1, 0, 0)), *rest))
    asked = request_of({"vastaitech.com/va": "1"})
    assert chosen(fit(node, asked, SchedulingPolicy(device="mutex"))) == [[(2, 0)]]


def test_iluvatar_several_cards_are_whole_ones_and_the_container_learns_its_name() -> None:
    answer = admit({"iluvatar.ai/MR-V100-vgpu": "2"})
    assert isinstance(answer, Admitted)
    added = {str(each["path"]): each["value"] for each in answer.patch}
    assert added["/spec/containers/0/resources/limits/iluvatar.ai~1MR-V100.vCore"] == "200"
    assert added["/spec/containers/0/env"] == [{"name": "SOL_CONTINER_NAME", "value": "c0"}]


def test_further_lists_of_cards_narrow_the_choice() -> None:
    page = by_word(VENDORS, "DCU")
    assert page is not None
    keys = msgspec.structs.replace(page.keys, more_uuids=(("old/use", "old/nouse"),))
    both = msgspec.structs.replace(page, keys=keys)
    notes = {"hygon.com/use-gpuuuid": "a,b", "old/use": "b,c", "hygon.com/nouse-gpuuuid": "x", "old/nouse": "y"}
    wishes = wishes_of(notes, both)
    assert [uuid for uuid in "abcxy" if wishes.uuid_fits(uuid)] == ["b"]
    assert wishes_of({"old/use": "c", "old/nouse": "c"}, both).uuid_fits("c") is False


def test_hygon_cards_belong_to_hygon_whatever_their_model_is_called() -> None:
    raw = {"metadata": {"name": "n", "annotations": {"hami.io/node-dcu-register": "D-0,4,16384,100,K100_AI,0,true:"}}}
    node = node_state(msgspec.convert(raw, Node), VENDORS)
    assert chosen(fit(node, request_of({"hygon.com/dcunum": "1"}))) == [[(0, 100)]]
