"""NVIDIA: shared by memory and cores (HAMi-core), or cut by MIG."""

from hami.domain.units import CorePercent, MiB
from hami.vendors.config import NvidiaConfig
from hami.vendors.vendor import AnnotationKeys, ResourceNames, Vendor

WORD = "NVIDIA"

KEYS = AnnotationKeys(
    allocated="hami.io/vgpu-devices-allocated",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    register="hami.io/node-nvidia-register",
    handshake="hami.io/node-handshake",
    pair_scores="hami.io/node-nvidia-score",
    mig="hami.io/vgpu-mig-allocations",
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
    )
