"""The mutating webhook, on pods as a real API server sends them."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, QuotaLimit
from hami.domain.pod import Pod
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, Ignored, mutate
from hami.vendors import identity
from hami.vendors.config import DeviceConfig, NvidiaConfig
from hami.vendors.registry import vendors_of
from tests.conformance.admissions import apply

WIRE = Path(__file__).parent.parent / "data" / "wire"
SETTINGS = AdmissionSettings(vendors=vendors_of(DeviceConfig()))
EMPTY = ClusterSnapshot()
Raw = dict[str, Any]


def recorded(name: str) -> Raw:
    raw: Raw = json.loads((WIRE / f"admission-{name}-mutating.json").read_text(encoding="utf-8"))
    found: Raw = raw["body"]["request"]["object"]
    return found


def typed(raw: Raw) -> Pod:
    return msgspec.convert(raw, Pod)


def admitted(raw: Raw, settings: AdmissionSettings = SETTINGS) -> Raw:
    """The pod after our patch; raises where an operation's parent is missing, as the API server would."""
    answer = mutate(typed(raw), settings, EMPTY)
    assert isinstance(answer, Admitted), answer
    return apply(raw, list(answer.patch))


def references(container: Raw) -> dict[str, str]:
    return {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container.get("env", ()) if "valueFrom" in each
    }


def simple(limits: dict[str, str] | None = None, **container: Any) -> Raw:
    row: Raw = {"name": "main", **container}
    if limits is not None:
        row["resources"] = {"limits": {f"nvidia.com/{name}": value for name, value in limits.items()}}
    return {"metadata": {"name": "p", "namespace": "team"}, "spec": {"containers": [row]}}


def test_a_container_that_asks_learns_its_devices_by_reference() -> None:
    pod = admitted(recorded("create-pod-one-container"))
    container = pod["spec"]["containers"][0]
    assert references(container) == {
        "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['container.hami.io/main.visible-devices']",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "metadata.annotations['container.hami.io/main.memory-limit-0']",
        "CUDA_DEVICE_SM_LIMIT": "metadata.annotations['container.hami.io/main.core-limit']",
        "HAMI_RESERVATION": "metadata.annotations['hami.io/reservation']",
    }
    assert pod["spec"]["schedulerName"] == "hami-scheduler"
    assert pod["metadata"]["labels"] == {identity.LABEL: identity.LABEL_VALUE}


def test_init_containers_and_sidecars_are_marked_too() -> None:
    pod = admitted(recorded("create-pod-init-sidecar-two"))
    for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
        asks = "nvidia.com/gpu" in container["resources"].get("limits", {})
        assert bool(references(container)) is asks, container["name"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (None, [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}], [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "NVIDIA_VISIBLE_DEVICES"),
        ([{"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"}], "CUDA_DEVICE_MEMORY_LIMIT_0"),
        (
            [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}],
            "NVIDIA_VISIBLE_DEVICES",
        ),
    ],
)
def test_a_container_beside_one_that_asks_sees_no_device(env: list[Raw] | None, expected: list[Raw] | str) -> None:
    raw = simple({"gpu": "1"})
    raw["spec"]["containers"].append(
        {"name": "side", "envFrom": [{"configMapRef": {"name": "all"}}], **({"env": env} if env else {})}
    )
    if isinstance(expected, str):
        answer = mutate(typed(raw), SETTINGS, EMPTY)
        assert isinstance(answer, Denied)
        assert expected in answer.message
    else:
        assert admitted(raw)["spec"]["containers"][1]["env"] == expected


def test_a_pod_without_a_name_yet_is_no_trouble() -> None:
    assert admitted(recorded("create-pod-generateName"))["spec"]["schedulerName"] == "hami-scheduler"


def test_a_pod_that_asks_for_nothing_stays_as_it_is() -> None:
    raw = simple()
    assert admitted(copy.deepcopy(raw)) == raw


def test_parents_that_exist_are_kept() -> None:
    raw = simple({"gpu": "2"}, env=[{"name": "A", "value": "b"}])
    raw["metadata"]["labels"] = {"app": "x"}
    pod = admitted(raw)
    assert pod["metadata"]["labels"] == {"app": "x", identity.LABEL: identity.LABEL_VALUE}
    env = pod["spec"]["containers"][0]["env"]
    assert env[0] == {"name": "A", "value": "b"}
    assert {"CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1"} < {each["name"] for each in env}


def test_mutating_twice_adds_nothing_more() -> None:
    once = admitted(simple({"gpu": "1", "gpumem": "1k"}))
    assert admitted(copy.deepcopy(once)) == once


