"""What the scheduler measures of itself, and HAMi's own gauges worked out at scrape from a frozen look at the view."""

import platform
import sys
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.domain.allocation import Allocation, PodOwner, usage_of
from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState
from hami.domain.device import DeviceState
from hami.scheduler.legacy_metrics import with_old_names
from hami.vendors.vendor import Vendor

_MIB: Final = 2**20
_ZONE: Final = "vGPU"
_BUILD: Final = ("version", "revision", "build_date", "go_version", "compiler", "platform")
_SLOW: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MOST_SERIES: Final = 60_000
"""Per-device and per-pod series in one scrape; what is beyond is left out and counted in hami_series_left_out."""


class Metrics:
    """One registry for each scheduler, so that two can live in one process."""

    def __init__(self, vendors: Iterable[Vendor], *, legacy: bool = False) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.decision = Histogram(
            "hami_decision_seconds", "Time of one extender call.", ["verb", "outcome"], buckets=_SLOW, registry=registry
        )
        self.append = Histogram("hami_append_seconds", "Time of one append of a decision.", buckets=_SLOW, registry=registry)
        self.lock_wait = Histogram("hami_lock_wait_seconds", "Wait for a node lock in bind.", buckets=_SLOW, registry=registry)
        self.conflicts = Counter(
            "hami_append_conflicts", "Appends refused because another writer was first.", ["by"], registry=registry
        )
        self.refusals = Counter("hami_placement_refusals", "Filter calls for which no node fitted.", registry=registry)
        self.notes_dropped = Counter("hami_notes_dropped", "Events nobody waits for that were not written.", registry=registry)
        self.k8s_events_dropped = Counter("hami_kubernetes_events_dropped", "Kubernetes Events not sent.", registry=registry)
        self.crashes = Counter(
            "hami_loop_crashes", "Background loops that failed and were started again.", ["loop"], registry=registry
        )
        self.corrections = Counter(
            "hami_corrections", "Differences between log and API that were corrected.", ["what"], registry=registry
        )
        self.comparisons = Counter("hami_comparisons", "Comparisons of the log with the API.", registry=registry)
        self.drift = Gauge(
            "hami_view_drift", "Differences between log and API found at the last comparison.", registry=registry
        )
        self.staleness = Gauge("hami_view_staleness_seconds", "Age of the view's last confirmation.", registry=registry)
        self.position = Gauge("hami_view_position", "Position g of the view in the log.", registry=registry)
        self.reservations = Gauge("hami_reservations", "Live allocations.", ["phase"], registry=registry)
        self.frozen = Gauge(
            "hami_sweeper_frozen", "1 while so many leases are gone at once that none is believed.", registry=registry
        )
        self.unprepared = Gauge(
            "hami_bound_unprepared", "Bound allocations whose node never reported them prepared.", registry=registry
        )
        build = Gauge("hami_build_info", "Always 1; the build is in the labels.", _BUILD, registry=registry)
        build.labels(version("hami"), "", "", "", platform.python_implementation(), f"{sys.platform}/{platform.machine()}").set(
            1
        )
        self._cluster = _ClusterCollector(tuple(vendors), legacy=legacy)
        self.registry.register(self._cluster)

    def freeze(self, snapshot: ClusterSnapshot) -> None:
        """On the event loop: what the collectors read afterwards, in their thread, does not change any more."""
        self.position.set(snapshot.g)
        phases = Tally(each.phase.value for each in snapshot.allocations.values())
        for phase in ("reserved", "bound", "prepared"):
            self.reservations.labels(phase).set(phases.get(phase, 0))
        self._cluster.frozen = _Frozen(
            tuple(snapshot.nodes.values()),
            tuple(snapshot.allocations.values()),
            dict(snapshot.quotas),
            dict(snapshot.quota_used),
        )


