"""The simulated API server's rules for objects, where no recording covers them."""

import pytest

from hami.kube.client import KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, QUOTAS
from hami.kube.transport import STRATEGIC_PATCH
from hami.sim.apiserver.app import RunningServer
from hami.sim.apiserver.faults import Fault
from tests.support.objects import node, pod


async def bound(client: KubeClient, name: str = "a") -> str:
    made = await client.create_pod(pod(name))
    uid: str = made["metadata"]["uid"]
    await client.bind(uid=uid, namespace="default", name=name, node="node-0")
    return uid


async def test_status_and_spec_are_written_by_their_own_paths(sim_client: KubeClient) -> None:
    await sim_client.create(NODES, node("n"))
    both = {
        "spec": {"unschedulable": True},
        "status": {"capacity": {"nvidia.com/gpu": "8"}},
        "metadata": {"labels": {"a": "b"}},
    }
    main = await sim_client.patch(NODES, "", "n", both)
    assert (main["spec"].get("unschedulable"), "capacity" in main["status"]) == (True, False)
    await sim_client.patch(NODES, "", "n", {"spec": {"unschedulable": None}})
    status = await sim_client.patch(NODES, "", "n", both, subresource="status")
    assert (status["spec"].get("unschedulable"), status["status"]["capacity"]) == (None, {"nvidia.com/gpu": "8"})


async def test_a_write_that_changes_nothing_is_no_new_version(sim: RunningServer, sim_client: KubeClient) -> None:
    made = await sim_client.create_pod(pod("a", annotations={"x": "1"}))
    again = await sim_client.patch(PODS, "default", "a", {"metadata": {"annotations": {"x": "1"}}})
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"] == str(sim.revision)


async def test_strategic_patches_merge_lists_by_their_key(sim_client: KubeClient) -> None:
    body = pod("a")
    body["spec"]["containers"].append({"name": "side", "image": "x:1"})
    await sim_client.create_pod(body)
    patch = {"spec": {"containers": [{"name": "side", "image": "x:2"}]}, "metadata": {"finalizers": ["hami.io/a"]}}
    done = await sim_client.patch(PODS, "default", "a", patch, content_type=STRATEGIC_PATCH)
    assert [(each["name"], each["image"]) for each in done["spec"]["containers"]] == [
        ("main", "registry.local/show:1"),
        ("side", "x:2"),
    ]
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await sim_client.patch(PODS, "default", "a", conditions, subresource="status", content_type=STRATEGIC_PATCH)
    more = {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]}}
    done = await sim_client.patch(PODS, "default", "a", more, subresource="status", content_type=STRATEGIC_PATCH)
    assert {each["type"]: each["status"] for each in done["status"]["conditions"]} == {"Ready": "True", "Initialized": "True"}


async def test_a_running_pod_is_deleted_when_its_kubelet_confirms(sim_client: KubeClient) -> None:
    uid = await bound(sim_client)
    marked = await sim_client.delete_pod("default", "a")
    assert marked is not None
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert await sim_client.get_pod("default", "a") is not None
    with pytest.raises(ApiError, match="does not match the UID in record"):
        await sim_client.delete_pod("default", "a", grace=0, uid="00000000-0000-0000-0000-000000000000")
    await sim_client.delete_pod("default", "a", grace=0, uid=uid)
    assert await sim_client.get_pod("default", "a") is None


async def test_a_finalizer_holds_the_object_until_it_is_taken_off(sim_client: KubeClient) -> None:
    await sim_client.create(CONFIG_MAPS, {"metadata": {"name": "c", "finalizers": ["hami.io/a"]}})
    await sim_client.delete(CONFIG_MAPS, "default", "c")
    held = await sim_client.read(CONFIG_MAPS, "default", "c")
    assert held["metadata"]["deletionTimestamp"]
    await sim_client.patch(CONFIG_MAPS, "default", "c", {"metadata": {"finalizers": None}})
    assert await sim_client.get(CONFIG_MAPS, "default", "c") is None


async def test_eviction_deletes_with_grace(sim_client: KubeClient) -> None:
    await bound(sim_client)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "default"}}
    await sim_client.request("POST", PODS.path("default", "a", "eviction"), eviction)
    found = await sim_client.get_pod("default", "a")
    assert found is not None
    assert found.metadata.deletion_timestamp


