"""Small random clusters whose nodes hold cards of several vendors, and pods that ask several."""

from collections.abc import Mapping

from hypothesis import strategies as st

from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import Device, DeviceState, DeviceUsage, Health
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors.config import AscendChip, AscendConfig, DeviceConfig, IluvatarConfig
from hami.vendors.registry import vendors_of
from hami.vendors.vendor import Select, Size, Vendor

CHIP = IluvatarConfig(word="MR-V100", count="iluvatar.ai/MR-V100-vgpu", memory="iluvatar.ai/MR-V100.vMem")
NPUS = AscendConfig(
    configs=tuple(AscendChip(word=word, count=f"huawei.com/{word}") for word in ("Ascend310P", "Ascend910B4", "Ascend910C"))
)
VENDORS = vendors_of(DeviceConfig(iluvatars=(CHIP,), vnpus=NPUS))
BY_WORD: Mapping[str, Vendor] = {each.word: each for each in VENDORS}
WORDS = tuple(BY_WORD)
NOTES = ("online", "offline", "offline:", ":fixed-share", ":best-effort", ":")
_PART = 24_576
"""MiB of a quarter of a card whose parts are equal."""
_LINKED = ("free", "free", "free", "11", "21", "12", "14", "-", "/")
"""States of such a card: how many parts of how many quarters are given out."""


@st.composite
def devices(draw: st.DrawFn, node: str, word: str, number: int) -> DeviceState:
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
                {"QosPolicy": "fixed-share", "LinkZone": "1"},
                {"QosPolicy": "", "LinkZone": "2"},
                {"metax-tech.com/gpu.topology.losses": '{"1": 3, "2": 1}', "metax-tech.com/gpu.topology.scores": "bad"},
                {"profiles": '{"1g.4gb":"0","3g.12gb":"1"}', "maxSlice": "3"},
                {"profiles": '{"2g.8gb":"0","4g.15gb":"1"}', "maxSlice": "4"},
                {"NetworkID": "0"},
                {"NetworkID": "1", "hami-vnpu-core": "true"},
            )
        )
    )
    told = draw(st.lists(st.sampled_from(NOTES), max_size=taken)) if taken and BY_WORD[word].note is not None else []
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
        notes=tuple(told),
    )


def linked(node: str, word: str, number: int, state: str) -> DeviceState:
    """One of _LINKED: some of four equal parts given out, or all; `-` unhealthy, `/` cordoned."""
    taken, part = (int(each) for each in state[:2]) if state[0].isdigit() else (0, 0)
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
        health=Health.UNHEALTHY if state == "-" else Health.HEALTHY,
        cordoned=state == "/",
        used=DeviceUsage(taken, taken * part * _PART, taken * part * 25),
    )


@st.composite
def cards(draw: st.DrawFn, node: str, word: str) -> list[DeviceState]:
    if BY_WORD[word].select is Select.WINGS:
        states = draw(st.lists(st.sampled_from(_LINKED), min_size=1, max_size=9))
        return [linked(node, word, number, state) for number, state in enumerate(states)]
    return [draw(devices(node, word, number)) for number in range(draw(st.integers(1, 5)))]


@st.composite
def nodes(draw: st.DrawFn, name: str, of: tuple[str, ...] = WORDS) -> NodeState:
    words = draw(st.lists(st.sampled_from(of), min_size=1, max_size=3, unique=True))
    found = [each for word in words for each in draw(cards(name, word))]
    return NodeState(name=name, devices=tuple(found))


@st.composite
def snapshots(draw: st.DrawFn, of: tuple[str, ...] = WORDS) -> ClusterSnapshot:
    found = {name: draw(nodes(name, of)) for name in (f"n{number}" for number in range(draw(st.integers(1, 5))))}
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
                "metax-tech.com/sgpu-app-class": st.sampled_from(("online", "offline")),
                "metax-tech.com/sgpu-qos-policy": st.sampled_from(("fixed-share", "best-effort")),
                "metax-tech.com/sgpu-topology-aware": st.just("true"),
                "hami.io/no-use-xpu-uuid": st.just("kunlun-n0-1,XPU-n0-0"),
                "baidu.com/use-gpuuuid": st.just("kunlun-n0-0,XPU-n0-1,XPU-n0-5"),
                "huawei.com/vnpu-mode": st.sampled_from(("hami-core", "hard")),
            },
        )
    )
    return PodRequest(uid="pod", namespace="team", name="pod", containers=tuple(containers), annotations=wishes)
