"""Faults of HAMi v2.10.0, one by one: what HAMi itself answered to a recorded case, and what hami answers.

Those that need a cluster are in tests/integration/test_hami_faults.py; docs/differences.md has the same list in words.
"""

from functools import cache

import pytest

from hami.domain.allocation import usage_of
from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import DeviceState
from hami.domain.errors import InvalidInput
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB
from hami.scheduler.decide.admit import AdmissionSettings, Denied, mutate
from hami.scheduler.decide.place import Placement, Unschedulable, place_exactly
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.refusals import nodes_by_word
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.events_out import left_out_for, none_left
from tests.conformance.answer import Answer
from tests.conformance.filters import check, decide, plain
from tests.conformance.outcome import Status
from tests.conformance.world import DATA, Case, cases_in, pod_of, vendors_for
from tests.support.builders import a_device
from tests.support.clusters import VENDORS

ALLOCATED = "hami.io/vgpu-devices-allocated"


@cache
def recorded() -> dict[str, Case]:
    return {each["id"]: each for each in cases_in(DATA / "nvidia_filter.jsonl.gz")}


def written(answer: Answer) -> str:
    assert isinstance(answer.result, Placement)
    node = answer.snapshot.nodes[answer.result.node]
    notes = binding_annotations(
        answer.result.containers, answer.vendors, reservation_id="r", node=node, now_s=1, request=answer.request
    )
    return notes[ALLOCATED]


def test_b1_a_container_without_devices_keeps_its_place() -> None:
    """The second container asks. HAMi writes its card as the first one's."""
    case = recorded()["dev-nv_dry_run-0028"]
    [hami] = case["expect"]["nodes"]["worker-0-2957"]
    share = ("GPU-6574fe0c-b316-b889", "NVIDIA", 10000, 100)
    assert hami["devices"]["NVIDIA"] == [[list(share)]]
    answer = decide(case)
    assert plain(answer.fits["worker-0-2957"]) == {"NVIDIA": [[], [share]]}
    assert written(answer) == ";GPU-6574fe0c-b316-b889,NVIDIA,10000,100:;"


def test_b1_a_trailing_container_without_devices_has_its_semicolon() -> None:
    case = recorded()["dev-nv_basic-0083"]
    hami = case["expect"]["outcomes"][0]["annotations"][ALLOCATED]
    containers = len(case["input"]["pod"]["spec"]["containers"])
    assert hami.count(";") < containers
    ours = written(decide(case))
    assert ours.count(";") == containers
    assert ours.startswith(hami)


def test_b1b_an_init_container_without_devices_does_not_take_the_apps_card_along_when_it_ends() -> None:
    case = recorded()["dev-nv_init-0023"]
    card = "GPU-54a1472f-c699-7209"
    assert case["expect"]["outcomes"][0]["annotations"][ALLOCATED] == f"{card},NVIDIA,23028,100:;", (
        "at the init container's place"
    )
    answer = decide(case)
    assert written(answer) == f";{card},NVIDIA,23028,100:;"
    assert isinstance(answer.result, Placement)
    assert usage_of(answer.result.containers, init_done=True)[card].memory == 23028


def test_b2_the_request_in_a_cards_score_is_kept_as_it_is() -> None:
    """With the request counted the other card would win; placements agree with HAMi's instead."""
    case = recorded()["dev-nv_policy-0075"]
    [hami] = case["expect"]["nodes"]["a100-0-9372"]
    assert hami["devices"]["NVIDIA"][0][0][0] == "GPU-bec364fd-8895-2931"
    assert check(case).status is Status.PASSED


def _asking(kind: ContainerKind, memory: int, name: str) -> ContainerRequest:
    asked = (DeviceRequest(vendor="NVIDIA", count=1, memory=MiB(memory), cores=CorePercent(0)),) if memory else ()
    return ContainerRequest(name=name, kind=kind, requests=asked)


def test_b3_an_init_container_does_not_open_the_quota_for_the_apps() -> None:
    """Two apps of 3000 MiB under a quota of 5000. With an init container before them, HAMi counts the larger one only."""
    node = NodeState(name="n1", devices=(DeviceState(device=a_device("GPU-a")),))
    quota = NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 5000, "q"),))
    world = ClusterSnapshot(nodes={"n1": node}, quotas={"team": quota})
    apps = [_asking(ContainerKind.APP, 3000, name) for name in ("a", "b")]
    for containers in (apps, [_asking(ContainerKind.INIT, 0, "i"), *apps], [_asking(ContainerKind.INIT, 100, "i"), *apps]):
        request = PodRequest(uid="u", namespace="team", name="p", containers=tuple(containers), annotations={})
        found = place_exactly(world, VENDORS, request, ("n1",), SchedulingPolicy())
        assert found == Unschedulable({"n1": "1/1 ResourceQuotaNotFit"}, {"ResourceQuotaNotFit": 1})


