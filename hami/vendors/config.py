"""The device configuration, typed. The keys are those of HAMi's device-config.yaml; reading YAML happens elsewhere."""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from hami.domain.errors import InvalidInput


class MigModels(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Which MIG profiles may be made on which models."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


class NvidiaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Section `nvidia`. Fields from `device_split_count` on are the node agent's."""

    resource_count_name: str = msgspec.field(name="resourceCountName", default="nvidia.com/gpu")
    resource_memory_name: str = msgspec.field(name="resourceMemoryName", default="nvidia.com/gpumem")
    resource_memory_percentage_name: str = msgspec.field(
        name="resourceMemoryPercentageName", default="nvidia.com/gpumem-percentage"
    )
    resource_core_name: str = msgspec.field(name="resourceCoreName", default="nvidia.com/gpucores")
    resource_priority_name: str = msgspec.field(name="resourcePriorityName", default="nvidia.com/priority")
    overwrite_env: bool = msgspec.field(name="overwriteEnv", default=False)
    default_memory: int = msgspec.field(name="defaultMemory", default=0)
    default_cores: int = msgspec.field(name="defaultCores", default=0)
    default_gpu_num: int = msgspec.field(name="defaultGPUNum", default=1)
    memory_factor: int = msgspec.field(name="memoryFactor", default=1)
    gpu_core_policy: Literal["", "default", "force", "disable"] = msgspec.field(name="gpuCorePolicy", default="default")
    runtime_class_name: str = msgspec.field(name="runtimeClassName", default="")
    disable_core_limit: bool = msgspec.field(name="disableCoreLimit", default=False)
    mig_profile_allowlist: tuple[MigModels, ...] = msgspec.field(name="migProfileAllowlist", default=())
    device_split_count: int = msgspec.field(name="deviceSplitCount", default=10)
    device_memory_scaling: float = msgspec.field(name="deviceMemoryScaling", default=1.0)
    device_core_scaling: float = msgspec.field(name="deviceCoreScaling", default=1.0)
    pre_configured_device_memory: int = msgspec.field(name="preConfiguredDeviceMemory", default=0)
    lib_cuda_log_level: int = msgspec.field(name="libCudaLogLevel", default=1)
    enable_numa_topology: bool = msgspec.field(name="enableNumaTopology", default=False)


_NAMES: Final = {
    "count": "resourceCountName",
    "memory": "resourceMemoryName",
    "cores": "resourceCoreName",
    "memory_factor": "memoryFactor",
}


class CambriconConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `cambricon`."""

    count: str = ""
    memory: str = ""
    cores: str = ""


class HygonConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `hygon`."""

    count: str = ""
    memory: str = ""
    cores: str = ""
    memory_factor: int = 1


class IluvatarConfig(msgspec.Struct, frozen=True, kw_only=True, rename={**_NAMES, "word": "commonWord"}):
    """One entry of the section `iluvatars`: one chip."""

    word: str
    count: str
    memory: str = ""
    cores: str = ""


class AscendTemplate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One way to cut a chip; `memory` in MiB."""

    name: str
    memory: int
    ai_core: int = 0
    ai_cpu: int = msgspec.field(name="aiCPU", default=0)


class AscendChip(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        **_NAMES,
        "word": "commonWord",
        "count": "resourceName",
        "chip": "chipName",
        "allocatable": "memoryAllocatable",
        "capacity": "memoryCapacity",
        "ai_core": "aiCore",
        "ai_cpu": "aiCPU",
        "runtime_class": "runtimeClassName",
        "overwrite_env": "overwriteEnv",
        "super_pod": "superPod",
    },
):
    """One entry of `vnpus.configs`. `allocatable`: what a whole card is asked as; `capacity`: the most that can be asked."""

    word: str
    count: str
    memory: str = ""
    cores: str = ""
    chip: str = ""
    allocatable: int = 0
    capacity: int = 0
    memory_factor: int = 0
    ai_core: int = 0
    ai_cpu: int = 0
    templates: tuple[AscendTemplate, ...] = ()
    runtime_class: str = ""
    overwrite_env: bool = False
    super_pod: bool = False


class AscendConfig(msgspec.Struct, frozen=True, kw_only=True, rename={"soft_split": "hamiVnpuCore"}):
    """Section `vnpus`. `soft_split`: nodes can share cards by memory and cores, unless they say otherwise."""

    soft_split: bool = False
    configs: tuple[AscendChip, ...] = ()


class AmdConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `amd`."""

    count: str = ""
    memory: str = ""
    cores: str = ""


class BirenConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `biren`."""

    count: str = ""


class VastaiConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `vastai`."""

    count: str = ""


class MthreadsConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `mthreads`."""

    count: str = ""
    memory: str = ""
    cores: str = ""


_METAX: Final = {
    "count": "resourceCountName",
    "shares": "resourceVCountName",
    "memory": "resourceVMemoryName",
    "cores": "resourceVCoreName",
    "link_zones": "sgpuTopologyAware",
}


class MetaxConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_METAX):
    """Section `metax`: whole cards (`count`), and shares of cards with their memory and cores."""

    count: str = ""
    shares: str = ""
    memory: str = ""
    cores: str = ""
    link_zones: bool = False


class NeuronConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Section `awsneuron`."""

    count: str = ""
    cores: str = ""


_KUNLUN: Final = {"count": "resourceCountName", "parts": "resourceVCountName", "memory": "resourceVMemoryName"}


class KunlunConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_KUNLUN):
    """Section `kunlun`: whole cards, and parts of cards with their memory."""

    count: str = ""
    parts: str = ""
    memory: str = ""


_ENFLAME: Final = {
    "count": "resourceNameGCU",
    "slices": "resourceNameDRSGCU",
    "old_slices": "resourceNameVGCU",
    "memory": "resourceNameGCUMemory",
    "cores": "resourceNameGCUCore",
}


class EnflameConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_ENFLAME):
    """Section `enflame`: whole cards, and slices of cards. `old_slices` is their older name, for want of the new one."""

    count: str = ""
    slices: str = ""
    old_slices: str = ""
    memory: str = ""
    cores: str = ""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file; its defaults, for want of a file, are those of HAMi's chart.

    An empty count name sells nothing. Sections of vendors that are not built in are kept out of sight, not refused.
    """

    nvidia: NvidiaConfig = NvidiaConfig()
    cambricon: CambriconConfig = CambriconConfig(
        count="cambricon.com/vmlu", memory="cambricon.com/mlu.smlu.vmemory", cores="cambricon.com/mlu.smlu.vcore"
    )
    hygon: HygonConfig = HygonConfig(count="hygon.com/dcunum", memory="hygon.com/dcumem", cores="hygon.com/dcucores")
    iluvatars: tuple[IluvatarConfig, ...] = ()
    vnpus: AscendConfig = AscendConfig()
    mthreads: MthreadsConfig = MthreadsConfig(
        count="mthreads.com/vgpu", memory="mthreads.com/sgpu-memory", cores="mthreads.com/sgpu-core"
    )
    metax: MetaxConfig = MetaxConfig(
        count="metax-tech.com/gpu",
        shares="metax-tech.com/sgpu",
        memory="metax-tech.com/vmemory",
        cores="metax-tech.com/vcore",
    )
    awsneuron: NeuronConfig = NeuronConfig(count="aws.amazon.com/neuron", cores="aws.amazon.com/neuroncore")
    amd: AmdConfig = AmdConfig(count="amd.com/gpu", memory="amd.com/gpumem", cores="amd.com/gpucores")
    vastai: VastaiConfig = VastaiConfig(count="vastaitech.com/va")
    biren: BirenConfig = BirenConfig(count="birentech.com/gpu")
    kunlun: KunlunConfig = KunlunConfig(
        count="kunlunxin.com/xpu", parts="kunlunxin.com/vxpu", memory="kunlunxin.com/vxpu-memory"
    )
    enflame: EnflameConfig = EnflameConfig(
        count="enflame.com/gcu",
        slices="enflame.com/drs-gcu",
        memory="enflame.com/gcu-memory",
        cores="enflame.com/gcu-core",
    )


_OPTIONAL: Final = (
    "cambricon",
    "hygon",
    "mthreads",
    "metax",
    "awsneuron",
    "amd",
    "vastai",
    "biren",
    "kunlun",
    "enflame",
    "vnpus",
)
"""Sections that sell nothing where a file leaves them out, and nothing of what they leave out, as in HAMi."""


def device_config(raw: Mapping[str, object]) -> DeviceConfig:
    """Raises InvalidInput naming the key, e.g. `device-config: $.nvidia.defaultMemory`."""
    if not any(raw.values()):
        raise InvalidInput("device-config", dict(raw), "all configurations are empty")
    try:
        sections: dict[str, object] = {name: {} for name in _OPTIONAL}
        sections |= {name: section for name, section in raw.items() if section is not None}
        config = msgspec.convert(sections, DeviceConfig, strict=False)
    except msgspec.ValidationError as error:
        why, _, where = str(error).partition(" - at `$.")
        path = where.removesuffix("`")
        raise InvalidInput(f"device-config: {path}" if path else "device-config", _value_at(raw, path), why) from None
    _check(config.nvidia)
    if config.hygon.memory_factor < 0:
        raise InvalidInput("device-config: hygon.memoryFactor", config.hygon.memory_factor, "must not be negative")
    for chip in config.vnpus.configs:
        if chip.memory_factor < 0:
            raise InvalidInput(f"device-config: vnpus.{chip.word}.memoryFactor", chip.memory_factor, "must not be negative")
    return config


def _value_at(raw: Mapping[str, object], path: str) -> object:
    """What stands at `nvidia.migProfileAllowlist[0].models`; None where the path leads nowhere, as for a missing key."""
    here: object = raw
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if isinstance(here, Mapping) and key:
            here = here.get(key)
        elif isinstance(here, list) and index and int(index) < len(here):
            here = here[int(index)]
        else:
            return None
    return here


def effective(config: DeviceConfig, raw: Mapping[str, object]) -> list[tuple[str, object, bool]]:
    """(key, value in use, whether the file decides it) of every key of every section; a list of chips is one value.

    A file also decides an optional section by leaving it out, or a key of it.
    """
    found: list[tuple[str, object, bool]] = []
    for section in msgspec.structs.fields(config):
        name, part = section.encode_name, getattr(config, section.name)
        given = raw.get(name)
        if not isinstance(part, msgspec.Struct):
            found.append((name, part, name in raw))
            continue
        keys = given if isinstance(given, Mapping) else {}
        emptied = bool(raw) and name in _OPTIONAL
        found += [
            (f"{name}.{each.encode_name}", getattr(part, each.name), emptied or each.encode_name in keys)
            for each in msgspec.structs.fields(part)
        ]
    return found


def _check(nvidia: NvidiaConfig) -> None:
    for key, value in (
        ("defaultMemory", nvidia.default_memory),
        ("defaultCores", nvidia.default_cores),
        ("defaultGPUNum", nvidia.default_gpu_num),
        ("memoryFactor", nvidia.memory_factor),
    ):
        if value < 0:
            raise InvalidInput(f"device-config: nvidia.{key}", value, "must not be negative")
    for entry in nvidia.mig_profile_allowlist:
        if not entry.models or not entry.profiles:
            raise InvalidInput("device-config: nvidia.migProfileAllowlist", entry, "needs models and profiles")
