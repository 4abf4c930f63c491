"""The device configuration, typed. The keys are those of HAMi's device-config.yaml; reading YAML happens elsewhere."""

import re
from collections.abc import Mapping
from typing import Literal

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


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. Sections of vendors that are not built in yet are kept out of sight, not refused."""

    nvidia: NvidiaConfig = NvidiaConfig()


def device_config(raw: Mapping[str, object]) -> DeviceConfig:
    """Raises InvalidInput naming the key, e.g. `device-config: $.nvidia.defaultMemory`."""
    if not any(raw.values()):
        raise InvalidInput("device-config", dict(raw), "all configurations are empty")
    try:
        config = msgspec.convert(raw, DeviceConfig, strict=False)
    except msgspec.ValidationError as error:
        why, _, where = str(error).partition(" - at `$.")
        path = where.removesuffix("`")
        raise InvalidInput(f"device-config: {path}" if path else "device-config", _value_at(raw, path), why) from None
    _check(config.nvidia)
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
    """(key, value in use, whether the file set it) of every key of every section that is built in."""
    found: list[tuple[str, object, bool]] = []
    for section in msgspec.structs.fields(config):
        given = raw.get(section.encode_name)
        keys = given if isinstance(given, Mapping) else {}
        part = getattr(config, section.name)
        found += [
            (f"{section.encode_name}.{each.encode_name}", getattr(part, each.name), each.encode_name in keys)
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
