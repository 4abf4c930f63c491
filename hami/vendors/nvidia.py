"""NVIDIA: shared by memory and cores (HAMi-core), or cut by MIG."""

from typing import Final

from hami.domain.device import Device
from hami.domain.pod import Container, EnvVar, Node, Pod, Quantity
from hami.domain.units import CorePercent, MiB
from hami.vendors import identity, quantities, registers
from hami.vendors.config import NvidiaConfig
from hami.vendors.vendor import (
    STANDARD,
    AnnotationKeys,
    Changes,
    Check,
    Refused,
    ResourceNames,
    Select,
    Vendor,
)

WORD = "NVIDIA"
_PRIORITY_ENV: Final = "CUDA_TASK_PRIORITY"
_CORE_POLICY_ENV: Final = "GPU_CORE_UTILIZATION_POLICY"
_AFTER_TYPE: Final = STANDARD.index(Check.TYPE) + 1

KEYS = AnnotationKeys(
    allocated="hami.io/vgpu-devices-allocated",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    register="hami.io/node-nvidia-register",
    handshake="hami.io/node-handshake",
    pair_scores="hami.io/node-nvidia-score",
    mig="hami.io/vgpu-mig-allocations",
    lock="hami.io/mutex.lock",
    use_type="nvidia.com/use-gputype",
    nouse_type="nvidia.com/nouse-gputype",
    use_uuid="nvidia.com/use-gpuuuid",
    nouse_uuid="nvidia.com/nouse-gpuuuid",
    numa_bind="nvidia.com/numa-bind",
    mode="nvidia.com/vgpu-mode",
)


def vendor(config: NvidiaConfig) -> Vendor:
    return Vendor(
        word=WORD,
        about=__doc__ or "",
        resources=ResourceNames(
            count=config.resource_count_name,
            memory=config.resource_memory_name,
            percentage=config.resource_memory_percentage_name,
            cores=config.resource_core_name,
            priority=config.resource_priority_name,
        ),
        keys=KEYS,
        memory_factor=max(config.memory_factor, 1),
        default_memory=MiB(config.default_memory),
        default_cores=CorePercent(config.default_cores),
        default_count=config.default_gpu_num,
        runtime_class=config.runtime_class_name,
        core_policy="" if config.gpu_core_policy == "default" else config.gpu_core_policy,
        overwrite_env=config.overwrite_env,
        quota_at_fit=True,
        identity=True,
        checks=(*STANDARD[:_AFTER_TYPE], Check.NUMA, *STANDARD[_AFTER_TYPE:], Check.MIG),
        select=Select.TOPOLOGY,
        admit=admit,
        discover=discover,
        differs=("B1", "B3", "B4", "B7", "identity"),
    )


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    text = node.metadata.notes.get(vendor.keys.pair_scores, "")
    return registers.listed(node, vendor, registers.decode_pair_scores(text) if text else None)


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes | Refused:
    """A share without a count means the default count; a count with neither cores nor part of the memory, the whole card."""
    names = vendor.resources
    refused = _percentage(container, vendor)
    if refused is not None:
        return refused
    limits = (container.resources.limits if container.resources else None) or {}
    added: dict[str, Quantity] = {}
    claims = names.count in limits
    if (
        not claims
        and vendor.default_count > 0
        and any(name in limits for name in (names.cores, names.memory, names.percentage))
    ):
        added[names.count] = str(vendor.default_count)
        claims = True
    counted = claims or container.limit(names.count) is not None
    if counted and names.cores and container.limit(names.cores) is None and _whole_card(container, vendor):
        added[names.cores] = "100"
        claims = True
    return Changes(claims=claims, limits=added, env=_env(container, vendor, claims=claims))


def _percentage(container: Container, vendor: Vendor) -> Refused | None:
    name = vendor.resources.percentage
    value = container.limit(name) if name else None
    number = None if value is None else quantities.as_integer(value)
    if number is None or 0 <= number <= 100:
        return None
    return Refused(f"invalid {name} value {number} in container {container.name}: must be an integer between 0 and 100")


def _whole_card(container: Container, vendor: Vendor) -> bool:
    names = vendor.resources
    percentage = container.limit(names.percentage) if names.percentage else None
    if percentage is not None:
        return quantities.as_integer(percentage) == 100
    return not names.memory or container.limit(names.memory) is None


def _env(container: Container, vendor: Vendor, *, claims: bool) -> tuple[EnvVar, ...]:
    env = []
    limits = (container.resources.limits if container.resources else None) or {}
    priority = limits.get(vendor.resources.priority) if vendor.resources.priority else None
    if priority is not None and (number := quantities.as_integer(priority)) is not None:
        env.append(EnvVar(name=_PRIORITY_ENV, value=str(number)))
    if vendor.core_policy:
        env.append(EnvVar(name=_CORE_POLICY_ENV, value=vendor.core_policy))
    if not claims and vendor.overwrite_env and not identity.takes_instances(container):
        env.append(EnvVar(name=identity.VISIBLE_ENV, value="none"))
    return tuple(env)
