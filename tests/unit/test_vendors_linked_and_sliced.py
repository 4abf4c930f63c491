"""Kunlunxin (linked cards, equal parts) and Enflame (whole cards, profiles announced by the node)."""

import json
from itertools import chain, combinations
from typing import Any

import msgspec
import pytest

from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import DeviceUsage, Health
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node, Pod
from hami.domain.request import PodRequest
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, Ignored, mutate
from hami.scheduler.decide.fit import Fit, Misfit, fit_node, question
from hami.scheduler.decide.place import Placement, place, place_exactly
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.decide.wings import bubbles, linked
from hami.scheduler.decide.words import wishes_in, words_of
from hami.scheduler.dryrun import node_state
from hami.vendors.config import DeviceConfig, device_config
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.requests import pod_request

VENDORS = vendors_of(DeviceConfig())
SPREAD = SchedulingPolicy()
MUTEX = SchedulingPolicy(device="mutex")
XPU, VXPU, VXPU_MEMORY = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
GCU, SLICES, GCU_MEMORY, GCU_CORES = "enflame.com/gcu", "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
PROFILES = {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2", "odd": "9"}


def pod_of(*limits: dict[str, str], requests: dict[str, str] | None = None, notes: dict[str, str] | None = None) -> Pod:
    resources: list[dict[str, Any]] = [{"limits": each} for each in limits] or [{"requests": requests}]
    raw: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": notes},
        "spec": {"containers": [{"name": f"c{number}", "resources": each} for number, each in enumerate(resources)]},
    }
    return msgspec.convert(raw, Pod)


def asked(*limits: dict[str, str], notes: dict[str, str] | None = None) -> PodRequest:
    return pod_request(pod_of(*limits, notes=notes), VENDORS)


def admit(pod: Pod) -> Admitted | Denied | Ignored:
    return mutate(pod, AdmissionSettings(vendors=VENDORS), ClusterSnapshot())


def added(answer: Admitted | Denied | Ignored) -> dict[str, object]:
    assert isinstance(answer, Admitted), answer
    return {str(each["path"]).removeprefix("/spec/containers/0/resources/"): each["value"] for each in answer.patch}


def node_of(name: str = "n", *, capacity: dict[str, str] | None = None, notes: dict[str, str] | None = None) -> NodeState:
    raw = {"metadata": {"name": name, "annotations": notes}, "status": {"capacity": capacity}}
    return node_state(msgspec.convert(raw, Node), VENDORS)


def xpus(count: int = 8, name: str = "n") -> NodeState:
    return node_of(name, capacity={XPU: str(count)})


def vxpus(count: int = 8, slots: int = 4) -> NodeState:
    wire = [
        {"id": f"X{number}", "index": number, "count": slots, "devmem": 98304, "devcore": 100, "type": "XPU", "health": True}
        for number in range(count)
    ]
    return node_of(notes={"hami.io/node-register-xpu": json.dumps(wire)})


def gcus(*capacities: int | str, profiles: dict[str, str] | None = None) -> NodeState:
    cards = [{"index": str(number), "minor": str(10 + number), "capacity": each} for number, each in enumerate(capacities)]
    announced = {"devices": cards, "profiles": PROFILES if profiles is None else profiles}
    return node_of(notes={"enflame.com/gcu-drs-capacity": json.dumps(announced)})


def changed(node: NodeState, *numbers: int, **facts: Any) -> NodeState:
    devices = [
        msgspec.structs.replace(each, **facts) if number in numbers else each for number, each in enumerate(node.devices)
    ]
    return msgspec.structs.replace(node, devices=tuple(devices))


def used(node: NodeState, *numbers: int, slots: int = 1, memory: int = 98_304, cores: int = 100) -> NodeState:
    return changed(node, *numbers, used=DeviceUsage(slots, memory, cores))


def fit(node: NodeState, request: PodRequest, policy: SchedulingPolicy = SPREAD) -> Fit | Misfit:
    return fit_node(node, question(request, policy, VENDORS, {}))


def taken(verdict: Fit | Misfit) -> list[list[int]]:
    assert isinstance(verdict, Fit), verdict
    return [[share.index for share in each.shares] for each in verdict.containers]