class _Frozen(msgspec.Struct, frozen=True):
    nodes: tuple[NodeState, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    quotas: Mapping[str, NamespaceQuota] = msgspec.field(default_factory=dict)
    quota_used: Mapping[str, Mapping[str, tuple[int, int]]] = msgspec.field(default_factory=dict)


_DEVICE: Final = ("zone", "node", "device_uuid", "device_index")
_SHARE: Final = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")


class _ClusterCollector(Collector):
    """HAMi's metric names, labels and units, so that its dashboards go on working."""

    def __init__(self, vendors: tuple[Vendor, ...], *, legacy: bool) -> None:
        self._vendors, self._legacy = vendors, legacy
        self.frozen = _Frozen()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from with_old_names(self._families()) if self._legacy else self._families()

    def _families(self) -> Iterator[Metric]:
        frozen = self.frozen
        left = MOST_SERIES // 2 if self._legacy else MOST_SERIES
        devices = [(node.name, each) for node in frozen.nodes for each in node.devices]
        shown = devices[: left // 8]
        yield from _device_metrics(shown)
        yield from _mig_metrics(shown)
        left -= 8 * len(shown)
        pods = frozen.allocations[: max(0, left) // 2]
        yield from _share_metrics(pods)
        yield from self._quota_metrics(frozen)
        out = GaugeMetricFamily("hami_series_left_out", "Devices and pods left out of this scrape.")
        out.add_metric([], (len(devices) - len(shown)) + (len(frozen.allocations) - len(pods)))
        yield out

    def _quota_metrics(self, frozen: _Frozen) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "hami_resource_quota_used", "Use of a quota.", labels=("zone", "namespace", "quota_name", "limit")
        )
        limit = GaugeMetricFamily("hami_resource_quota_limit", "A quota's limit.", labels=("zone", "namespace", "quota_name"))
        for namespace in sorted({*frozen.quotas, *frozen.quota_used}):
            quota = frozen.quotas.get(namespace, NamespaceQuota())
            for vendor in self._vendors:
                memory, cores = frozen.quota_used.get(namespace, {}).get(vendor.word, (0, 0))
                for resource, amount in ((vendor.resources.memory, memory), (vendor.resources.cores, cores)):
                    most = quota.limit_of(resource) if resource else None
                    if not resource or (most is None and not amount):
                        continue
                    used.add_metric([_ZONE, namespace, resource, str(most or 0)], amount)
                    if most is not None:
                        limit.add_metric([_ZONE, namespace, resource], most)
        yield used
        yield limit


def _family(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, what, labels=labels)


def _device_metrics(devices: list[tuple[str, DeviceState]]) -> Iterator[Metric]:
    memory_limit = _family("hami_gpu_memory_limit_bytes", "Device memory that may be given out.", *_DEVICE, "device_type")
    core_limit = _family("hami_gpu_core_limit_ratio", "Device cores that may be given out, percent.", *_DEVICE, "device_type")
    memory = _family("hami_gpu_memory_allocated_bytes", "Device memory given out.", *_DEVICE, "device_cores", "device_type")
    shared = _family("hami_gpu_shared_count", "Containers sharing the device.", *_DEVICE, "device_type")
    cores = _family("hami_gpu_core_allocated_ratio", "Device cores given out, percent.", *_DEVICE, "device_type")
    overview = _family(
        "hami_node_gpu_overview",
        "Device memory given out, with the limits as labels.",
        *_DEVICE,
        "device_cores",
        "device_memory_limit",
        "device_type",
    )
    ratio = _family("hami_node_gpu_memory_allocated_ratio", "Share of the memory given out, 0 to 1.", *_DEVICE, "device_type")
    schedulable = _family("hami_device_schedulable", "1 when new pods may get the device.", *_DEVICE, "device_type")
    for node, state in devices:
        device, used = state.device, state.used
        who = [_ZONE, node, device.uuid, str(device.index)]
        kind, bytes_used = device.model, used.memory * _MIB
        memory_limit.add_metric([*who, kind], device.memory * _MIB)
        core_limit.add_metric([*who, kind], device.cores)
        memory.add_metric([*who, str(used.cores), kind], bytes_used)
        shared.add_metric([*who, kind], used.slots)
        cores.add_metric([*who, kind], used.cores)
        overview.add_metric([*who, str(used.cores), str(device.memory), kind], bytes_used)
        if device.memory:
            ratio.add_metric([*who, kind], used.memory / device.memory)
        schedulable.add_metric([*who, kind], int(state.schedulable))
    yield from (memory_limit, core_limit, memory, shared, cores, overview, ratio, schedulable)


def _mig_metrics(devices: list[tuple[str, DeviceState]]) -> Iterator[Metric]:
    labels = (
        *_DEVICE,
        "mig_uuid",
        "profile",
        "gpu_instance_id",
        "compute_instance_id",
        "placement_start",
        "placement_size",
    )
    info = _family("hami_node_gpu_mig_instance_info", "1 for each realised MIG instance.", *labels)
    for node, state in devices:
        for instance in state.mig_in_use:
            if instance.uuid:
                where = (str(instance.placement.start), str(instance.placement.size))
                who = (_ZONE, node, state.device.uuid, str(state.device.index))
                info.add_metric([*who, instance.uuid, instance.profile, "", "", *where], 1)
    yield info


def _share_metrics(allocations: Iterable[Allocation]) -> Iterator[Metric]:
    memory = _family("hami_vgpu_memory_allocated_bytes", "Device memory a pod holds.", *_SHARE)
    cores = _family("hami_vgpu_core_allocated_ratio", "Device cores a pod holds, percent.", *_SHARE)
    for each in allocations:
        reservation = each.reservation
        if not isinstance(reservation.owner, PodOwner):
            continue
        for uuid, used in usage_of(reservation.containers, init_done=each.init_done).items():
            who = [_ZONE, reservation.owner.namespace, reservation.node, reservation.owner.name, "0", uuid]
            memory.add_metric(who, used.memory * _MIB)
            cores.add_metric(who, used.cores)
    yield memory
    yield cores
