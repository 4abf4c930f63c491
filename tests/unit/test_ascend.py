"""Huawei Ascend: templates, soft split, networks, pairs of a super pod."""

import json
from typing import Any

import msgspec
import pytest

from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import Device, DeviceState, DeviceUsage, Health
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node, Pod
from hami.domain.request import PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, mutate
from hami.scheduler.decide.fit import Fit, Misfit, fit_node, question
from hami.scheduler.decide.place import Placement, Unschedulable, place, place_exactly
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.decide.words import wishes_in
from hami.scheduler.dryrun import node_state
from hami.vendors.config import DeviceConfig, device_config
from hami.vendors.registry import vendors_of
from hami.vendors.requests import pod_request

SOFT = {"huawei.com/vnpu-mode": "hami-core"}
BINPACK = SchedulingPolicy(device="binpack")


def chip(word: str, **more: Any) -> dict[str, Any]:
    name = f"huawei.com/{word}"
    facts = {
        "commonWord": word,
        "chipName": word,
        "resourceName": name,
        "resourceMemoryName": f"{name}-memory",
        "resourceCoreName": f"{name}-core",
        "memoryAllocatable": 21527,
        "memoryCapacity": 24576,
        "templates": [{"name": "vir02", "memory": 6144, "aiCore": 2}, {"name": "vir01", "memory": 3072, "aiCore": 1}],
    }
    return facts | more


def config_of(*chips: dict[str, Any], soft: bool = False) -> DeviceConfig:
    return device_config({"nvidia": {}, "vnpus": {"hamiVnpuCore": soft, "configs": list(chips)}})


CHIPS = (
    chip("Ascend310P"),
    chip("Ascend910B4-1"),
    chip("Ascend910B4"),
    chip("Ascend910C", superPod=True),
)
VENDORS = vendors_of(config_of(*CHIPS))


def pod_of(*containers: dict[str, str], notes: dict[str, str] | None = None, requests: dict[str, str] | None = None) -> Pod:
    raw: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": notes},
        "spec": {
            "containers": [
                {"name": f"c{n}", "resources": {"limits": each} | ({"requests": requests} if requests else {})}
                for n, each in enumerate(containers)
            ]
        },
    }
    return msgspec.convert(raw, Pod)


def added(
    *containers: dict[str, str],
    notes: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    config: DeviceConfig | None = None,
) -> dict[str, Any]:
    """What admission adds, by path; it must let the pod in."""
    vendors = VENDORS if config is None else vendors_of(config)
    answer = mutate(pod_of(*containers, notes=notes, requests=requests), AdmissionSettings(vendors=vendors), ClusterSnapshot())
    assert isinstance(answer, Admitted), answer
    return {str(each["path"]).removeprefix("/spec/containers/"): each["value"] for each in answer.patch}


def denied(*containers: dict[str, str], notes: dict[str, str] | None = None) -> Denied:
    answer = mutate(pod_of(*containers, notes=notes), AdmissionSettings(vendors=VENDORS), ClusterSnapshot())
    assert isinstance(answer, Denied), answer
    return answer


def asks(word: str, count: int, memory: int = 0, cores: int = 0) -> dict[str, str]:
    found = {f"huawei.com/{word}": str(count)}
    found |= {f"huawei.com/{word}-memory": str(memory)} if memory else {}
    return found | ({f"huawei.com/{word}-core": str(cores)} if cores else {})


def request_of(*containers: dict[str, str], notes: dict[str, str] | None = None) -> PodRequest:
    return pod_request(pod_of(*containers, notes=notes), VENDORS)


def card(word: str, number: int, *, used: DeviceUsage | None = None, healthy: bool = True, **attributes: str) -> DeviceState:
    return DeviceState(
        device=Device(
            uuid=f"{word}-{number}",
            vendor=word,
            model=word,
            memory=MiB(21527),
            cores=CorePercent(8),
            slots=Slots(4),
            index=number,
            numa=0,
            attributes={key.replace("_", "-"): value for key, value in attributes.items()},
        ),
        health=Health.HEALTHY if healthy else Health.UNHEALTHY,
        used=used or DeviceUsage(),
    )


def fit(cards: list[DeviceState], request: PodRequest, vendors: tuple[Any, ...] = VENDORS) -> Fit | Misfit:
    return fit_node(NodeState(name="n", devices=tuple(cards)), question(request, BINPACK, vendors, {}))


def chosen(verdict: Fit | Misfit) -> list[list[int]]:
    assert isinstance(verdict, Fit), verdict
    return [[share.index for share in each.shares] for each in verdict.containers]


