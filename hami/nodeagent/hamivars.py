"""HAMi's own names for the agent's settings: its environment variables and flags, those without effect included. Pure data."""

from collections.abc import Mapping
from typing import Final

import msgspec

from hami.domain.errors import InvalidInput

PREFIX: Final = "HAMI_AGENT_"


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """One of HAMi's settings. `field` is ours; empty = it has no effect (`dead` says why) or none but `only` is accepted."""

    flags: tuple[str, ...]
    variables: tuple[str, ...] = ()
    field: str = ""
    dead: str = ""
    only: tuple[str, ...] = ()


_FROM_FILES: Final = "HAMi reads it and never uses it; set it in one of its two files or by our own name"

HAMI: Final = (
    Named(flags=("nvidia-driver-root",), variables=("NVIDIA_DRIVER_ROOT",), field="nvidia_driver_root"),
    Named(flags=("dev-root", "nvidia-dev-root"), variables=("NVIDIA_DEV_ROOT",), field="dev_root"),
    Named(flags=("pass-device-specs",), variables=("PASS_DEVICE_SPECS",), field="pass_device_specs"),
    Named(flags=("device-list-strategy",), variables=("DEVICE_LIST_STRATEGY",), field="device_list_strategy"),
    Named(flags=("device-id-strategy",), variables=("DEVICE_ID_STRATEGY",), field="device_id_strategy"),
    Named(flags=("gdrcopy-enabled",), variables=("GDRCOPY_ENABLED",), field="gdrcopy"),
    Named(flags=("gds-enabled",), variables=("GDS_ENABLED",), field="gds"),
    Named(flags=("mofed-enabled",), variables=("MOFED_ENABLED",), field="mofed"),
    Named(flags=("config-file",), variables=("CONFIG_FILE",), field="device_config"),
    Named(flags=("cdi-annotation-prefix",), variables=("CDI_ANNOTATION_PREFIX",), field="cdi_annotation_prefix"),
    Named(
        flags=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        variables=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        field="cdi_hook_path",
    ),
    Named(
        flags=("driver-root-ctr-path", "container-driver-root"),
        variables=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        field="driver_root",
    ),
    Named(flags=("imex-channel-ids",), variables=("IMEX_CHANNEL_IDS",), field="imex_channels"),
    Named(flags=("imex-required",), variables=("IMEX_REQUIRED",), field="imex_required"),
    Named(flags=("kubelet-socket",), variables=("KUBELET_SOCKET",), field="kubelet_dir"),
    Named(flags=(), variables=("HOOK_PATH",), field="hook_path"),
    Named(flags=(), variables=("ENABLE_TOPOLOGY_SCORE",), field="topology_annotation"),
    Named(flags=(), variables=("DP_DISABLE_HEALTHCHECKS",), field="disable_healthchecks"),
    Named(flags=(), variables=("DP_ENABLE_HEALTHCHECKS",), field="enable_healthchecks"),
    Named(flags=("mig-strategy",), variables=("MIG_STRATEGY",), field="mig_strategy"),
    Named(flags=("device-discovery-strategy",), variables=("DEVICE_DISCOVERY_STRATEGY",), only=("auto", "nvml")),
    Named(flags=("fail-on-init-error",), variables=("FAIL_ON_INIT_ERROR",), dead="a missing driver is waited for, always"),
    Named(flags=("device-split-count",), variables=("DEVICE_SPLIT_COUNT",), dead=_FROM_FILES),
    Named(flags=("device-memory-scaling",), variables=("DEVICE_MEMORY_SCALING",), dead=_FROM_FILES),
    Named(flags=("device-cores-scaling",), variables=("DEVICE_CORES_SCALING",), dead=_FROM_FILES),
    Named(flags=("disable-core-limit",), variables=("DISABLE_CORE_LIMIT",), dead=_FROM_FILES),
    Named(flags=("node-name",), variables=("NodeName",), dead="HAMi never uses it: set NODE_NAME"),
    Named(flags=("v",), dead="use --log-level"),
    Named(flags=(), variables=("HAMI_NODELOCK_EXPIRE",), dead="the node lock lives in the store, with a time limit of its own"),
)


class Translated(msgspec.Struct, frozen=True):
    """`values` by our field names, `sources` where each came from, `warnings` for what has no effect."""

    values: dict[str, str]
    sources: dict[str, str]
    warnings: tuple[str, ...]


def from_variables(env: Mapping[str, str]) -> Translated:
    """What HAMi's variables say. Of two for one setting the first listed wins. Raises InvalidInput."""
    return _translated([(variable, each, env[variable]) for each in HAMI for variable in each.variables if variable in env])


def from_flags(given: Mapping[str, str | None]) -> Translated:
    """The same for flags, by their names without dashes in front."""
    pairs = [(flag, each) for each in HAMI for flag in each.flags]
    return _translated([(f"--{flag}", each, value) for flag, each in pairs if (value := given.get(flag)) is not None])


def with_hami_variables(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment with HAMi's variables under our names, and warnings. Ours win where both are set."""
    found = from_variables(env)
    return {**{f"{PREFIX}{field.upper()}": value for field, value in found.values.items()}, **env}, found.warnings


def _translated(said: list[tuple[str, Named, str]]) -> Translated:
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    warnings = []
    for name, each, value in said:
        if each.dead:
            warnings.append(f"{name} has no effect: {each.dead}")
        elif each.only:
            if value.strip() not in {"", *each.only}:
                raise InvalidInput(name, value, "hami offers " + " or ".join(each.only))
        elif each.field not in values:
            values[each.field], sources[each.field] = _ours(each.field, name, value), name
    return Translated(values, sources, tuple(warnings))


def _ours(field: str, name: str, value: str) -> str:
    """HAMi's value in our words: a folder for a socket, a list in brackets without them."""
    if field == "kubelet_dir":
        folder, _, socket = value.rpartition("/")
        if socket != "kubelet.sock" or not folder:
            raise InvalidInput(name, value, "must be the path of kubelet.sock: the plugin's own socket lies beside it")
        return folder
    if field == "imex_channels":
        return value.strip("[] ")
    return value
