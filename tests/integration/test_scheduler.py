"""A whole scheduler over HTTP: filter, bind and the verbs beside them, what lands in the log and on the pod."""

import json

from hami.events.catalog.allocation import AllocationBound, AllocationLapsed, AllocationReleased, AllocationReserved
from hami.events.catalog.governance import PlacementRefused, PolicyChanged
from hami.events.catalog.node import NodeRegistered
from hami.kube.kinds import NODES
from hami.vendors.registers import encode_register
from tests.support.builders import a_device
from tests.support.objects import node
from tests.support.scheduler import World
from tests.support.waiting import wait_until

WHOLE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100"}


async def test_filter_reserves_and_bind_writes_the_binding_with_its_annotations(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        found = await caller.filter(pod, ["n1", "absent"])
        assert found["NodeNames"] == ["n1"]
        assert found["FailedNodes"] == {"absent": "node unregistered"}
        assert found["Error"] == ""
        assert await caller.bind(pod, "n1") == ""
    bound = await world.pod_of("p1")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"]["container.hami.io/main.visible-devices"] == "GPU-n1"
    assert bound["metadata"]["annotations"]["hami.io/vgpu-node"] == "n1"
    reserved = await world.events(AllocationReserved)
    assert [each.reservation.node for each in reserved] == ["n1"]
    assert [each.reservation for each in await world.events(AllocationBound)] == [reserved[0].reservation.id]
    assert len(await world.events(PolicyChanged)) == 1


async def test_in_profile_prod_decisions_wait_for_the_append_only_file(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")

    async def waited() -> int:
        answer = await world.redis.command.call("INFO", "commandstats")
        return answer.decode().count("cmdstat_waitaof") if isinstance(answer, bytes) else 0

    await world.redis.command.call("CONFIG", "RESETSTAT")
    async with world.scheduler() as caller:
        await caller.filter(pod, ["n1"])
    assert await waited() == 0
    async with world.scheduler(durability="prod") as caller:
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""
    assert await waited() == 1


async def test_a_pod_that_asks_for_nothing_may_go_anywhere(world: World) -> None:
    pod = await world.add_pod("plain", limits={"cpu": "1"})
    async with world.scheduler() as caller:
        found = await caller.filter(pod, ["a", "b"])
    assert found["NodeNames"] == ["a", "b"]
    assert await world.events(AllocationReserved) == []


async def test_a_second_filter_replaces_the_first_reservation_in_one_step(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1", limits=WHOLE)
    async with world.scheduler() as caller:
        first = await caller.filter(pod, ["n1"])
        second = await caller.filter(pod, ["n1"])
    assert first == second
    reserved = await world.events(AllocationReserved)
    [lapsed] = await world.events(AllocationLapsed)
    assert len(reserved) == 2
    assert (lapsed.reservation, lapsed.reason) == (reserved[0].reservation.id, "replaced")


async def test_a_bound_pod_is_answered_with_its_node_and_no_other(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        [chosen] = (await caller.filter(pod, ["n1", "n2"]))["NodeNames"]
        other = "n2" if chosen == "n1" else "n1"
        assert await caller.bind(pod, chosen) == ""
        again = await caller.filter(pod, ["n1", "n2"])
        assert again["NodeNames"] == [chosen]
        elsewhere = await caller.filter(pod, [other])
        assert not elsewhere["NodeNames"]
        assert elsewhere["FailedNodes"] == {other: "pod has a live reservation on another node"}
        assert await caller.bind(pod, chosen) == ""
    assert len(await world.events(AllocationReserved)) == 1


async def test_the_same_state_gives_the_same_bytes_and_one_refusal(world: World) -> None:
    for name in ("n1", "n2", "n3"):
        await world.add_node(name, a_device(f"GPU-{name}", memory=500))
    pod = await world.add_pod("big")
    body = {"Pod": pod, "Nodes": None, "NodeNames": ["n3", "n1", "n2"]}
    async with world.scheduler() as caller:
        answers = {(await caller.post("/filter", body))[1] for _ in range(4)}
        [answer] = answers
        assert set(json.loads(answer)["FailedNodes"].values()) == {"1/1 CardInsufficientMemory"}
        [refused] = await world.seen(PlacementRefused)
        assert refused.counts == {"CardInsufficientMemory": 3}
        await world.add_node("n4", a_device("GPU-n4", memory=500))
        await world.settled(caller)
        await caller.filter(pod, ["n1", "n2", "n3", "n4"])
        assert (await world.seen(PlacementRefused, 2))[1].nodes_seen == 4


async def test_a_dry_run_over_whole_nodes_writes_nothing(world: World) -> None:
    register = encode_register([a_device("GPU-x")])
    rich = node("rich") | {"metadata": {"name": "rich", "annotations": {"hami.io/node-nvidia-register": register}}}
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        status, body = await caller.post("/filter", {"Pod": pod, "Nodes": {"items": [rich, node("poor")]}, "NodeNames": None})
    found = json.loads(body)
    assert status == 200
    assert [each["metadata"]["name"] for each in found["Nodes"]["items"]] == ["rich"]
    assert found["FailedNodes"] == {"poor": "node unregistered"}
    assert await world.events(AllocationReserved) == []


async def test_placement_scored_names_all_that_fit_and_bind_reserves(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    await world.add_node("small", a_device("GPU-small", memory=10))
    pod = await world.add_pod("p1")
    other = await world.add_pod("p2")
    async with world.scheduler(placement="scored") as caller:
        found = await caller.filter(pod, ["n1", "n2", "small"])
        assert sorted(found["NodeNames"]) == ["n1", "n2"]
        assert list(found["FailedNodes"]) == ["small"]
        assert await world.events(AllocationReserved) == []
        assert await caller.bind(pod, "n2") == ""
        status, body = await caller.post("/prioritize", {"Pod": other, "Nodes": None, "NodeNames": ["n1", "n2", "small"]})
        assert status == 200
        assert {each["Host"]: each["Score"] for each in json.loads(body)} == {"n1": 0, "n2": 10, "small": 0}
    [reserved] = await world.events(AllocationReserved)
    assert reserved.reservation.node == "n2"
    assert (await world.pod_of("p1"))["spec"]["nodeName"] == "n2"


async def test_preemption_keeps_only_nodes_where_the_victims_devices_are_enough(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2", a_device("GPU-n2", memory=100))
    victim = await world.add_pod("victim", limits=WHOLE)
    pod = await world.add_pod("urgent")
    async with world.scheduler() as caller:
        await caller.filter(victim, ["n1"])
        victims = {"Pods": [{"UID": victim["metadata"]["uid"]}], "NumPDBViolations": 0}
        nobody = {"Pods": [{"UID": "someone-else"}], "NumPDBViolations": 0}
        asked = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": {"n1": victims, "n2": nobody}}
        status, body = await caller.post("/preempt", asked)
        assert (status, json.loads(body)) == (200, {"NodeNameToMetaVictims": {"n1": victims}})
        asked["NodeNameToMetaVictims"] = {"n1": nobody}
        assert json.loads((await caller.post("/preempt", asked))[1]) == {"NodeNameToMetaVictims": {}}


async def test_metrics_carry_hamis_names_and_ours(world: World) -> None:
    await world.add_node("n1", a_device("GPU-n1", memory=1000, index=3))
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        assert await caller.bind(pod, (await caller.filter(pod, ["n1"]))["NodeNames"][0]) == ""
        text = await caller.metrics()
    device = 'device_index="3",device_type="NVIDIA A100",device_uuid="GPU-n1",node="n1",zone="vGPU"'
    assert f"hami_gpu_shared_count{{{device}}} 1.0" in text
    assert f"hami_gpu_memory_limit_bytes{{{device}}} 1.048576e+09" in text
    assert 'hami_reservations{phase="bound"} 1.0' in text
    assert 'hami_decision_seconds_count{outcome="placed",verb="filter"} 1.0' in text
    assert 'pod="p1"' in text


async def test_nothing_is_written_to_nodes_and_pods_but_the_binding(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    unfit = await world.add_pod("unfit", limits={"nvidia.com/gpu": "5"})
    async with world.scheduler() as caller:
        before = await world.versions(NODES)
        await caller.bind(pod, (await caller.filter(pod, ["n1"]))["NodeNames"][0])
        await caller.filter(unfit, ["n1"])

        async def rounds() -> bool:
            return await caller.metric("hami_comparisons_total") >= 3

        await wait_until(rounds, "three comparisons")
        assert await world.versions(NODES) == before
        assert (await world.pod_of("unfit"))["metadata"]["resourceVersion"] == unfit["metadata"]["resourceVersion"]


async def test_what_runs_on_a_shared_card_is_known_to_a_scheduler_started_later(world: World) -> None:
    await world.add_node("n1")
    card = a_device("GPU-shared", vendor="Metax-SGPU", model="Metax-SGPU")
    await world.write(NodeRegistered(vendor="Metax-SGPU", devices=(card,), node_uid="", boot_id="boot"), node_name="n1")
    share = {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4"}
    online = await world.add_pod("online", limits=share, annotations={"metax-tech.com/sgpu-app-class": "online"})
    plain = await world.add_pod("plain", limits=share)
    async with world.scheduler() as caller:
        assert (await caller.filter(online, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(online, "n1") == ""
    async with world.scheduler(id="b") as caller:
        refused = await caller.filter(plain, ["n1"])
        assert refused["FailedNodes"] == {"n1": "1/1 CardAppClassMismatch"}
        await world.kube.delete_pod("default", "online", grace=0)
        await world.seen(AllocationReleased)
        await world.settled(caller)
        assert (await caller.filter(plain, ["n1"]))["NodeNames"] == ["n1"]
