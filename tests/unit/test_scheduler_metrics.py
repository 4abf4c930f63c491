"""What the scheduler exports, against HAMi's own list, and what a scrape of a large cluster costs."""

from msgspec.structs import replace
from prometheus_client import generate_latest

from hami.domain.allocation import Allocation, Phase
from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import DeviceState, DeviceUsage
from hami.scheduler.metrics import MOST_SERIES, Metrics
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of
from tests.support.builders import a_container, a_device, a_mig_slice, a_reservation, a_share
from tests.support.data import load_json

VENDORS = vendors_of(DeviceConfig())


def a_cluster() -> ClusterSnapshot:
    """One card that one pod uses, with a MIG instance, under a quota."""
    device = a_device("GPU-a", memory=1000)
    state = DeviceState(device=device, used=DeviceUsage(1, 500, 30), mig_in_use=(a_mig_slice(uuid="MIG-1"),))
    made = Allocation(reservation=a_reservation("r1", a_container(a_share("GPU-a", 500, 30)), node="n1"), phase=Phase.BOUND)
    limit = QuotaLimit("nvidia.com/gpumem", 4000, "team")
    return ClusterSnapshot(
        nodes={"n1": NodeState(name="n1", devices=(state,))},
        allocations={"r1": made},
        quotas={"default": NamespaceQuota((limit,))},
        quota_used={"default": {"NVIDIA": (500, 30)}},
    )


def labels_of(metrics: Metrics) -> dict[str, set[str]]:
    return {family.name: set(family.samples[0].labels) for family in metrics.registry.collect() if family.samples}


def test_every_metric_of_hami_is_there_under_its_name_and_labels() -> None:
    metrics = Metrics(VENDORS, legacy=True)
    metrics.freeze(a_cluster())
    found = labels_of(metrics)
    listed = [each for each in load_json("hami-metrics.json") if each["component"] == "scheduler"]
    assert len(listed) == 24
    for each in listed:
        assert found.get(each["name"]) == {*each["labels"], *each["const_labels"]}, each["name"]


def test_old_names_show_the_same_values_and_only_when_asked_for() -> None:
    plain, old = Metrics(VENDORS), Metrics(VENDORS, legacy=True)
    for each in (plain, old):
        each.freeze(a_cluster())
    labels = {"zone": "vGPU", "nodeid": "n1", "deviceuuid": "GPU-a", "deviceidx": "0", "devicetype": "NVIDIA A100"}
    assert old.registry.get_sample_value("GPUDeviceMemoryLimit", labels) == 1000 * 2**20
    assert plain.registry.get_sample_value("GPUDeviceMemoryLimit", labels) is None
    legacy = {each["name"] for each in load_json("hami-metrics.json") if each["legacy"]}
    assert legacy.isdisjoint(labels_of(plain))


def test_a_scrape_of_40_000_devices_is_bounded_and_says_what_it_left_out() -> None:
    device = a_device()
    states = [DeviceState(device=replace(device, uuid=f"GPU-{i}")) for i in range(40_000)]
    nodes = {f"n{i}": NodeState(name=f"n{i}", devices=tuple(states[8 * i : 8 * i + 8])) for i in range(5000)}
    for legacy in (False, True):
        metrics = Metrics(VENDORS, legacy=legacy)
        metrics.freeze(ClusterSnapshot(nodes=nodes))
        lines = [each for each in generate_latest(metrics.registry).splitlines() if not each.startswith(b"#")]
        assert len(lines) < MOST_SERIES + 500
        assert (metrics.registry.get_sample_value("hami_series_left_out") or 0) >= 40_000 - MOST_SERIES // 8