def test_a_plain_card_is_exclusive_and_a_share_without_count_is_one_card() -> None:
    assert admitted(simple({"gpu": "1"}))["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "100"
    limits = admitted(simple({"gpumem": "1000"}))["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpumem": "1000", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    "name", ["NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT_3", "HAMI_RESERVATION"]
)
def test_a_users_own_value_for_our_environment_is_refused(name: str) -> None:
    answer = mutate(typed(simple({"gpu": "1"}, env=[{"name": name, "value": "all"}])), SETTINGS, EMPTY)
    assert isinstance(answer, Denied)
    assert name in answer.message
    assert "spec.containers[0]" in answer.message


def test_a_reference_to_another_containers_annotation_is_refused() -> None:
    other = {"fieldRef": {"fieldPath": identity.field_path(identity.visible_key("other"))}}
    answer = mutate(typed(simple({"gpu": "1"}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": other}])), SETTINGS, EMPTY)
    assert isinstance(answer, Denied)


@pytest.mark.parametrize(
    "key", ["hami.io/vgpu-devices-allocated", "hami.io/reservation", "container.hami.io/main.visible-devices"]
)
def test_forged_annotations_are_refused_by_name(key: str) -> None:
    raw = simple({"gpu": "1"})
    raw["metadata"]["annotations"] = {key: "GPU-mine"}
    answer = mutate(typed(raw), SETTINGS, EMPTY)
    assert isinstance(answer, Denied)
    assert key in answer.message


@pytest.mark.parametrize(
    ("limits", "field"),
    [({"gpu": "1", "gpumem": "1.5"}, "gpumem"), ({"gpu": "500m"}, "gpu"), ({"gpu": "1", "gpucores": "-1"}, "gpucores")],
)
def test_a_quantity_that_cannot_be_read_is_refused_with_field_and_value(limits: dict[str, str], field: str) -> None:
    answer = mutate(typed(simple(limits)), SETTINGS, EMPTY)
    assert isinstance(answer, Denied)
    assert answer.code == 422
    assert f'spec.containers[0].resources.limits["nvidia.com/{field}"]' in answer.message
    assert limits[field] in answer.message


def test_privileged_and_self_placed_pods_are_refused() -> None:
    privileged = mutate(typed(simple({"gpu": "1"}, securityContext={"privileged": True})), SETTINGS, EMPTY)
    assert privileged == Denied(403, "container main is privileged")
    placed = simple({"gpu": "1"})
    placed["spec"]["nodeName"] = "n1"
    assert mutate(typed(placed), SETTINGS, EMPTY) == Denied(403, "pod has node assigned")


def test_another_schedulers_pod_is_left_alone() -> None:
    raw = simple({"gpu": "1"})
    raw["spec"]["schedulerName"] = "mine"
    assert isinstance(mutate(typed(raw), SETTINGS, EMPTY), Ignored)


def test_a_quota_is_asked_before_the_pod_exists() -> None:
    quota = {"team": NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 5000),))}
    snapshot = ClusterSnapshot(quotas=quota, quota_used={"team": {"NVIDIA": (3000, 0)}})
    assert isinstance(mutate(typed(simple({"gpu": "1", "gpumem": "2k"})), SETTINGS, snapshot), Admitted)
    assert mutate(typed(simple({"gpu": "2", "gpumem": "2k"})), SETTINGS, snapshot) == Denied(403, "exceeding resource quota")


@pytest.mark.parametrize(
    ("init", "restart", "fits"),
    [("3k", "", True), ("5k", "", True), ("6k", "", False), ("3k", "Always", True), ("4k", "Always", False)],
    ids=["smaller init", "init at the limit", "init beyond it", "sidecar beside the app", "sidecar and app beyond it"],
)
def test_a_quota_at_admission_counts_init_containers_at_their_peak_and_sidecars_beside_the_apps(
    init: str, restart: str, fits: bool
) -> None:
    quota = {"team": NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 5000),))}
    raw = simple({"gpu": "1", "gpumem": "2k"})
    asks = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": init}}
    raw["spec"]["initContainers"] = [{"name": "init", "resources": asks} | ({"restartPolicy": restart} if restart else {})]
    answer = mutate(typed(raw), SETTINGS, ClusterSnapshot(quotas=quota))
    assert isinstance(answer, Admitted) if fits else answer == Denied(403, "exceeding resource quota")