@pytest.mark.parametrize(
    ("asked", "written"),
    [("1", "3072"), ("3072", "3072"), ("3073", "6144"), ("6145", "21527"), ("24576", "21527"), ("6Gi", "6144"), ("0", "3072")],
)
def test_memory_is_rounded_up_to_a_template_or_to_the_whole_card(asked: str, written: str) -> None:
    answer = added({"huawei.com/Ascend310P": "1", "huawei.com/Ascend310P-memory": asked})
    assert answer["0/resources/limits/huawei.com~1Ascend310P-memory"] == written
    assert answer["0/resources/requests"] == {"huawei.com/Ascend310P-memory": written}


def test_a_count_alone_means_whole_cards() -> None:
    answer = added(asks("Ascend310P", 3))
    assert answer["0/resources/limits/huawei.com~1Ascend310P-memory"] == "21527"
    assert pod_request(pod_of(asks("Ascend310P", 3, 21527)), VENDORS).containers[0].requests[0].memory == 21527


def test_bytes_keep_their_meaning_beside_a_memory_factor() -> None:
    config = config_of(chip("Ascend310P", memoryFactor=1024))
    asked = {"huawei.com/Ascend310P": "1", "huawei.com/Ascend310P-memory": "5Gi"}
    written = added(asked, config=config)["0/resources/limits/huawei.com~1Ascend310P-memory"]
    (request,) = pod_request(pod_of({**asked, "huawei.com/Ascend310P-memory": written}), vendors_of(config)).containers
    assert request.requests[0].memory == 6144


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (asks("Ascend310P", 1, 24577), "huawei.com/Ascend310P-memory 24577 is invalid"),
        (asks("Ascend310P", 2, 3000), "vNPU not supported for multiple devices"),
        (asks("Ascend310P", 1, 3000, 10), "huawei.com/Ascend310P-core is only supported in hami-core (soft split) mode"),
        (asks("Ascend910C", 3), "Ascend910C device request must be 1 or 2*n, got 3"),
    ],
)
def test_what_cannot_be_cut_is_refused(asked: dict[str, str], message: str) -> None:
    assert denied(asked) == Denied(500, message)


@pytest.mark.parametrize("memory", ["-1", "1.5", "lots"])
def test_memory_that_cannot_be_read_is_refused_by_field(memory: str) -> None:
    answer = denied({"huawei.com/Ascend310P": "1", "huawei.com/Ascend310P-memory": memory})
    assert answer.code == 422
    assert 'limits["huawei.com/Ascend310P-memory"]' in answer.message


def test_a_soft_split_keeps_memory_as_it_is_written_on_any_number_of_cards() -> None:
    answer = added(asks("Ascend310P", 2, 5000, 30), notes=SOFT)
    assert answer["0/resources/limits/huawei.com~1Ascend310P-memory"] == "5000"
    (request,) = request_of(asks("Ascend310P", 2, 5000, 30), notes=SOFT).containers[0].requests
    assert (request.count, request.memory, request.memory_percent, request.cores) == (2, 5000, 0, 30)


def test_one_card_of_a_super_pod_is_a_pair() -> None:
    name = "huawei.com/Ascend910C"
    assert added({name: "1"})["0/resources/limits/huawei.com~1Ascend910C"] == "2"
    assert "0/resources/requests/huawei.com~1Ascend910C" not in added({name: "1"})
    both = added({name: "1"}, requests={name: "1"})
    assert both["0/resources/requests/huawei.com~1Ascend910C"] == "2"
    single = config_of(chip("Ascend910C"))
    assert "0/resources/limits/huawei.com~1Ascend910C" not in added({name: "1"}, config=single)


def test_a_slice_is_not_doubled() -> None:
    assert denied(asks("Ascend910C", 1, 3000)).code == 500
    single = config_of(chip("Ascend910C"))
    answer = added(asks("Ascend910C", 1, 3000), config=single)
    assert answer["0/resources/limits/huawei.com~1Ascend910C-memory"] == "3072"


def test_containers_without_a_card_are_blinded_once() -> None:
    config = config_of(chip("Ascend310P", overwriteEnv=True), chip("Ascend910B4", overwriteEnv=True))
    answer = added({"cpu": "1"}, asks("Ascend910B4", 1), config=config)
    assert answer["0/env"] == [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}]
    assert "1/env" not in answer
    assert "0/env" not in added({"cpu": "1"}, asks("Ascend910B4", 1))


def test_the_runtime_class_is_the_chips() -> None:
    config = config_of(chip("Ascend310P", runtimeClassName="ascend"))
    assert added(asks("Ascend310P", 1), config=config)["/spec/runtimeClassName"] == "ascend"


