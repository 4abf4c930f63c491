"""The small parts of the scheduler's shell: what is said once, how loops are kept alive, what pods and quotas mean."""

import anyio
import pytest

from hami.domain.cluster import ClusterSnapshot, QuotaLimit
from hami.domain.errors import Fenced, StoreUnavailable, StoreUnsafe
from hami.domain.pod import (
    Container,
    ContainerState,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    QuotaSpec,
    ResourceQuota,
    Resources,
    StateTerminated,
)
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB
from hami.events.catalog.allocation import AllocationBound, AllocationReserved
from hami.scheduler.decide.reconcile import PodFacts
from hami.scheduler.decide.words import refusal_digest, words_of
from hami.scheduler.dryrun import cordoned_uuids
from hami.scheduler.metrics import Metrics
from hami.scheduler.notes import Once, TokenBucket
from hami.scheduler.podfacts import Relevance, init_done, settle
from hami.scheduler.quotas import limits_of
from hami.scheduler.supervise import find, supervise
from hami.vendors.config import NvidiaConfig
from hami.vendors.nvidia import vendor

VENDORS = (vendor(NvidiaConfig()),)


def test_the_same_thing_is_news_once_until_it_changes() -> None:
    once = Once(keep=2)
    assert once.news("a", "1")
    assert not once.news("a", "1")
    assert once.news("a", "2")
    once.forget("a")
    assert once.news("a", "2")
    assert once.news("b", "1")
    assert once.news("c", "1")
    assert once.news("a", "2"), "the oldest of more than two keys is forgotten"


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.take(0.5)
    assert not bucket.take(0.5)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]


async def test_a_failing_loop_is_started_again_and_counted() -> None:
    metrics = Metrics(())
    runs = 0
    again = anyio.Event()

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("first")
        again.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervise, "test", loop, metrics)
        with anyio.fail_after(5):
            await again.wait()
        tasks.cancel_scope.cancel()
    assert metrics.registry.get_sample_value("hami_loop_crashes_total", {"loop": "test"}) == 1


@pytest.mark.parametrize("error", [StoreUnsafe("other store"), ExceptionGroup("inside", [ValueError(), Fenced("old")])])
async def test_errors_that_undermine_everything_end_the_loop(error: Exception) -> None:
    async def loop() -> None:
        raise error

    with pytest.raises((StoreUnsafe, Fenced)):
        await supervise("test", loop, Metrics(()))


def test_an_error_is_found_inside_groups() -> None:
    inner = StoreUnavailable("away")
    assert find(ExceptionGroup("a", [ValueError(), ExceptionGroup("b", [inner])]), (StoreUnavailable,)) is inner
    assert find(ValueError(), (StoreUnavailable,)) is None


def test_quota_limits_are_read_in_the_vendors_unit() -> None:
    hard = {"limits.nvidia.com/gpumem": "16Gi", "limits.nvidia.com/gpucores": "2k", "limits.cpu": "4", "pods": "3"}
    quota = ResourceQuota(metadata=ObjectMeta(name="q", namespace="d"), spec=QuotaSpec(hard=dict(hard)))
    limits, bad = limits_of(quota, VENDORS)
    assert limits == (QuotaLimit("nvidia.com/gpucores", 2000, "q"), QuotaLimit("nvidia.com/gpumem", 16384, "q"))
    assert bad == ()


def test_quota_memory_given_in_bytes_is_not_multiplied_by_the_factor() -> None:
    tenfold = (vendor(NvidiaConfig(memory_factor=10)),)
    for written, expected in (("1000", 1000), ("1000Mi", 100)):
        quota = ResourceQuota(metadata=ObjectMeta(name="q"), spec=QuotaSpec(hard={"limits.nvidia.com/gpumem": written}))
        assert limits_of(quota, tenfold)[0] == (QuotaLimit("nvidia.com/gpumem", expected, "q"),)


