"""A vendor as data: its word, the resources it sells, its defaults, and the annotation keys it speaks."""

import msgspec

from hami.domain.units import CorePercent, MiB


class ResourceNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names a container uses to ask; an empty name means that the vendor has no such resource."""

    count: str
    memory: str = ""
    percentage: str = ""
    cores: str = ""
    priority: str = ""

    def all(self) -> tuple[str, ...]:
        return tuple(name for name in (self.count, self.memory, self.percentage, self.cores) if name)


class AnnotationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Annotation keys of one vendor: written by us (pod), by its plugin (node), by users (wishes)."""

    allocated: str
    to_allocate: str = ""
    register: str = ""
    handshake: str = ""
    pair_scores: str = ""
    mig: str = ""
    use_type: str = ""
    nouse_type: str = ""
    use_uuid: str = ""
    nouse_uuid: str = ""
    numa_bind: str = ""
    mode: str = ""


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator family under one configuration.

    `memory_factor` multiplies what users write into the memory resource (and the limits of quotas on it).
    `quota_at_fit`: namespace quota is asked again for every card, not only at admission.
    """

    word: str
    resources: ResourceNames
    keys: AnnotationKeys
    memory_factor: int = 1
    default_memory: MiB = MiB(0)
    default_cores: CorePercent = CorePercent(0)
    default_count: int = 0
    runtime_class: str = ""
    core_policy: str = ""
    overwrite_env: bool = False
    quota_at_fit: bool = False
    identity: bool = False
    """Containers learn their devices from environment that refers to annotations (docs/delivery.md)."""