def sizes(verdict: Fit | Misfit) -> list[list[tuple[int, int]]]:
    assert isinstance(verdict, Fit), verdict
    return [[(share.memory, share.cores) for share in each.shares] for each in verdict.containers]


# --- linked cards ---

EVERY_CHOICE = list(chain.from_iterable(combinations(range(8), size) for size in range(9)))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_linked_cards_are_of_one_wing_or_pairs_across_and_found_wherever_there_are_any(count: int) -> None:
    for fitting in EVERY_CHOICE:
        wings = [place // 4 for place in fitting]
        pairs = sum(place + 4 in fitting for place in fitting if place < 4)
        in_wing = count <= max(wings.count(0), wings.count(1)) if count < 8 else len(fitting) == 8
        across = count in {2, 4} and pairs >= count // 2
        found = linked(fitting, count)
        assert (found is not None) == (in_wing or across), fitting
        if found is None:
            continue
        assert len(set(found)) == count
        assert set(found) <= set(fitting)
        assert (
            count == 8
            or len({place // 4 for place in found}) == 1
            or {place % 4 for place in found if place < 4} == {place % 4 for place in found if place >= 4}
        )


@pytest.mark.parametrize(
    ("fitting", "count", "places"),
    [
        ((0, 1, 2, 3, 4, 5), 1, [4]),  # three are left in no wing, four stay together
        ((0, 1, 2, 4), 1, [4]),  # a single one goes first
        ((0, 1, 2, 3, 4, 5, 6), 2, [4, 5]),
        ((0, 1, 4, 5, 6, 7), 2, [0, 1]),
        ((3, 7), 2, [3, 7]),
        ((0, 1, 4, 5, 6), 4, [0, 1, 4, 5]),
        ((0, 1, 2, 4, 5, 6), 4, [0, 1, 4, 5]),  # leaves 2 and 6, which are linked
        ((0, 1, 3, 4, 5, 7), 4, [0, 1, 4, 5]),
        ((8, 9, 12, 13), 4, [8, 9, 12, 13]),  # the second group of eight
        ((7, 8), 2, None),
        ((0, 1, 2), 3, None),
    ],
)
def test_which_linked_cards_are_taken_first(fitting: tuple[int, ...], count: int, places: list[int] | None) -> None:
    assert linked(fitting, count) == places


@pytest.mark.parametrize(
    ("places", "broken"), [((), 1), ((0, 1, 2, 3), 1), (range(8), 0), ((0,), 3), ((0, 4), 4), ((0, 1), 2), ((8, 9, 10, 11), 1)]
)
def test_broken_wings_are_counted(places: tuple[int, ...], broken: int) -> None:
    assert bubbles(places) == broken


def test_links_go_by_index_whatever_is_loaded() -> None:
    two = asked({XPU: "2"})
    assert taken(fit(used(xpus(), 0, 1, 2, 4, 5, 6), two)) == [[3, 7]]
    assert fit(used(xpus(), 0, 1, 2, 4, 5, 7), two) == Misfit("1/8 NumaNotFit")
    assert taken(fit(xpus(), asked({XPU: "2"}, {XPU: "2"}, {XPU: "4"}))) == [[0, 1], [2, 3], [4, 5, 6, 7]]


def test_whole_cards_are_taken_whole_and_only_idle() -> None:
    assert sizes(fit(xpus(1), asked({XPU: "1"}))) == [[(98_304, 100)]]
    assert fit(used(xpus(1), 0, memory=0, cores=0), asked({XPU: "1"})) == Misfit("1/1 NumaNotFit")
    assert fit(xpus(2), asked({XPU: "4"})) == Misfit("NodeInsufficientDevice")


def test_a_card_must_be_in_both_lists_and_in_neither_of_the_others() -> None:
    notes = {"hami.io/use-xpu-uuid": "n-kunlun-1,n-kunlun-2", "baidu.com/use-gpuuuid": "n-kunlun-2,n-kunlun-3"}
    assert taken(fit(xpus(), asked({XPU: "1"}, notes=notes))) == [[2]]
    refused = {**notes, "baidu.com/nouse-gpuuuid": "n-kunlun-2"}
    assert fit(xpus(), asked({XPU: "1"}, notes=refused)) == Misfit("8/8 CardUuidMismatch")
    assert wishes_in(refused, [each for each in VENDORS if each.word == "kunlun"]) == refused


def test_a_cordoned_card_is_named_where_nothing_else_explains_the_refusal() -> None:
    assert fit(changed(xpus(2), 0, cordoned=True), asked({XPU: "2"})) == Misfit("1/2 CardCordoned")
    assert taken(fit(changed(xpus(2), 0, cordoned=True), asked({XPU: "1"}))) == [[1]]


def test_the_node_whose_wings_stay_whole_wins_on_both_ways() -> None:
    nodes = {"a": used(xpus(name="a"), 0, 1), "b": used(xpus(name="b"), 0, 1, 2, 3)}
    snapshot = ClusterSnapshot(nodes=nodes)
    planes = Planes(VENDORS)
    planes.sync(snapshot)
    request = asked({XPU: "4"})
    for found in (
        place(snapshot, planes, request, ["a", "b"], SPREAD),
        place_exactly(snapshot, VENDORS, request, ["a", "b"], SPREAD),
    ):
        assert isinstance(found, Placement)
        assert found.node == "a"  # before: one wing broken in two, one untouched; four cards of the other wing mend the count
        assert found.score == pytest.approx(3005.025, rel=1e-6)


def test_a_node_with_another_vendors_card_gets_no_points_for_wings() -> None:
    mixed = msgspec.structs.replace(xpus(), devices=(*xpus().devices, *node_of(capacity={GCU: "1"}).devices))
    found = place_exactly(ClusterSnapshot(nodes={"n": mixed}), VENDORS, asked({XPU: "1"}), ["n"], SPREAD)
    assert isinstance(found, Placement)
    assert found.score == 0.0


def test_whole_cards_are_announced_with_their_numa_node_and_told_to_the_plugin() -> None:
    assert [each.device.numa for each in xpus(3).devices] == [0, 1, 1]
    assert xpus(4000).devices == ()
    request = asked({XPU: "1"}, {XPU: "2"})
    verdict = fit(xpus(), request)
    assert isinstance(verdict, Fit)
    notes = binding_annotations(verdict.containers, VENDORS, reservation_id="r", node=xpus(), now_s=1, request=request)
    assert notes["BAIDU_COM_DEVICE_IDX"] == "1,2"
    assert notes["hami.io/kunlun-allocated"].startswith("n-kunlun-0,kunlun,98304,100:;n-kunlun-1,")


# --- equal parts ---


@pytest.mark.parametrize(
    ("memory", "part"),
    [("0", 24_576), ("24577", 49_152), ("49152", 49_152), ("98305", 98_304), ("16Gi", 24_576), ("32Gi", 49_152)],
)
def test_vxpu_memory_is_rounded_up_to_a_part_at_both_doors(memory: str, part: int) -> None:
    assert added(admit(pod_of({VXPU: "1", VXPU_MEMORY: memory})))["limits/kunlunxin.com~1vxpu-memory"] == str(part)
    assert added(admit(pod_of({VXPU: "1", VXPU_MEMORY: memory})))["requests"] == {VXPU_MEMORY: str(part)}
    request = asked({VXPU: "1", VXPU_MEMORY: memory}).containers[0].requests[0]
    assert (request.memory, request.cores) == (part, part * 100 // 98_304)


def test_vxpu_without_memory_is_a_whole_card_and_nothing_is_added() -> None:
    assert not any("resources" in str(path) or "limits" in str(path) for path in added(admit(pod_of({VXPU: "1"}))))
    assert sizes(fit(vxpus(1), asked({VXPU: "1"}))) == [[(98_304, 100)]]
    answer = admit(pod_of({VXPU: "1", VXPU_MEMORY: "1.5"}))
    assert isinstance(answer, Denied)
    assert "vxpu-memory" in answer.message


def test_parts_of_one_card_are_equal() -> None:
    half = asked({VXPU: "1", VXPU_MEMORY: "49152"})
    assert taken(fit(used(vxpus(2), 0, memory=24_576, cores=25), half)) == [[1]]
    assert taken(fit(used(vxpus(2), 0, memory=49_152, cores=50), half)) == [[0]]
    assert fit(used(vxpus(1), 0, memory=24_576, cores=25), half) == Misfit("1/1 NumaNotFit")
    assert fit(used(vxpus(1, slots=1), 0, memory=49_152, cores=50), half) == Misfit("1/1 NumaNotFit")
    quarter = asked(*[{VXPU: "1", VXPU_MEMORY: "1"}] * 4)
    assert taken(fit(vxpus(1), quarter)) == [[0], [0], [0], [0]]
    assert fit(vxpus(1), asked(*[{VXPU: "1", VXPU_MEMORY: "1"}] * 5)) == Misfit("1/1 NumaNotFit")


def test_vxpu_mutex_counts_the_cards_that_would_have_done() -> None:
    quarter = asked({VXPU: "2", VXPU_MEMORY: "1"})
    busy = used(vxpus(), *range(8), memory=24_576, cores=25)
    assert fit(busy, quarter, MUTEX) == Misfit("8/8 ExclusiveDeviceAllocateConflict")
    assert fit(used(vxpus(), *range(8)), quarter, MUTEX) == Misfit("1/8 NumaNotFit")
    assert fit(changed(vxpus(2), 0, 1, health=Health.UNHEALTHY), quarter) == Misfit("1/2 NumaNotFit")


# --- Enflame ---


def test_whole_gcus_are_given_out_once() -> None:
    node = node_of(capacity={GCU: "2"})
    assert sizes(fit(node, asked({GCU: "2"}))) == [[(100, 100), (100, 100)]]
    busy = used(node, 0, memory=100, cores=100)
    assert fit(busy, asked({GCU: "2"})) == Misfit("1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict")
    assert taken(fit(busy, asked({GCU: "1"}, notes={"enflame.com/use-gpuuuid": "n-GCU-0"}))) == [[1]]


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({SLICES: "3"}, (20_480, 50)),
        ({GCU_MEMORY: "20"}, (20_480, 50)),
        ({GCU_MEMORY: "20480"}, (20_480, 50)),
        ({GCU_MEMORY: "20Gi"}, (20_480, 50)),
        ({GCU_MEMORY: "1", GCU_CORES: "18"}, (20_480, 50)),
        ({GCU_MEMORY: "6145"}, (20_480, 50)),
        ({GCU_CORES: "51"}, (40_960, 100)),
        ({GCU_MEMORY: "80"}, None),
        ({GCU_MEMORY: "81"}, (6_144, 17)),
        ({SLICES: "2"}, None),
    ],
)
def test_the_smallest_profile_that_serves_is_given(limits: dict[str, str], size: tuple[int, int] | None) -> None:
    verdict = fit(gcus(6), asked(limits))
    assert verdict == Misfit("1/1 ModeNotFit") if size is None else sizes(verdict) == [[size]]


def test_slices_are_bounded_by_memory_cores_and_within_a_pod_by_slots() -> None:
    three, one = {SLICES: "3"}, {SLICES: "1"}
    assert taken(fit(gcus(6), asked(three, three))) == [[0], [0]]
    assert fit(gcus(6), asked(three, three, one)) == Misfit("1/1 CardTimeSlicingExhausted")
    assert fit(gcus(3), asked(three, one)) == Misfit("1/1 CardTimeSlicingExhausted")
    assert taken(fit(used(gcus(3), 0, memory=20_480, cores=50), asked(one))) == [[0]]
    assert fit(used(gcus(6), 0, memory=40_960, cores=0), asked(one)) == Misfit("1/1 CardInsufficientMemory")
    assert fit(used(gcus(6), 0, memory=0, cores=84), asked(one)) == Misfit("1/1 CardInsufficientCore")
    assert fit(used(gcus(6), 0, memory=0, cores=0), asked(one), MUTEX) == Misfit("1/1 ExclusiveDeviceAllocateConflict")


def test_cards_and_profiles_are_announced_and_told_to_the_plugin() -> None:
    node = gcus(6, "6")
    assert [(each.device.uuid, each.device.slots, each.device.memory) for each in node.devices] == [
        ("n-enflame-drs-0", 6, 40_960),
        ("n-enflame-drs-1", 6, 40_960),
    ]
    request = asked({"cpu": "1"}, {SLICES: "1"}, {SLICES: "3"})
    verdict = fit(node, request, SchedulingPolicy(device="binpack"))
    assert isinstance(verdict, Fit)
    notes = binding_annotations(verdict.containers, VENDORS, reservation_id="r", node=node, now_s=7, request=request)
    assert json.loads(notes["assigned-containers"]) == {
        "c1": {"allocated": False, "request": 1, "profileID": "0", "profileName": "1g.6gb"},
        "c2": {"allocated": False, "request": 3, "profileID": "1", "profileName": "3g.20gb"},
    }
    assert notes["enflame.com/gcu-request-size"] == "1"
    assert (notes["enflame.com/gcu-assigned-index"], notes["enflame.com/gcu-assigned-minor"]) == ("1", "11")
    assert notes["enflame.com/gcu-assigned-time"] == "7000000000"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"devices":[],"profiles":{"1g.6gb":"0"}}',
        '{"devices":[{"index":"0","capacity":6}],"profiles":{"odd":"0"}}',
        '{"devices":[{"index":"x","capacity":6}],"profiles":{"1g.6gb":"0"}}',
        '{"devices":[{"index":"0","capacity":-1}],"profiles":{"1g.6gb":"0"}}',
    ],
)
def test_an_announcement_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    page = by_word(VENDORS, "Enflame")
    assert page is not None
    assert page.discover is not None
    raw = {"metadata": {"name": "n", "annotations": {"enflame.com/gcu-drs-capacity": text}}}
    with pytest.raises(InvalidInput, match="gcu-drs-capacity"):
        page.discover(msgspec.convert(raw, Node), page)