def test_b3_as_recorded_hami_finds_the_quota_too_small_a_container_too_late() -> None:
    """Three apps of 2 x 3000 MiB and more under 10000, after an init container: the second one exceeds it, not the third."""
    case = recorded()["dev-nv_quota-0084"]
    [hami] = case["expect"]["nodes"]["a100-0-d755"]
    assert hami["failed"] == "1/4 CardTimeSlicingExhausted, 3/4 ResourceQuotaNotFit"
    assert decide(case).failed["a100-0-d755"] == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"


def test_b4_a_numa_node_with_enough_cards_is_not_lost_to_the_next_one() -> None:
    case = recorded()["dev-nv_topology-0040"]
    [hami] = case["expect"]["nodes"]["node-0-f111"]
    assert hami["failed"] == "2/8 CardInsufficientMemory, 5/8 CardTimeSlicingExhausted", "one of eight cards had passed"
    answer = decide(case)
    assert isinstance(answer.result, Placement)
    assert answer.result.node == "node-0-f111"


def test_b5_a_sidecar_counts_beside_the_apps() -> None:
    """A sidecar of 10000 MiB and an app of 40000, which run together. HAMi gives both the same card of 46068."""
    case = recorded()["dev-nv_init-0007"]
    [hami] = case["expect"]["nodes"]["node-0-7263"]
    _, _, [sidecar], [app], _ = hami["devices"]["NVIDIA"]
    assert (sidecar[0], sidecar[2] + app[2]) == (app[0], 50000)
    answer = decide(case)
    memory = {each.device.uuid: each.device.memory for each in answer.snapshot.nodes["node-0-7263"].devices}
    assert memory[app[0]] == 46068
    assert isinstance(answer.result, Placement)
    together: dict[str, int] = {}
    for container in answer.result.containers[2:]:
        for share in container.shares:
            together[share.uuid] = together.get(share.uuid, 0) + share.memory
    assert sum(together.values()) == 70000
    assert all(taken <= memory[uuid] for uuid, taken in together.items())


@pytest.mark.parametrize("name", ["dev-nv_malformed-0014", "dev-nv_malformed-0029"])
def test_b7_memory_in_bytes_is_read_not_dropped(name: str) -> None:
    """`gpumem: 16Gi`. HAMi places nothing and lets the pod run anywhere: the answer is the list it was asked with."""
    case = recorded()[name]
    assert case["expect"]["outcomes"] == [{"node_names": case["input"]["node_names"]}]
    assert case["expect"]["requests"] == [{}]
    answer = decide(case)
    assert [each.memory for each in answer.request.containers[0].requests] == [16384]
    assert answer.result is not None


@pytest.mark.parametrize("name", ["dev-nv_malformed-0038", "dev-nv_malformed-0037"])
def test_b7_memory_that_nobody_can_hold_is_refused_by_name(name: str) -> None:
    case = recorded()[name]
    assert case["expect"]["outcomes"] == [{"node_names": case["input"]["node_names"]}]
    with pytest.raises(InvalidInput, match=r"nvidia\.com/gpumem"):
        decide(case)
    admitted = mutate(pod_of(case["input"]["pod"]), AdmissionSettings(vendors=vendors_for(case)), ClusterSnapshot())
    assert isinstance(admitted, Denied)
    assert "nvidia.com/gpumem" in admitted.message


def test_b9_no_candidates_is_an_answer() -> None:
    case = recorded()["dev-nv_no_candidates_arg-0004"]
    assert case["expect"]["outcomes"][0]["panic"].startswith("runtime error: invalid memory address")
    assert check(case).status is Status.DOCUMENTED


def test_refusals_are_told_in_hamis_sentences() -> None:
    """Kubernetes Events about pods that fit nowhere, as HAMi sent them for the same clusters."""
    told = 0
    for case in recorded().values():
        outcome = check(case)
        if outcome.status is not Status.PASSED and outcome.fault != "B1":
            continue
        answer = None if case["family"] == "nv_no_candidates_arg" else decide(case)
        if answer is None or not isinstance(answer.result, Unschedulable) or case["input"]["op"] != "filter":
            continue
        sentences = [left_out_for(word, nodes) for word, nodes in nodes_by_word(answer.result.reasons).items()]
        sentences.append(none_left(len(case["input"]["node_names"])))
        ours = sorted(f"Warning FilteringFailed {each}" for each in sentences)
        assert ours in [sorted(each) for each in case["expect"]["events"]], case["id"]
        told += 1
    assert told > 400