def test_cards_carry_what_their_node_says_of_soft_split() -> None:
    listed = [{"id": "a", "count": 4, "devmem": 21527, "devcore": 8, "type": "Ascend910B4", "health": True}]
    listed += [{**listed[0], "id": "b", "custominfo": {"NetworkID": 1}}]
    notes = {"hami.io/node-register-Ascend910B4": json.dumps(listed), "hami-vnpu-core": "true"}
    found = node_state(msgspec.convert({"metadata": {"name": "n", "annotations": notes}}, Node), VENDORS).devices
    assert [each.device.vendor for each in found] == ["Ascend910B4", "Ascend910B4"]
    assert [each.device.attributes for each in found] == [
        {"hami-vnpu-core": "true"},
        {"NetworkID": "1", "hami-vnpu-core": "true"},
    ]


@pytest.mark.parametrize(
    ("said", "by_default", "can"),
    [("true", False, True), ("True", True, False), ("false", True, False), (None, True, True), (None, False, False)],
)
def test_soft_split_takes_a_node_that_can(said: str | None, by_default: bool, can: bool) -> None:
    vendors = vendors_of(config_of(*CHIPS, soft=by_default))
    cards = [card("Ascend310P", n) if said is None else card("Ascend310P", n, hami_vnpu_core=said) for n in range(3)]
    verdict = fit(cards, request_of(asks("Ascend310P", 1, 5000), notes=SOFT), vendors)
    assert isinstance(verdict, Fit) if can else verdict == Misfit("1/3 ModeNotFit")
    assert isinstance(fit(cards, request_of(asks("Ascend310P", 1, 5000)), vendors), Fit)


def test_cores_of_a_soft_split_are_percent_whatever_the_chip_has() -> None:
    half = DeviceUsage(1, 1000, 60)
    cards = [card("Ascend310P", 0, used=half, hami_vnpu_core="true")]
    assert chosen(fit(cards, request_of(asks("Ascend310P", 1, 5000, 40), notes=SOFT))) == [[0]]
    assert fit(cards, request_of(asks("Ascend310P", 1, 5000, 41), notes=SOFT)) == Misfit("1/1 CardInsufficientCore")
    whole = request_of(asks("Ascend310P", 1, 5000, 100), notes=SOFT)
    idle = card("Ascend310P", 0, used=DeviceUsage(1, 1000, 0), hami_vnpu_core="true")
    assert fit([idle], whole) == Misfit("1/1 ExclusiveDeviceAllocateConflict")
    full = card("Ascend310P", 0, used=DeviceUsage(1, 1000, 100), hami_vnpu_core="true")
    assert fit([full], request_of(asks("Ascend310P", 1, 5000), notes=SOFT)) == Misfit("1/1 CardComputeUnitsExhausted")


def test_without_a_soft_split_the_chips_own_cores_count() -> None:
    busy = card("Ascend310P", 0, used=DeviceUsage(1, 1000, 8))
    assert fit([busy], request_of(asks("Ascend310P", 1, 5000))) == Misfit("1/1 CardComputeUnitsExhausted")


def test_several_cards_come_from_the_largest_network() -> None:
    cards = [card("Ascend910B4", number, NetworkID=str(network)) for number, network in enumerate((0, 1, 1, 0, 1))]
    assert chosen(fit(cards, request_of(asks("Ascend910B4", 3)))) == [[4, 2, 1]]
    assert chosen(fit(cards, request_of(asks("Ascend910B4", 4)))) == [[4, 2, 1, 3]]
    unknown = [*cards[:4], card("Ascend910B4", 4)]
    assert chosen(fit(unknown, request_of(asks("Ascend910B4", 3)))) == [[4, 3, 2]]


def test_a_card_whose_twin_is_gone_is_not_taken() -> None:
    cards = [card("Ascend910C", number, healthy=number != 5) for number in range(6)]
    assert chosen(fit(cards, request_of(asks("Ascend910C", 2)))) == [[3, 2]]
    assert chosen(fit(cards, request_of(asks("Ascend910C", 4)))) == [[3, 2, 1, 0]]
    assert fit(cards, request_of(asks("Ascend910C", 6))) == Misfit("1/6 CardNotHealth, 4/6 AllocatedCardsInsufficientRequest")
    assert fit(cards, request_of(asks("Ascend910C", 3))) == Misfit("1/3 CardNotHealth, 4/3 AllocatedCardsInsufficientRequest")
    assert chosen(fit(cards, request_of(asks("Ascend910C", 1)))) == [[4]]


