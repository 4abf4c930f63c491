"""What there is to say about each vendor, from its page of data: `hami vendors` and the reference page both print it."""

from collections.abc import Iterator
from typing import Final

from hami.scheduler.decide.checks import WORDS
from hami.vendors.config import AscendChip, AscendConfig, DeviceConfig, IluvatarConfig
from hami.vendors.registry import vendors_of
from hami.vendors.vendor import Check, Size, Vendor

_CHIP = IluvatarConfig(
    word="MR-V100", count="iluvatar.ai/MR-V100-vgpu", memory="iluvatar.ai/MR-V100.vMem", cores="iluvatar.ai/MR-V100.vCore"
)
_ASCEND = AscendConfig(
    configs=tuple(
        AscendChip(word=word, count=f"huawei.com/{word}", memory=f"huawei.com/{word}-memory", cores=f"huawei.com/{word}-core")
        for word in ("Ascend310P", "Ascend910B3", "Ascend910C")
    )
)


EXAMPLES: Final = DeviceConfig(iluvatars=(_CHIP,), vnpus=_ASCEND)
"""HAMi's chart defaults, and a chip of each family that is served only where a device-config.yaml names its chips."""


def examples() -> tuple[Vendor, ...]:
    return vendors_of(EXAMPLES)


def rules_of(vendor: Vendor) -> Iterator[tuple[str, str]]:
    """What a card is asked, in order, and the word of the refusal."""
    for check in vendor.checks:
        if check is not Check.QUOTA or vendor.quota_at_fit:
            yield check.value, WORDS[check].value


def resources_of(vendor: Vendor) -> Iterator[tuple[str, str]]:
    names = vendor.resources
    unit = f"memory, in {vendor.memory_factor} MiB" if vendor.memory_factor > 1 else "memory, in MiB"
    for what, name in (
        ("slices of one card" if vendor.size is Size.PROFILE else "cards", names.count),
        (unit, names.memory),
        ("memory, in percent", names.percentage),
        ("cores", names.cores),
        ("priority", names.priority),
    ):
        if name:
            yield what, name


def keys_of(vendor: Vendor) -> Iterator[tuple[str, str]]:
    keys = vendor.keys
    for what, key in (
        ("what the pod holds", keys.allocated),
        ("what its plugin has yet to hand out", keys.to_allocate),
        ("what the node announces", keys.register),
        ("the plugin's sign of life", keys.handshake),
        ("links between cards", keys.pair_scores),
        ("MIG instances", keys.mig),
        ("the node's lock", keys.lock),
        ("models wished for", keys.use_type),
        ("models refused", keys.nouse_type),
        ("cards wished for", keys.use_uuid),
        ("cards refused", keys.nouse_uuid),
        ("all on one NUMA node", keys.numa_bind),
        ("mode of sharing", keys.mode),
    ):
        if key:
            yield what, key
    for use, nouse in keys.more_uuids:
        yield "cards wished for, as well", use
        yield "cards refused, as well", nouse
    for key in vendor.pod_keys:
        yield "read by its rules", key
