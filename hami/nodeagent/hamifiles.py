"""HAMi's two configuration files of a node: the cluster's device-config.yaml and the node's own config.json.

What is set by our own names (environment, option, TOML) wins over both; the node's entry wins over the cluster's section.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from hami.config import AgentSettings
from hami.domain.errors import InvalidInput
from hami.vendors.config import NvidiaConfig, device_config

_SECTION: Final = {
    "deviceSplitCount": "split_count",
    "deviceMemoryScaling": "memory_scaling",
    "deviceCoreScaling": "core_scaling",
    "preConfiguredDeviceMemory": "preconfigured_memory_mib",
    "libCudaLogLevel": "library_log_level",
    "enableNumaTopology": "numa_to_kubelet",
    "disableCoreLimit": "disable_core_limit",
    "resourceCountName": "resource_name",
    "migProfileAllowlist": "mig_profiles",
}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Cards offered to nobody."""

    uuid: tuple[str, ...] = ()
    index: tuple[int, ...] = ()


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One node's entry. Absent keys say nothing. `migstrategy` has no effect in HAMi either, and a preference among devices is
    offered to the kubelet always.
    """

    name: str
    operatingmode: str = ""
    migstrategy: str = ""
    filterdevices: Filter | None = None
    enablegetpreferredallocation: bool | None = None
    devicesplitcount: int | None = None
    devicememoryscaling: float | None = None
    devicecorescaling: float | None = None
    preconfigureddevicememory: int | None = None
    libcudaloglevel: str | int | None = None
    enablenumatopology: bool | None = None


class NodeFile(msgspec.Struct, frozen=True, kw_only=True):
    nodeconfig: tuple[NodeEntry, ...] = ()


_ENTRY: Final = {
    "devicesplitcount": "split_count",
    "devicememoryscaling": "memory_scaling",
    "devicecorescaling": "core_scaling",
    "preconfigureddevicememory": "preconfigured_memory_mib",
    "libcudaloglevel": "library_log_level",
    "enablenumatopology": "numa_to_kubelet",
}


def with_hami_files(settings: AgentSettings, sources: Mapping[str, str]) -> AgentSettings:
    """Fields that are at their default filled from the files. Raises InvalidInput naming the file, the key and the value."""
    found = {**_from_section(settings), **_from_entries(settings, named=sources.get("node_config", "default") != "default")}
    for field, (value, where) in found.items():
        if sources.get(field, "default") != "default":
            continue
        try:
            msgspec.convert({field: value}, AgentSettings, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(where, value, str(error).partition(" - at ")[0]) from None
    values = {field: value for field, (value, _) in found.items() if sources.get(field, "default") == "default"}
    return msgspec.convert({**msgspec.structs.asdict(settings), **values}, AgentSettings, strict=False)


def _from_section(settings: AgentSettings) -> dict[str, tuple[Any, str]]:
    if not settings.device_config:
        return {}
    path = Path(settings.device_config)
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput("agent.device_config", str(path), error.strerror or "cannot be read") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput("agent.device_config", str(path), " ".join(str(error).split())) from error
    if not isinstance(document, dict):
        raise InvalidInput("agent.device_config", str(path), "must be a YAML mapping")
    if document.get("version", "v1") != "v1":
        raise InvalidInput(f"{path}: version", document["version"], "only v1 is known")
    nvidia = device_config(document).nvidia
    present = document.get("nvidia") or {}
    return {
        ours: (_plain(nvidia, theirs), f"{path}: nvidia.{theirs}") for theirs, ours in _SECTION.items() if theirs in present
    }


def _plain(nvidia: NvidiaConfig, key: str) -> Any:
    field = next(each for each in msgspec.structs.fields(NvidiaConfig) if each.encode_name == key)
    value = getattr(nvidia, field.name)
    if key == "migProfileAllowlist":
        return ";".join(f"{'|'.join(each.models)}={','.join(each.profiles)}" for each in nvidia.mig_profile_allowlist)
    return str(value) if key == "libCudaLogLevel" else value


def _from_entries(settings: AgentSettings, *, named: bool) -> dict[str, tuple[Any, str]]:
    """Every entry of this node, in order. A file that nobody named may be missing."""
    path = Path(settings.node_config)
    try:
        raw = path.read_bytes() if settings.node_config else b"{}"
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError):
            return {}
        raise InvalidInput("agent.node_config", str(path), error.strerror or "cannot be read") from error
    try:
        file = msgspec.json.decode(raw, type=NodeFile)
    except msgspec.DecodeError as error:
        why, _, where = str(error).partition(" - at ")
        raise InvalidInput(f"{path}: {where.strip('`') or 'text'}", raw[:100].decode("utf-8", "replace"), why) from error
    found: dict[str, tuple[Any, str]] = {}
    for number, entry in enumerate(file.nodeconfig):
        if entry.name == settings.node_name:
            found |= _from_entry(entry, f"{path}: nodeconfig[{number}]")
    return found


def _from_entry(entry: NodeEntry, where: str) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for theirs, ours in _ENTRY.items():
        value = getattr(entry, theirs)
        if value is not None:
            found[ours] = str(value) if theirs == "libcudaloglevel" else value, f"{where}.{theirs}"
    if entry.operatingmode:
        found["mode"] = entry.operatingmode, f"{where}.operatingmode"
    if entry.filterdevices is not None:
        for ours, listed in (("exclude_uuids", entry.filterdevices.uuid), ("exclude_indexes", entry.filterdevices.index)):
            if listed:
                found[ours] = ",".join(map(str, listed)), f"{where}.filterdevices"
    return found
