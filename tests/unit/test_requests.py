"""What a pod asks for."""

import msgspec
import pytest

from hami.domain.errors import InvalidInput
from hami.domain.pod import Pod
from hami.domain.request import ContainerKind, DeviceRequest
from hami.domain.units import CorePercent, MiB
from hami.vendors.config import DeviceConfig, NvidiaConfig, device_config
from hami.vendors.registry import vendors_of
from hami.vendors.requests import malformed, pod_request

VENDORS = vendors_of(DeviceConfig())


def pod(*containers: dict[str, object], inits: tuple[dict[str, object], ...] = ()) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "team", "uid": "u"},
            "spec": {"containers": containers, "initContainers": inits},
        },
        Pod,
    )


def asking(**limits: str) -> dict[str, object]:
    return {"name": "c", "resources": {"limits": {f"nvidia.com/{name}": value for name, value in limits.items()}}}


def test_containers_come_in_spec_order_with_their_kinds() -> None:
    asked = pod({"name": "app"}, inits=({"name": "first"}, {"name": "side", "restartPolicy": "Always"}))
    found = pod_request(asked, VENDORS)
    assert [(each.name, each.kind) for each in found.containers] == [
        ("first", ContainerKind.INIT),
        ("side", ContainerKind.SIDECAR),
        ("app", ContainerKind.APP),
    ]
    assert not found.asks_for_devices


def test_a_bare_count_means_the_whole_memory() -> None:
    found = pod_request(pod(asking(gpu="2")), VENDORS)
    assert found.containers[0].requests == (DeviceRequest(vendor="NVIDIA", count=2, memory_percent=100),)


def test_defaults_of_the_configuration_stand_in() -> None:
    vendors = vendors_of(DeviceConfig(nvidia=NvidiaConfig(default_memory=5000, default_cores=30)))
    found = pod_request(pod(asking(gpu="1")), vendors)
    assert found.containers[0].requests == (DeviceRequest(vendor="NVIDIA", count=1, memory=MiB(5000), cores=CorePercent(30)),)


def test_memory_that_cannot_be_read_is_never_dropped() -> None:
    with pytest.raises(InvalidInput) as refused:
        pod_request(pod({"name": "a"}, {"name": "b"}, asking(gpu="1", gpumem="1.5")), VENDORS)
    assert 'spec.containers[2].resources.limits["nvidia.com/gpumem"]' in str(refused.value)
    assert "'1.5'" in str(refused.value)


@pytest.mark.parametrize("limits", [{"gpu": "4294967297"}, {"gpu": "1", "gpucores": "-5"}, {"gpu": "0.5"}])
def test_counts_and_cores_that_would_break_accounting_are_refused(limits: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        pod_request(pod(asking(**limits)), VENDORS)


def test_admission_looks_at_every_quantity_even_without_a_count() -> None:
    error = malformed(pod(asking(gpucores="500m")), VENDORS)
    assert error is not None
    assert error.field == 'spec.containers[0].resources.limits["nvidia.com/gpucores"]'
    assert malformed(pod(asking(gpu="1", gpumem="16Gi", gpucores="30")), VENDORS) is None


def test_a_configuration_names_the_key_that_is_wrong() -> None:
    with pytest.raises(InvalidInput, match=r"nvidia\.defaultMemory"):
        device_config({"nvidia": {"defaultMemory": "much"}})
    with pytest.raises(InvalidInput, match="all configurations are empty"):
        device_config({})
    with pytest.raises(InvalidInput, match=r"nvidia\.memoryFactor"):
        device_config({"nvidia": {"memoryFactor": -1}})
    assert vendors_of(device_config({"nvidia": {"resourceCountName": ""}, "hygon": {"x": 1}})) == ()
