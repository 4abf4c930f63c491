"""The client's calls, against the simulated API server or, with HAMI_TEST_KUBECONFIG, against a real cluster."""

from datetime import UTC, datetime

import pytest

from hami.domain.pod import ObjectMeta
from hami.kube.client import EventNote
from hami.kube.errors import ApiError
from hami.kube.kinds import EVENTS, LEASES, PODS, QUOTAS, Lease, LeaseSpec
from hami.kube.results import AlreadyBound, Bound, Refused
from hami.kube.transport import JSON_PATCH
from tests.support.cluster import Cluster
from tests.support.objects import pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def lease(namespace: str, holder: str, version: str = "") -> Lease:
    meta = ObjectMeta(name="hami", namespace=namespace, resource_version=version)
    times = "2026-01-01T00:00:00.000000Z"
    return Lease(
        metadata=meta, spec=LeaseSpec(holder_identity=holder, lease_duration_seconds=15, acquire_time=times, renew_time=times)
    )


async def test_a_created_pod_reads_back_with_canonical_quantities(cluster: Cluster) -> None:
    await cluster.client.create_pod(pod("a"), namespace=cluster.namespace)
    found = await cluster.client.get_pod(cluster.namespace, "a")
    assert found is not None
    assert found.metadata.uid
    assert found.spec.containers is not None
    assert found.spec.containers[0].limit("nvidia.com/gpumem") == "1k"
    assert found.spec.containers[0].resources is not None
    assert found.spec.containers[0].resources.requests == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1k"}


async def test_what_is_not_there_is_none(cluster: Cluster) -> None:
    assert await cluster.client.get_pod(cluster.namespace, "absent") is None
    assert await cluster.client.get_node("absent-node") is None
    assert await cluster.client.delete_pod(cluster.namespace, "absent") is None


async def test_pages_carry_every_object_of_one_version(cluster: Cluster) -> None:
    for index in range(7):
        await cluster.client.create_pod(pod(f"p{index}"), namespace=cluster.namespace)
    pages = [page async for page in cluster.client.list_pages(PODS, namespace=cluster.namespace, limit=3)]
    assert [len(page.items) for page in pages] == [3, 3, 1]
    assert [page.first for page in pages] == [True, False, False]
    assert len({page.resource_version for page in pages}) == 1
    assert [each.metadata.name for page in pages for each in page.items] == [f"p{index}" for index in range(7)]


async def test_binding_lands_with_its_annotations_in_one_write(cluster: Cluster) -> None:
    made = await cluster.client.create_pod(pod("a", annotations={"hami.io/x": "forged"}), namespace=cluster.namespace)
    uid = made["metadata"]["uid"]
    where = {"uid": uid, "namespace": cluster.namespace, "name": "a"}
    assert await cluster.client.bind(**where, node="node-0", annotations={"hami.io/x": "GPU-1"}) == Bound()
    found = await cluster.client.get_pod(cluster.namespace, "a")
    assert found is not None
    assert (found.spec.node_name, found.metadata.notes["hami.io/x"]) == ("node-0", "GPU-1")


async def test_binding_again_tells_our_own_success_from_somebody_elses(cluster: Cluster) -> None:
    made = await cluster.client.create_pod(pod("a"), namespace=cluster.namespace)
    where = {"uid": made["metadata"]["uid"], "namespace": cluster.namespace, "name": "a"}
    ours = {"hami.io/x": "GPU-1"}
    assert await cluster.client.bind(**where, node="node-0", annotations=ours) == Bound()
    assert await cluster.client.bind(**where, node="node-0", annotations=ours) == Bound(earlier=True)
    assert await cluster.client.bind(**where, node="node-0", annotations={"hami.io/x": "GPU-2"}) == AlreadyBound("node-0")
    assert await cluster.client.bind(**where, node="node-1", annotations=ours) == AlreadyBound("node-0")


async def test_binding_a_pod_that_was_replaced_or_is_gone_is_refused(cluster: Cluster) -> None:
    await cluster.client.create_pod(pod("a"), namespace=cluster.namespace)
    stale = "00000000-0000-0000-0000-000000000000"
    replaced = await cluster.client.bind(uid=stale, namespace=cluster.namespace, name="a", node="node-0")
    assert isinstance(replaced, Refused)
    assert replaced.code == 409
    gone = await cluster.client.bind(uid=stale, namespace=cluster.namespace, name="b", node="node-0")
    assert isinstance(gone, Refused)
    assert gone.code == 404
    found = await cluster.client.get_pod(cluster.namespace, "a")
    assert found is not None
    assert not found.spec.node_name