def test_slices_are_written_into_limits_and_requests_alike() -> None:
    assert added(admit(pod_of({SLICES: "2"})))["requests"] == {SLICES: "2"}
    found = added(admit(pod_of(requests={GCU_MEMORY: "20", GCU_CORES: "10"})))
    assert found["limits"] == {GCU_MEMORY: "20", GCU_CORES: "10"}
    assert "requests" not in found


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({SLICES: "0"}, "enflame.com/drs-gcu must be greater than 0"),
        ({GCU_MEMORY: "0"}, "enflame.com/gcu-memory must be greater than 0"),
        ({GCU_CORES: "101"}, "enflame.com/gcu-core must be in range (0,100]"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(limits: dict[str, str], message: str) -> None:
    assert admit(pod_of(limits)) == Denied(500, message)


def test_a_request_by_slices_is_told_in_slices() -> None:
    assert words_of(asked({SLICES: "3"})) == "c0: 1 x Enflame, 3 of enflame.com/drs-gcu"
    assert words_of(asked({GCU_CORES: "30"})) == "c0: 1 x Enflame, any memory, 30 % cores"
    assert asked({SLICES: "0"}).containers[0].requests == ()


def test_older_names_and_missing_sections_of_the_configuration() -> None:
    found = vendors_of(device_config({"nvidia": {}, "enflame": {"resourceNameVGCU": "enflame.com/vgcu"}}))
    assert [(each.word, each.resources.count) for each in found] == [
        ("NVIDIA", "nvidia.com/gpu"),
        ("Enflame", "enflame.com/vgcu"),
    ]
    whole = vendors_of(device_config({"nvidia": {}, "kunlun": {"resourceCountName": XPU}}))
    assert [each.word for each in whole] == ["NVIDIA", "kunlun"]


def test_a_quota_on_parts_is_asked_at_admission() -> None:
    quota = {"team": NamespaceQuota((QuotaLimit(VXPU_MEMORY, 24_576, "q"),))}
    settings = AdmissionSettings(vendors=VENDORS)
    one, two = pod_of({VXPU: "1", VXPU_MEMORY: "1"}), pod_of({VXPU: "2", VXPU_MEMORY: "1"})
    assert isinstance(mutate(one, settings, ClusterSnapshot(quotas=quota)), Admitted)
    assert mutate(two, settings, ClusterSnapshot(quotas=quota)) == Denied(403, "exceeding resource quota")