def test_a_chip_is_not_given_the_cards_of_another_whose_name_begins_like_it() -> None:
    cards = [card("Ascend910B4-1", 0), card("Ascend910B4-1", 1), card("Ascend910B4", 2)]
    assert chosen(fit(cards, request_of(asks("Ascend910B4", 1)))) == [[2]]
    assert fit(cards, request_of(asks("Ascend910B4", 2))) == Misfit("NodeInsufficientDevice")


def both_ways(nodes: list[NodeState], request: PodRequest) -> Placement | Unschedulable:
    snapshot = ClusterSnapshot(nodes={each.name: each for each in nodes})
    planes = Planes(VENDORS)
    planes.sync(snapshot)
    found = place(snapshot, planes, request, list(snapshot.nodes), BINPACK)
    exact = place_exactly(snapshot, VENDORS, request, list(snapshot.nodes), BINPACK)
    if isinstance(exact, Placement):
        assert isinstance(found, Placement)
        assert (found.node, found.score, found.containers) == (exact.node, exact.score, exact.containers)
    else:
        assert found == exact
    return exact


def test_a_node_with_the_cards_on_one_network_is_preferred() -> None:
    apart = NodeState(name="apart", devices=tuple(card("Ascend910B4", n, NetworkID=str(n)) for n in range(2)))
    close = NodeState(name="close", devices=tuple(card("Ascend910B4", n, NetworkID="0") for n in range(2)))
    silent = NodeState(name="a-silent", devices=tuple(card("Ascend910B4", n) for n in range(2)))
    found = both_ways([apart, close, silent], request_of(asks("Ascend910B4", 2)))
    assert isinstance(found, Placement)
    assert (found.node, found.score) == ("close", 10.0)
    alone = both_ways([apart], request_of(asks("Ascend910B4", 2)))
    assert isinstance(alone, Placement)
    assert alone.score == 5.0
    nobody = both_ways([silent], request_of(asks("Ascend910B4", 2)))
    assert isinstance(nobody, Placement)
    assert nobody.score == 0.0


def test_every_node_that_cannot_share_softly_says_so() -> None:
    nodes = [NodeState(name=name, devices=(card("Ascend310P", 0), card("Ascend310P", 1))) for name in ("a", "b")]
    found = both_ways(nodes, request_of(asks("Ascend310P", 1, 5000), notes=SOFT))
    assert isinstance(found, Unschedulable)
    assert found.reasons == {"a": "1/2 ModeNotFit", "b": "1/2 ModeNotFit"}


def written(request: PodRequest, cards: list[DeviceState]) -> dict[str, str]:
    verdict = fit(cards, request)
    assert isinstance(verdict, Fit), verdict
    node = NodeState(name="n", devices=tuple(cards))
    return binding_annotations(verdict.containers, VENDORS, reservation_id="r", node=node, now_s=1_700_000_000, request=request)


def test_the_plugin_reads_cuts_by_card() -> None:
    cards = [card("Ascend310P", number) for number in range(2)]
    found = written(request_of(asks("Ascend310P", 1, 3072), asks("Ascend310P", 1, 21527)), cards)
    assert json.loads(found["huawei.com/Ascend310P"]) == [
        {"UUID": "Ascend310P-1", "temp": "vir01", "memory": 3072},
        {"UUID": "Ascend310P-0", "memory": 21527},
    ]
    assert (
        found["hami.io/Ascend310P-devices-to-allocate"] == "Ascend310P-1,Ascend310P,3072,0:;Ascend310P-0,Ascend310P,21527,0:;"
    )
    assert found["hami.io/Ascend310P-devices-allocated"] == found["hami.io/Ascend310P-devices-to-allocate"]
    assert found["predicate-time"] == "1700000000"


def test_a_soft_split_names_no_template() -> None:
    request = request_of(asks("Ascend310P", 1, 3072, 20), notes=SOFT)
    found = written(request, [card("Ascend310P", 0, hami_vnpu_core="true")])
    assert json.loads(found["huawei.com/Ascend310P"]) == [{"UUID": "Ascend310P-0", "memory": 3072, "core": 20}]


def test_the_log_keeps_the_mode_a_pod_asked_for() -> None:
    notes = {**SOFT, "hami.io/use-Ascend310P-uuid": "x", "team": "a"}
    assert wishes_in(notes, VENDORS) == {**SOFT, "hami.io/use-Ascend310P-uuid": "x"}


def test_the_configuration_names_what_is_wrong_in_it() -> None:
    with pytest.raises(InvalidInput, match=r"vnpus\.Ascend310P\.memoryFactor"):
        config_of(chip("Ascend310P", memoryFactor=-1))
    with pytest.raises(InvalidInput, match=r"vnpus\.configs\[0\]"):
        device_config({"vnpus": {"configs": [{"resourceName": "huawei.com/Ascend310P"}]}})