@pytest.mark.parametrize("value", ["1.5", "-1", "x", "500m"])
def test_a_quota_limit_that_cannot_be_read_is_named(value: str) -> None:
    quota = ResourceQuota(metadata=ObjectMeta(name="q"), spec=QuotaSpec(hard={"limits.nvidia.com/gpucores": value}))
    limits, [bad] = limits_of(quota, VENDORS)
    assert limits == ()
    assert (bad.field, bad.value) == ('spec.hard["limits.nvidia.com/gpucores"]', value)


def _ended(name: str, code: int = 0) -> ContainerStatus:
    return ContainerStatus(name=name, state=ContainerState(terminated=StateTerminated(exit_code=code)))


def _with_init(*statuses: ContainerStatus) -> Pod:
    init = [Container(name="one"), Container(name="side", restart_policy="Always"), Container(name="two")]
    return Pod(
        spec=PodSpec(init_containers=init, containers=[Container(name="main")]),
        status=PodStatus(init_container_statuses=list(statuses)),
    )


def test_init_is_done_when_every_init_container_but_the_sidecars_has_ended_well() -> None:
    assert not init_done(_with_init())
    assert not init_done(_with_init(_ended("one")))
    assert not init_done(_with_init(_ended("one"), _ended("two", 1)))
    assert init_done(_with_init(_ended("one"), _ended("two")))
    assert not init_done(Pod(spec=PodSpec(containers=[Container(name="main")]), status=PodStatus()))


def test_only_pods_that_ask_or_carry_devices_are_kept() -> None:
    relevance = Relevance(VENDORS)
    asks = Container(name="m", resources=Resources(limits={"nvidia.com/gpu": "1"}))
    assert relevance.matters(Pod(spec=PodSpec(init_containers=[asks])))
    assert relevance.matters(Pod(metadata=ObjectMeta(annotations={"hami.io/vgpu-devices-allocated": "x"})))
    assert not relevance.matters(Pod(spec=PodSpec(containers=[Container(name="m")])))


def _running() -> PodFacts:
    notes = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,900,10:;"}
    containers = (("main", ContainerKind.APP),)
    return PodFacts(uid="u", namespace="d", name="p", node="n1", phase="Running", containers=containers, annotations=notes)


def test_a_running_pod_is_adopted_only_when_the_log_never_heard_of_it() -> None:
    decision = settle(ClusterSnapshot(), _running(), VENDORS, 1000)
    assert decision is not None
    drafts, expected = decision
    assert [type(each.event) for each in drafts] == [AllocationReserved, AllocationBound]
    assert {each.node for each in drafts} == {"n1"}
    assert expected == {"pod/u": 0}
    assert settle(ClusterSnapshot(versions={"pod/u": 4}), _running(), VENDORS, 1000) is None


def test_cordoned_cards_are_a_comma_list_with_blanks() -> None:
    assert cordoned_uuids(" GPU-a, ,GPU-b,") == {"GPU-a", "GPU-b"}
    assert cordoned_uuids("") == frozenset()


def _request(memory: int = 1000) -> PodRequest:
    asked = DeviceRequest(vendor="NVIDIA", count=2, memory=MiB(memory), cores=CorePercent(30))
    share = DeviceRequest(vendor="NVIDIA", count=1, memory_percent=50)
    containers = (
        ContainerRequest(name="warm", kind=ContainerKind.INIT, requests=(share,)),
        ContainerRequest(name="plain", kind=ContainerKind.APP),
        ContainerRequest(name="main", kind=ContainerKind.APP, requests=(asked,)),
    )
    return PodRequest(uid="u", namespace="d", name="p", containers=containers)


def test_a_request_in_words() -> None:
    assert words_of(_request()) == "warm (init): 1 x NVIDIA, 50 % memory; main: 2 x NVIDIA, 1000 MiB, 30 % cores"


def test_a_refusal_is_another_one_when_request_reasons_or_nodes_change() -> None:
    same = refusal_digest(_request(), {"CardNotHealth": 1}, 3)
    assert refusal_digest(_request(), {"CardNotHealth": 1}, 3) == same
    assert refusal_digest(_request(2000), {"CardNotHealth": 1}, 3) != same
    assert refusal_digest(_request(), {"CardNotHealth": 2}, 3) != same
    assert refusal_digest(_request(), {"CardNotHealth": 1}, 4) != same
