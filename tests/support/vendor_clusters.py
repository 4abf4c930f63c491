"""Small random clusters whose nodes hold cards of several vendors, and pods that ask several."""

from collections.abc import Mapping

from hypothesis import strategies as st

from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import Device, DeviceState, DeviceUsage, Health
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors.config import DeviceConfig, IluvatarConfig
from hami.vendors.registry import vendors_of
from hami.vendors.vendor import Select, Size, Vendor

CHIP = IluvatarConfig(word="MR-V100", count="iluvatar.ai/MR-V100-vgpu", memory="iluvatar.ai/MR-V100.vMem")
VENDORS = vendors_of(DeviceConfig(iluvatars=(CHIP,)))
BY_WORD: Mapping[str, Vendor] = {each.word: each for each in VENDORS}
WORDS = tuple(BY_WORD)
_PART = 24_576
"""MiB of a quarter of a card whose parts are equal."""


@st.composite
def devices(draw: st.DrawFn, node: str, word: str, number: int) -> DeviceState:
    if BY_WORD[word].select is Select.WINGS:
        return draw(linked(node, word, number))
    neuron = BY_WORD[word].size is Size.NEURON_CORES
    memory = 0 if neuron else draw(st.sampled_from((16_000, 32_000)))
    cores = draw(st.sampled_from((3, 15) if neuron else (16, 100, 104)))
    slots = draw(st.sampled_from((1, 2, 10)))
    taken = draw(st.integers(0, slots)) if draw(st.booleans()) else 0
    attributes = draw(
        st.sampled_from(
            (
                {},
                {"DeviceStrategy": "die", "AIC": "a"},
                {"DeviceStrategy": "die", "AIC": "b"},
                {"AWSNodeType": "inf2.48xlarge"},
                {"AWSNodeType": "trn1.32xlarge"},
                {"profiles": '{"1g.4gb":"0","3g.12gb":"1"}', "maxSlice": "3"},
                {"profiles": '{"2g.8gb":"0","4g.15gb":"1"}', "maxSlice": "4"},
            )
        )
    )
    return DeviceState(
        device=Device(
            uuid=f"{word}-{node}-{number}",
            vendor=word,
            model=draw(st.sampled_from((word, f"{word} big", "plain"))),
            memory=MiB(memory),
            cores=CorePercent(cores),
            slots=Slots(slots),
            index=number,
            numa=draw(st.sampled_from((0, 1))),
            attributes=attributes,
        ),
        health=draw(st.sampled_from((Health.HEALTHY,) * 6 + (Health.UNHEALTHY,))),
        cordoned=draw(st.sampled_from((False,) * 8 + (True,))),
        used=DeviceUsage(taken, min(taken, 1) * memory // 2, min(taken, 1) * draw(st.sampled_from((0, 1, 3, cores)))),
    )


@st.composite
def linked(draw: st.DrawFn, node: str, word: str, number: int) -> DeviceState:
    """Some of four equal parts are given out, or all of it."""
    taken, part = draw(st.sampled_from(((0, 0), (0, 0), (1, 1), (2, 1), (1, 2), (1, 4), (2, 2))))
    return DeviceState(
        device=Device(
            uuid=f"{word}-{node}-{number}",
            vendor=word,
            model=word,
            memory=MiB(4 * _PART),
            cores=CorePercent(100),
            slots=Slots(4),
            index=number,
            numa=number // 4,
        ),
        health=draw(st.sampled_from((Health.HEALTHY,) * 8 + (Health.UNHEALTHY,))),
        cordoned=draw(st.sampled_from((False,) * 9 + (True,))),
        used=DeviceUsage(taken, taken * part * _PART, taken * part * 25),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeState:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True))
    most = {word: 10 if BY_WORD[word].select is Select.WINGS else 5 for word in words}
    found = [draw(devices(name, word, number)) for word in words for number in range(draw(st.integers(1, most[word])))]
    return NodeState(name=name, devices=tuple(found))


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    found = {name: draw(nodes(name)) for name in (f"n{number}" for number in range(draw(st.integers(1, 5))))}
    limit = QuotaLimit("cambricon.com/mlu.smlu.vmemory", draw(st.sampled_from((0, 10, 100))))
    quota = {"team": NamespaceQuota((limit,))} if draw(st.booleans()) else {}
    return ClusterSnapshot(nodes=found, quotas=quota)


@st.composite
def asked(draw: st.DrawFn, word: str) -> DeviceRequest:
    if BY_WORD[word].size is Size.NEURON_CORES:
        cores = draw(st.sampled_from((0, 1, 2)))
        return DeviceRequest(vendor=word, count=draw(st.integers(1, 4)), memory_percent=0, cores=CorePercent(cores))
    if BY_WORD[word].select is Select.WINGS:
        parts, count = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 3, 4, 8)))
        return DeviceRequest(
            vendor=word, count=count, memory=MiB(parts * _PART), memory_percent=0, cores=CorePercent(parts * 25)
        )
    if BY_WORD[word].select is Select.PROFILE:
        size, percent = draw(st.sampled_from(((1, 0), (2, 0), (3, 0), (9, 0), (4, -1), (8192, -1), (0, -1))))
        cores = draw(st.sampled_from((0, 40, 120))) if percent else 0
        return DeviceRequest(vendor=word, count=1, memory=MiB(size), memory_percent=percent, cores=CorePercent(cores))
    memory = draw(st.sampled_from((0, 0, 4000, 20_000)))
    return DeviceRequest(
        vendor=word,
        count=draw(st.integers(1, 3)),
        memory=MiB(memory),
        memory_percent=0 if memory else draw(st.sampled_from((100, 50))),
        cores=CorePercent(draw(st.sampled_from((0, 4, 30, 100, 120)))),
    )


@st.composite
def requests(draw: st.DrawFn, words: tuple[str, ...]) -> PodRequest:
    kinds = draw(st.lists(st.sampled_from(tuple(ContainerKind)), min_size=1, max_size=3))
    kinds.sort(key=lambda kind: kind is ContainerKind.APP)
    containers = []
    for number, kind in enumerate(kinds):
        own = draw(st.lists(st.sampled_from(words), min_size=0, max_size=2, unique=True))
        containers.append(ContainerRequest(name=f"c{number}", kind=kind, requests=tuple(draw(asked(word)) for word in own)))
    wishes = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "hygon.com/use-dcutype": st.sampled_from(("big", ",")),
                "amd.com/nouse-gputype": st.just("plain"),
                "vastaitech.com/nouse-gpuuuid": st.just("Vastai-n0-0"),
                "mthreads.ai/use-gpuuuid": st.just("Mthreads-n0-1,Mthreads-n1-0"),
                "nvidia.com/numa-bind": st.just("true"),
                "hami.io/no-use-xpu-uuid": st.just("kunlun-n0-1,XPU-n0-0"),
                "baidu.com/use-gpuuuid": st.just("kunlun-n0-0,XPU-n0-1,XPU-n0-5"),
            },
        )
    )
    return PodRequest(uid="pod", namespace="team", name="pod", containers=tuple(containers), annotations=wishes)