async def test_priority_classes_give_pods_their_value(sim_client: KubeClient) -> None:
    await sim_client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    body = pod("a")
    body["spec"]["priorityClassName"] = "high"
    made = await sim_client.create_pod(body)
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "PreemptLowerPriority")
    body = pod("b")
    body["spec"]["priorityClassName"] = "nope"
    with pytest.raises(ApiError, match="no PriorityClass with name nope was found"):
        await sim_client.create_pod(body)


async def test_requests_in_a_quota_are_enforced_and_freed(sim_client: KubeClient) -> None:
    await sim_client.create(
        QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}}, namespace="default"
    )
    await sim_client.create_pod(pod("a", limits={"nvidia.com/gpu": "2"}))
    with pytest.raises(
        ApiError, match=r"exceeded quota: q, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2"
    ):
        await sim_client.create_pod(pod("b", limits={"nvidia.com/gpu": "1"}))
    await sim_client.delete_pod("default", "a", grace=0)
    await sim_client.create_pod(pod("b", limits={"nvidia.com/gpu": "1"}))


async def test_a_namespace_takes_its_objects_with_it(sim: RunningServer, sim_client: KubeClient) -> None:
    await sim_client.create(NAMESPACES, {"metadata": {"name": "team"}})
    await sim_client.create_pod(pod("a"), namespace="team")
    await sim_client.delete(NAMESPACES, "", "team")
    assert sim.objects("pods") == []
    with pytest.raises(ApiError, match='namespaces "team" not found'):
        await sim_client.create_pod(pod("a"), namespace="team")


async def test_two_patches_at_once_both_land(sim: RunningServer, sim_client: KubeClient) -> None:
    import anyio

    await sim_client.create_pod(pod("a"))
    async with anyio.create_task_group() as tasks:
        for index in range(20):
            tasks.start_soon(sim_client.patch_pod, "default", "a", {"metadata": {"annotations": {f"k{index}": "v"}}})
    found = await sim_client.get_pod("default", "a")
    assert found is not None
    assert len(found.metadata.notes) == 20


async def test_a_dry_run_stores_nothing(sim: RunningServer, sim_client: KubeClient) -> None:
    before = sim.revision
    made = await sim_client.request("POST", PODS.path("default") + "?dryRun=All", pod("a"))
    assert made["metadata"]["uid"]
    assert (sim.revision, sim.objects("pods")) == (before, [])


@pytest.mark.parametrize(
    ("labels", "fields", "names"),
    [
        ("tier in (a, b)", "", ["p0", "p1"]),
        ("tier notin (a),app=demo", "", ["p1", "p2"]),
        ("tier", "", ["p0", "p1"]),
        ("!tier", "", ["p2"]),
        ("tier!=a", "", ["p1", "p2"]),
        ("", "metadata.name=p1", ["p1"]),
        ("", "spec.nodeName=node-0", ["p0"]),
        ("", "spec.nodeName!=node-0,status.phase=Pending", ["p1", "p2"]),
        ("app=demo", "spec.nodeName=node-0", ["p0"]),
    ],
)
async def test_selectors(labels: str, fields: str, names: list[str], sim_client: KubeClient) -> None:
    for index, tier in enumerate(("a", "b", "")):
        await sim_client.create_pod(pod(f"p{index}", labels={"app": "demo"} | ({"tier": tier} if tier else {})))
    found = await sim_client.read(PODS, "default", "p0")
    await sim_client.bind(uid=found["metadata"]["uid"], namespace="default", name="p0", node="node-0")
    assert [each["metadata"]["name"] for each in await sim_client.list(PODS, labels=labels, fields=fields)] == names


async def test_a_fault_applies_to_what_it_names_and_as_often_as_it_says(sim: RunningServer, sim_client: KubeClient) -> None:
    fault = sim.faults.add(Fault(method="PATCH", path="/pods/a$|/pods/a[?]", times=1, status=503))
    await sim_client.create_pod(pod("a"))
    with pytest.raises(ApiError) as caught:
        await sim_client.patch_pod("default", "a", {"metadata": {"annotations": {"x": "1"}}})
    assert caught.value.code == 503
    await sim_client.patch_pod("default", "a", {"metadata": {"annotations": {"x": "1"}}})
    assert fault.hits == 1