def test_a_quota_counts_in_the_resources_unit_times_its_factor() -> None:
    settings = AdmissionSettings(vendors=vendors_of(DeviceConfig(nvidia=NvidiaConfig(memory_factor=1024))))
    quota = {"team": NamespaceQuota((QuotaLimit("nvidia.com/gpumem", 3),))}
    snapshot = ClusterSnapshot(quotas=quota, quota_used={"team": {"NVIDIA": (1024, 0)}})
    assert isinstance(mutate(typed(simple({"gpu": "1", "gpumem": "2"})), settings, snapshot), Admitted)
    assert isinstance(mutate(typed(simple({"gpu": "1", "gpumem": "2Gi"})), settings, snapshot), Admitted)
    for amount in ("3", "3Gi"):
        asked = simple({"gpu": "1", "gpumem": amount})
        assert mutate(typed(asked), settings, snapshot) == Denied(403, "exceeding resource quota")


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({"gpu": "1"}, "100"),
        ({"gpu": "1", "gpumem-percentage": "100"}, "100"),
        ({"gpu": "1", "gpumem-percentage": "99"}, None),
        ({"gpu": "1", "gpumem": "1000"}, None),
        ({"gpu": "1", "gpumem": "16Gi"}, None),
        ({"gpu": "1", "gpucores": "30"}, "30"),
        ({"gpucores": "30"}, "30"),
    ],
)
def test_a_card_is_taken_whole_where_nothing_says_that_it_is_shared(limits: dict[str, str], cores: str | None) -> None:
    found = admitted(simple(limits))["spec"]["containers"][0]["resources"]["limits"]
    assert (found.get("nvidia.com/gpucores"), found["nvidia.com/gpu"]) == (cores, "1")


def test_priority_and_core_policy_become_environment() -> None:
    """The priority also of a container without devices, the policy of every container: as in HAMi."""
    forced = AdmissionSettings(vendors=vendors_of(DeviceConfig(nvidia=NvidiaConfig(gpu_core_policy="force"))))
    raw = simple({"gpu": "1", "gpumem": "1k", "priority": "1"})
    raw["spec"]["containers"].append({"name": "side", "resources": {"limits": {"nvidia.com/priority": "0"}}})
    env = [
        {each["name"]: each["value"] for each in container["env"] if "value" in each}
        for container in admitted(raw, forced)["spec"]["containers"]
    ]
    policy = {"GPU_CORE_UTILIZATION_POLICY": "force"}
    assert env == [
        policy | {"CUDA_TASK_PRIORITY": "1"},
        policy | {"CUDA_TASK_PRIORITY": "0", "NVIDIA_VISIBLE_DEVICES": "void"},
    ]


def test_containers_without_devices_are_told_so_when_configured() -> None:
    settings = AdmissionSettings(vendors=vendors_of(DeviceConfig(nvidia=NvidiaConfig(overwrite_env=True))))
    pod = admitted(simple(), settings)
    assert pod["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert "labels" not in pod["metadata"]


def test_a_container_that_asks_for_instances_by_their_own_resource_is_left_to_the_plugin() -> None:
    """A variable of the pod would overrule what the plugin says."""
    settings = AdmissionSettings(vendors=vendors_of(DeviceConfig(nvidia=NvidiaConfig(overwrite_env=True))))
    alone = simple({"mig-1g.10gb": "1"})
    assert "env" not in admitted(alone, settings)["spec"]["containers"][0]
    beside = simple({"gpu": "1"})
    beside["spec"]["containers"].append({**simple({"mig-1g.10gb": "1"})["spec"]["containers"][0], "name": "beside"})
    assert "env" not in admitted(beside)["spec"]["containers"][1]
    beside["spec"]["containers"][1]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert isinstance(mutate(typed(beside), SETTINGS, EMPTY), Denied)


def test_a_runtime_class_is_set_once() -> None:
    settings = AdmissionSettings(vendors=vendors_of(DeviceConfig(nvidia=NvidiaConfig(runtime_class_name="nvidia"))))
    assert admitted(simple({"gpu": "1"}), settings)["spec"]["runtimeClassName"] == "nvidia"
    own = simple({"gpu": "1"})
    own["spec"]["runtimeClassName"] = "kata"
    assert admitted(own, settings)["spec"]["runtimeClassName"] == "kata"


def test_keys_fit_kubernetes_limits_for_the_longest_container_name() -> None:
    name = "c" * 63
    for key in identity.references(name, 200).values():
        prefix, _, rest = key.partition("/")
        assert prefix.endswith("hami.io")
        assert len(rest) <= 63
    assert identity.visible_key(name) != identity.visible_key("c" * 62)
