"""HAMi's metric names from before v2.9, made of the present ones: for dashboards that still ask for them (`legacy_metrics`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

_ZONE: Final = "zone"


class _Old(NamedTuple):
    """The old name, and its labels: old name -> what it shows of the present labels."""

    name: str
    labels: Mapping[str, Callable[[Mapping[str, str]], str]]


def _same(**renamed: str) -> dict[str, Callable[[Mapping[str, str]], str]]:
    return {old: _label(new) for old, new in renamed.items()}


def _label(name: str) -> Callable[[Mapping[str, str]], str]:
    return lambda labels: labels[name]


def _instance(labels: Mapping[str, str]) -> str:
    return f"{labels['profile']}-{labels['gpu_instance_id']}"


_DEVICE: Final = _same(nodeid="node", deviceuuid="device_uuid", deviceidx="device_index")
_TYPE: Final = _same(devicetype="device_type")
_CORES: Final = _same(devicecores="device_cores")
_POD: Final = _same(
    podnamespace="namespace", nodename="node", podname="pod", containeridx="container_index", deviceuuid="device_uuid"
)
OLD_NAMES: Final[Mapping[str, _Old]] = {
    "hami_gpu_memory_limit_bytes": _Old("GPUDeviceMemoryLimit", _DEVICE | _TYPE),
    "hami_gpu_core_limit_ratio": _Old("GPUDeviceCoreLimit", _DEVICE | _TYPE),
    "hami_gpu_memory_allocated_bytes": _Old("GPUDeviceMemoryAllocated", _DEVICE | _CORES | _TYPE),
    "hami_gpu_shared_count": _Old("GPUDeviceSharedNum", _DEVICE | _TYPE),
    "hami_gpu_core_allocated_ratio": _Old("GPUDeviceCoreAllocated", _DEVICE | _TYPE),
    "hami_node_gpu_overview": _Old(
        "nodeGPUOverview", _DEVICE | _CORES | _same(devicememorylimit="device_memory_limit") | _TYPE
    ),
    "hami_node_gpu_memory_allocated_ratio": _Old("nodeGPUMemoryPercentage", _DEVICE),
    "hami_node_gpu_mig_instance_info": _Old("nodeGPUMigInstance", {**_DEVICE, "migname": _instance}),
    "hami_resource_quota_used": _Old("QuotaUsed", _same(quotanamespace="namespace", quotaName="quota_name", limit="limit")),
    "hami_vgpu_memory_allocated_bytes": _Old("vGPUMemoryAllocated", _POD),
    "hami_vgpu_core_allocated_ratio": _Old("vGPUCoreAllocated", _POD),
}


def with_old_names(families: Iterable[Metric]) -> Iterator[Metric]:
    """Every family as it is, followed by its old self where it had one."""
    for family in families:
        yield family
        old = OLD_NAMES.get(family.name)
        if old is not None:
            renamed = GaugeMetricFamily(old.name, f"Old name of {family.name}.", labels=(_ZONE, *old.labels))
            for sample in family.samples:
                shown = [show(sample.labels) for show in old.labels.values()]
                renamed.add_metric([sample.labels[_ZONE], *shown], sample.value)
            yield renamed
