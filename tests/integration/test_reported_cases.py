"""Troubles that users of GPU sharing reported (tests/data/pain-cases.json), replayed against a whole scheduler."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from hami.domain.allocation import Reservation, shares_of, usage_of
from hami.domain.device import Device
from hami.events.catalog.allocation import AllocationReleased, AllocationReserved, AllocationShrunk
from hami.events.catalog.governance import QuotaChanged
from hami.events.log import Draft
from hami.kube.kinds import QUOTAS
from hami.vendors import identity
from hami.vendors.annotations import decode_pod
from tests.support.builders import a_bound, a_container, a_device, a_reservation, a_reserved, a_share
from tests.support.objects import pod
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until

CASES: dict[str, Any] = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data/pain-cases.json").read_text())
}


def cards(case: Any) -> list[Device]:
    rows = case["given"]["devices"]
    return [
        a_device(each["id"], model=each["type"], memory=each["mem_mib"], cores=each["cores"], slots=each["slots"], index=number)
        for number, each in enumerate(rows)
    ]


def asking(**amounts: int) -> dict[str, str]:
    return {f"nvidia.com/{name.replace('_', '-')}": str(value) for name, value in amounts.items()}


async def reserved(world: World, made: Obj) -> Reservation:
    found: list[AllocationReserved] = await world.events(AllocationReserved)
    return next(each.reservation for each in found if each.reservation.owner.uid == made["metadata"]["uid"])


async def bound(caller: Caller, made: Obj) -> None:
    assert (await caller.filter(made, ["n1"]))["NodeNames"] == ["n1"]
    assert await caller.bind(made, "n1") == ""


async def test_match_01_two_unserved_pods_on_one_card(world: World) -> None:
    """Whichever of the two starts first, each finds its own limit: it stands on the pod, not in the order of calls."""
    case = CASES["match-01-two-unserved"]
    await world.add_node("n1", *cards(case))
    async with world.scheduler() as caller:
        for each in case["given"]["reservations"]:
            name = each["pod_uid"].lower()
            await bound(caller, await world.add_pod(name, limits=asking(gpu=1, gpumem=each["mem_mib"])))
            notes = (await world.pod_of(name))["metadata"]["annotations"]
            assert notes[identity.memory_key("main", 0)] == f"{each['mem_mib']}m"
            assert notes[identity.visible_key("main")] == each["device"]


async def test_leak_01_a_deletion_that_nobody_saw(world: World) -> None:
    case = CASES["leak-01-missed-delete"]
    [ghost], devices = case["given"]["reservations"], case["given"]["devices"]
    await world.add_node("n1", *[a_device(each) for each in devices])
    shares = a_container(*[a_share(each, 40960, 100) for each in devices])
    held = a_reservation(ghost["id"], shares, pod=ghost["pod_uid"], deadline_ms=2**42)
    async with world.scheduler() as caller:
        for event in (a_reserved(held), a_bound(held)):
            await world.writer.append([Draft(event=event, node="n1", subject=ghost["pod_uid"])])
        [released] = await world.seen(AllocationReleased)
        assert [released.reservation] == case["then"]["released"]
        assert released.reason == case["then"]["reason"]
        await world.settled(caller)
        assert (await caller.filter(await world.add_pod("p1", limits=asking(gpu=2)), ["n1"]))["NodeNames"] == ["n1"]

        async def counted() -> bool:
            found = await caller.metric('hami_corrections_total{what="hami.allocation.released"}')
            return bool(found == float(case["then"]["drift_counter"]))

        await wait_until(counted, "the correction to be counted")


async def test_race_01_two_filters_at_once(world: World) -> None:
    case = CASES["race-01-two-filters"]
    await world.add_node("n1", *cards(case))
    answers: dict[str, Obj] = {}

    async def ask(caller: Caller, made: Obj) -> None:
        answers[made["metadata"]["name"]] = await caller.filter(made, ["n1"])

    pods = [await world.add_pod(each["uid"], limits=asking(gpu=1, gpumem=each["mem_mib"])) for each in case["given"]["pods"]]
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b, anyio.create_task_group() as tasks:
        for caller, made in zip((a, b), pods, strict=True):
            tasks.start_soon(ask, caller, made)
    won = [each for each in answers.values() if each["NodeNames"]]
    [lost] = [each for each in answers.values() if not each["NodeNames"]]
    assert len(won) == case["then"]["reserved_count"]
    assert case["then"]["refused_reason"] in lost["FailedNodes"]["n1"]
    given = [
        share.memory for each in await world.events(AllocationReserved) for share in shares_of(each.reservation.containers)
    ]
    assert sum(given) == case["then"]["sum_reserved_mib"]


async def test_quota_01_a_limit_counts_each_card_of_the_request_once(world: World) -> None:
    case = CASES["quota-01-per-card-times-count"]
    given = case["given"]["quota"]
    await world.add_node("n1", a_device("GPU-1"), a_device("GPU-2"))
    hard = {"limits.nvidia.com/gpucores": str(given["cores"]), "limits.nvidia.com/gpumem": str(given["mem_mib"])}
    await world.kube.create(QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}})
    async with world.scheduler() as caller:
        await world.seen(QuotaChanged)
        await world.settled(caller)
        made = await world.add_pod("p1", limits=asking(**case["given"]["pod"]["limits"]))
        assert bool((await caller.filter(made, ["n1"]))["NodeNames"]) is case["then"]["fit"]
        used = usage_of((await reserved(world, made)).containers).values()
        assert sum(each.cores for each in used) == case["then"]["used"]["cores"]
        assert sum(each.memory for each in used) == case["then"]["used"]["mem_mib"]
        more = await world.add_pod("p2", limits=asking(gpu=1, gpucores=1, gpumem=1))
        assert "ResourceQuotaNotFit" in (await caller.filter(more, ["n1"]))["FailedNodes"]["n1"]


async def test_quota_03_a_sidecar_stays_and_an_init_container_gives_back(world: World) -> None:
    case = CASES["quota-03-sidecar-lifetime"]
    sidecar, warm = case["given"]["init"]
    [serve] = case["given"]["apps"]
    then = case["then"]
    await world.add_node("n1", a_device(case["given"]["device"], memory=then["peak_mib"] + 1000))
    made = pod("p1", namespace="default", limits=asking(gpu=1, gpumem=serve["mem_mib"]))
    made["spec"]["initContainers"] = [
        {
            "name": each["name"],
            "image": "i",
            "resources": {"limits": asking(gpu=1, gpumem=each["mem_mib"])},
            **({"restartPolicy": each["restartPolicy"]} if "restartPolicy" in each else {}),
        }
        for each in (sidecar, warm)
    ]
    made = await world.kube.create_pod(made)
    async with world.scheduler() as caller:
        await bound(caller, made)
        [peak] = usage_of((await reserved(world, made)).containers).values()
        [steady] = usage_of((await reserved(world, made)).containers, init_done=True).values()
        assert (peak.memory, steady.memory) == (then["reserved_before"], then["reserved_after"])
        late = await world.add_pod("p2", limits=asking(gpu=1, gpumem=2000))
        assert not (await caller.filter(late, ["n1"]))["NodeNames"]
        ended = [{"name": warm["name"], "state": {"terminated": {"exitCode": 0}}}]
        await world.kube.patch_pod("default", "p1", {"status": {"initContainerStatuses": ended}}, subresource="status")
        await world.seen(AllocationShrunk)
        await world.settled(caller)
        assert (await caller.filter(late, ["n1"]))["NodeNames"] == ["n1"]


async def test_percent_01_a_percentage_is_of_each_cards_own_memory(world: World) -> None:
    case = CASES["percent-01-own-card-total"]
    await world.add_node("n1", *cards(case))
    asked = case["given"]["pod"]
    async with world.scheduler() as caller:
        made = await world.add_pod("p1", limits=asking(gpu=asked["gpu"], gpumem_percentage=asked["gpumem_percentage"]))
        assert (await caller.filter(made, ["n1"]))["NodeNames"] == ["n1"]
        given = {each.uuid: each.memory for each in shares_of((await reserved(world, made)).containers)}
    assert given == case["then"]["reserved"]


async def test_restart_03_a_pod_that_failed_while_the_agent_was_away_counts_once(world: World) -> None:
    case = CASES["restart-03-kubelet-before-agent"]
    failed = next(each for each in case["when"] if each.get("event") == "pod.failed")
    await world.add_node("n1")
    async with world.scheduler() as caller:
        await bound(caller, await world.add_pod("p1", limits=asking(gpu=1)))
        status = {"status": {"phase": "Failed", "reason": failed["reason"]}}
        await world.kube.patch_pod("default", "p1", status, subresource="status")
        [released] = await world.seen(AllocationReleased)
        assert released.reason == "pod_failed"
        await world.kube.delete_pod("default", "p1", grace=0)
        await world.settled(caller)
        assert (await caller.filter(await world.add_pod("p2", limits=asking(gpu=1)), ["n1"]))["NodeNames"] == ["n1"]
        rounds = await caller.metric("hami_comparisons_total")

        async def compared() -> bool:
            return await caller.metric("hami_comparisons_total") > rounds + 1

        await wait_until(compared, "two more comparisons with the API")
    assert len(await world.events(AllocationReleased)) == 1


def test_pod_01_a_container_without_devices_keeps_its_place() -> None:
    case = CASES["pod-01-empty-slots"]
    found = dict(zip(case["given"]["pod"]["containers"], decode_pod(case["given"]["annotation"]), strict=False))
    told = {
        name: [{"device": each.uuid, "mem_mib": each.memory, "cores": each.cores} for each in entries]
        for name, entries in found.items()
    }
    assert told == case["then"]["by_container"]


@pytest.mark.parametrize("key", ["hami.io/vgpu-node", "container.hami.io/main.visible-devices"])
async def test_match_03_forged_annotations_are_refused_before_the_pod_exists(world: World, key: str) -> None:
    case = CASES["match-03-forged-annotation"]["given"]["pod"]
    assert "hami.io/vgpu-node" in case["annotations"]
    forged = pod("p1", namespace="default", annotations={**case["annotations"], key: "x"})
    forged["spec"]["schedulerName"] = case["schedulerName"]
    request = {"uid": "u", "operation": "CREATE", "namespace": "default", "resource": {"resource": "pods"}, "object": forged}
    async with world.scheduler() as caller:
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = json.loads((await caller.post("/mutate", review))[1])["response"]
    assert answer["allowed"] is False
    assert "is reserved" in answer["status"]["message"]
