"""Small random clusters for property tests."""

from hypothesis import strategies as st

from hami.domain.allocation import Allocation, ContainerShares, DeviceShare, Phase, PodOwner, Reservation, usage_of
from hami.domain.cluster import ClusterSnapshot, Liveness, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import Device, DeviceState, DeviceUsage, Health, MigPlacement, MigProfile, MigSlice
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, EpochMs, MiB, Slots
from hami.scheduler.decide.policies import SchedulingPolicy, Weights
from hami.vendors.config import NvidiaConfig
from hami.vendors.nvidia import WORD, vendor

VENDORS = (vendor(NvidiaConfig()),)
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA A10", "NVIDIA")
PROFILES = (
    MigProfile("1g.10gb", MiB(9728), CorePercent(14), 1, tuple(MigPlacement(at, 1) for at in range(7))),
    MigProfile("3g.40gb", MiB(40192), CorePercent(42), 3, (MigPlacement(0, 4), MigPlacement(4, 4))),
    MigProfile("7g.80gb", MiB(80000), CorePercent(100), 7, (MigPlacement(0, 8),)),
)


@st.composite
def devices(draw: st.DrawFn, node: str, number: int) -> DeviceState:
    mig = draw(st.sampled_from((False, False, False, True)))
    memory = draw(st.sampled_from((24_000, 81_920)))
    cores = draw(st.sampled_from((100, 100, 150, 0)))
    slots = draw(st.sampled_from((1, 2, 10)))
    device = Device(
        uuid=f"GPU-{node}-{number}",
        vendor=draw(st.sampled_from((WORD, WORD, WORD, WORD, "other"))),
        model=draw(st.sampled_from(MODELS)),
        memory=MiB(memory),
        cores=CorePercent(cores),
        slots=Slots(slots),
        index=number,
        numa=draw(st.sampled_from((-1, 0, 1))),
        mode="mig" if mig else draw(st.sampled_from(("", "hami-core"))),
        mig_profiles=PROFILES if mig else (),
        pair_scores={f"GPU-{node}-{other}": draw(st.integers(0, 3)) * 10 for other in range(4) if other != number},
    )
    used = DeviceUsage()
    slices: tuple[MigSlice, ...] = ()
    if draw(st.booleans()):
        if mig:
            used = DeviceUsage(1, 40192, 42) if slots > 1 else DeviceUsage(1, 9728, 14)
            slices = (MigSlice("3g.40gb", MigPlacement(0, 4)),) if slots > 1 else (MigSlice("1g.10gb", MigPlacement(6, 1)),)
        else:
            used = DeviceUsage(
                draw(st.integers(0, slots)),
                draw(st.sampled_from((0, 4000, memory // 2, memory))),
                draw(st.sampled_from((0, 30, cores))),
            )
    return DeviceState(
        device=device,
        health=draw(st.sampled_from((Health.HEALTHY,) * 6 + (Health.UNHEALTHY, Health.UNKNOWN, Health.SUSPECT))),
        cordoned=draw(st.sampled_from((False,) * 6 + (True,))),
        used=used,
        mig_in_use=slices,
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeState:
    count = draw(st.integers(0, 4))
    return NodeState(
        name=name,
        liveness=draw(st.sampled_from((Liveness.LIVE,) * 6 + (Liveness.LOST,))),
        quarantine=draw(st.sampled_from(("",) * 6 + ("unreadable",))),
        devices=tuple(draw(devices(name, number)) for number in range(count)),
    )


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    kinds = draw(st.lists(st.sampled_from(tuple(ContainerKind)), min_size=1, max_size=3))
    kinds.sort(key=lambda kind: kind is ContainerKind.APP)
    containers = []
    for number, kind in enumerate(kinds):
        asked: tuple[DeviceRequest, ...] = ()
        if draw(st.sampled_from((True, True, False))):
            memory = draw(st.sampled_from((0, 4000, 20_000, 60_000)))
            asked = (
                DeviceRequest(
                    vendor=WORD,
                    count=draw(st.integers(1, 3)),
                    memory=MiB(memory),
                    memory_percent=None if memory else draw(st.sampled_from((10, 50, 100))),
                    cores=CorePercent(draw(st.sampled_from((0, 10, 60, 100, 120)))),
                ),
            )
        containers.append(ContainerRequest(name=f"c{number}", kind=kind, requests=asked))
    wishes = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "nvidia.com/use-gputype": st.sampled_from(("a10", "A100", ",")),
                "nvidia.com/nouse-gputype": st.just("a10"),
                "nvidia.com/use-gpuuuid": st.sampled_from(("GPU-n0-0,GPU-n1-1", "nope")),
                "nvidia.com/nouse-gpuuuid": st.just("GPU-n0-0"),
                "nvidia.com/numa-bind": st.just("true"),
                "nvidia.com/vgpu-mode": st.sampled_from(("mig", "hami-core", "mig,hami-core")),
            },
        )
    )
    some = draw(st.sampled_from((True, False, False)))
    return PodRequest(uid="pod", namespace="team", name="pod", containers=tuple(containers), annotations=wishes if some else {})


def policies() -> st.SearchStrategy[SchedulingPolicy]:
    return st.builds(
        SchedulingPolicy,
        node=st.sampled_from(("binpack", "spread")),
        device=st.sampled_from(("binpack", "spread", "mutex", "topology-aware", "numa,binpack", "mutex,spread")),
        weights=st.sampled_from((Weights(), Weights(1, 3, 1), Weights(0, 0, 2))),
    )


@st.composite
def quotas(draw: st.DrawFn) -> dict[str, NamespaceQuota]:
    if draw(st.sampled_from((True, True, False))):
        return {}
    memory = QuotaLimit("nvidia.com/gpumem", draw(st.sampled_from((0, 4000, 45_000, 10**6))))
    cores = QuotaLimit("nvidia.com/gpucores", draw(st.sampled_from((0, 50, 1000))))
    return {"team": NamespaceQuota(draw(st.sampled_from(((memory,), (cores,), (memory, cores)))))}


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    """Up to five nodes; sometimes the pod itself already holds something on the first of them."""
    found = {name: draw(nodes(name)) for name in (f"n{number}" for number in range(draw(st.integers(0, 5))))}
    limits = draw(quotas())
    first = found.get("n0")
    if first is None or not first.devices or draw(st.booleans()):
        return ClusterSnapshot(nodes=found, quotas=limits)
    state = first.devices[0]
    if state.used.slots == 0 or state.mig_in_use:
        return ClusterSnapshot(nodes=found, quotas=limits)
    share = DeviceShare(
        vendor=state.device.vendor, uuid=state.device.uuid, memory=MiB(state.used.memory), cores=CorePercent(state.used.cores)
    )
    own = Allocation(
        reservation=Reservation(
            id="r",
            owner=PodOwner("pod", "team", "pod"),
            node="n0",
            containers=(ContainerShares(name="c", kind=ContainerKind.APP, shares=(share,)),),
            scheduler="s",
            deadline_ms=EpochMs(0),
        ),
        phase=Phase.RESERVED,
    )
    used = sum(each.memory for each in usage_of(own.reservation.containers).values())
    return ClusterSnapshot(
        nodes=found, quotas=limits, allocations={"r": own}, by_owner={"pod": "r"}, quota_used={"team": {WORD: (used, 0)}}
    )


@st.composite
def tight_nodes(draw: st.DrawFn, name: str) -> NodeState:
    """Whole cards of two sizes, partly given out, many of them alike: containers get in each other's way."""
    states = []
    for number in range(draw(st.integers(2, 5))):
        memory = draw(st.sampled_from((10_000, 10_000, 16_000)))
        used = draw(st.sampled_from((DeviceUsage(), DeviceUsage(), DeviceUsage(1, 4000, 30), DeviceUsage(2, 8000, 60))))
        device = Device(
            uuid=f"GPU-{name}-{number}",
            vendor=WORD,
            model=draw(st.sampled_from(("NVIDIA A10", "NVIDIA A10", "NVIDIA"))),
            memory=MiB(memory),
            cores=CorePercent(100),
            slots=Slots(draw(st.sampled_from((3, 10)))),
            index=draw(st.integers(0, 5)),
            numa=draw(st.sampled_from((0, 0, 1))),
        )
        states.append(DeviceState(device=device, used=used))
    return NodeState(name=name, devices=tuple(states))


@st.composite
def tight_snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    found = {name: draw(tight_nodes(name)) for name in (f"n{number}" for number in range(draw(st.integers(3, 8))))}
    limits = [QuotaLimit("nvidia.com/gpumem", draw(st.integers(0, 12)) * 4000)]
    if draw(st.booleans()):
        limits.append(QuotaLimit("nvidia.com/gpucores", draw(st.integers(0, 12)) * 40))
    quota = {"team": NamespaceQuota(tuple(limits))} if draw(st.booleans()) else {}
    return ClusterSnapshot(nodes=found, quotas=quota)


@st.composite
def crowded_requests(draw: st.DrawFn) -> PodRequest:
    """Several containers that each take most of a node."""
    containers = []
    for number in range(draw(st.integers(1, 4))):
        memory = draw(st.sampled_from((0, 2000, 4000, 6000)))
        asked = DeviceRequest(
            vendor=WORD,
            count=draw(st.integers(1, 4)),
            memory=MiB(memory),
            memory_percent=None if memory else draw(st.sampled_from((30, 45, 60))),
            cores=CorePercent(draw(st.sampled_from((0, 10, 40, 70)))),
        )
        kind = ContainerKind.APP if number else draw(st.sampled_from(tuple(ContainerKind)))
        containers.append(ContainerRequest(name=f"c{number}", kind=kind, requests=(asked,)))
    return PodRequest(uid="pod", namespace="team", name="pod", containers=tuple(containers))