async def test_merge_patch_sets_and_removes_annotations(cluster: Cluster) -> None:
    await cluster.client.create_pod(pod("a", annotations={"keep": "1", "drop": "1"}), namespace=cluster.namespace)
    patched = await cluster.client.patch_pod(cluster.namespace, "a", {"metadata": {"annotations": {"drop": None, "new": "2"}}})
    assert patched.metadata.annotations == {"keep": "1", "new": "2"}


async def test_a_patch_with_an_old_version_is_a_conflict_in_the_apis_words(cluster: Cluster) -> None:
    made = await cluster.client.create_pod(pod("a"), namespace=cluster.namespace)
    await cluster.client.patch_pod(cluster.namespace, "a", {"metadata": {"annotations": {"a": "1"}}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "annotations": {"b": "2"}}}
    with pytest.raises(ApiError, match="the object has been modified") as caught:
        await cluster.client.patch_pod(cluster.namespace, "a", stale)
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")


async def test_a_json_patch_whose_test_fails_changes_nothing(cluster: Cluster) -> None:
    await cluster.client.create_pod(pod("a", annotations={"a": "1"}), namespace=cluster.namespace)
    operations = [
        {"op": "test", "path": "/metadata/annotations/a", "value": "zzz"},
        {"op": "add", "path": "/metadata/annotations/c", "value": "x"},
    ]
    with pytest.raises(ApiError) as caught:
        await cluster.client.patch(PODS, cluster.namespace, "a", operations, content_type=JSON_PATCH)
    assert caught.value.code == 422
    found = await cluster.client.get_pod(cluster.namespace, "a")
    assert found is not None
    assert found.metadata.annotations == {"a": "1"}


async def test_leases_are_taken_by_one_holder_only(cluster: Cluster) -> None:
    first = await cluster.client.create_lease(lease(cluster.namespace, "a"))
    assert first is not None
    assert await cluster.client.create_lease(lease(cluster.namespace, "b")) is None
    renewed = await cluster.client.update_lease(lease(cluster.namespace, "a", first.metadata.resource_version))
    assert renewed is not None
    taken = await cluster.client.update_lease(lease(cluster.namespace, "b", renewed.metadata.resource_version))
    assert taken is not None
    assert await cluster.client.update_lease(lease(cluster.namespace, "a", renewed.metadata.resource_version)) is None
    found = await cluster.client.get_lease(cluster.namespace, "hami")
    assert found is not None
    assert found.spec.holder_identity == "b"


async def test_events_are_readable_in_both_versions_and_cut_to_what_fits(cluster: Cluster) -> None:
    made = await cluster.client.create_pod(pod("a"), namespace=cluster.namespace)
    about = EventNote(
        "Pod", "a", cluster.namespace, made["metadata"]["uid"], "FilteringFailed", "é" * 1000, "Filtering", warning=True
    )
    await cluster.client.create_event(about, NOW)
    (found,) = await cluster.client.list(
        EVENTS, namespace=cluster.namespace, fields="involvedObject.name=a,reason=FilteringFailed"
    )
    assert (found["type"], found["reason"], found["message"]) == ("Warning", "FilteringFailed", "é" * 512)


async def test_limits_of_a_quota_are_kept_but_do_not_stop_a_pod(cluster: Cluster) -> None:
    hard = {"limits.nvidia.com/gpumem": "1500", "requests.nvidia.com/gpucores": "50"}
    await cluster.client.create(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, namespace=cluster.namespace)
    await cluster.client.create_pod(pod("a", limits={"nvidia.com/gpumem": "9000"}), namespace=cluster.namespace)
    quota = await cluster.client.get(QUOTAS, cluster.namespace, "q")
    assert quota is not None
    assert quota.spec.hard == {"limits.nvidia.com/gpumem": "1500", "requests.nvidia.com/gpucores": "50"}


async def test_a_leases_time_without_microseconds_is_refused_by_name(cluster: Cluster) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    with pytest.raises(ApiError, match="cannot parse") as caught:
        await cluster.client.create(LEASES, body, namespace=cluster.namespace)
    assert caught.value.code == 400
