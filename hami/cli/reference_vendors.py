"""The vendor pages as Markdown: what HAMi's chart sells, and by which rules it is given out."""

from collections.abc import Iterator

from hami.cli.markdown import table_of
from hami.scheduler.decide.checks import WORDS
from hami.vendors.config import AscendChip, AscendConfig, DeviceConfig, IluvatarConfig
from hami.vendors.registry import vendors_of
from hami.vendors.vendor import Check, Score, Size, Vendor

_CHIP = IluvatarConfig(
    word="MR-V100", count="iluvatar.ai/MR-V100-vgpu", memory="iluvatar.ai/MR-V100.vMem", cores="iluvatar.ai/MR-V100.vCore"
)
_ASCEND = AscendConfig(
    configs=tuple(
        AscendChip(word=word, count=f"huawei.com/{word}", memory=f"huawei.com/{word}-memory", cores=f"huawei.com/{word}-core")
        for word in ("Ascend310P", "Ascend910B3", "Ascend910C")
    )
)


def vendor_lines() -> Iterator[str]:
    yield "Names are those of HAMi's chart; `device-config.yaml` may give others. MR-V100 stands for every Iluvatar chip there."
    yield "Ascend910B3 stands for every Ascend chip but 310P and 910C."
    yield "Differences are explained in [differences](../differences.md)."
    yield ""
    for vendor in vendors_of(DeviceConfig(iluvatars=(_CHIP,), vnpus=_ASCEND)):
        yield from _vendor(vendor)


def _vendor(vendor: Vendor) -> Iterator[str]:
    yield f"## {vendor.word}"
    yield ""
    yield vendor.about.strip()
    yield ""
    yield from table_of(("resource", "name"), list(_resources(vendor)))
    yield from table_of(("annotation", "key"), list(_keys(vendor)))
    yield "A card is asked, in this order:"
    yield ""
    for check in vendor.checks:
        if check is not Check.QUOTA or vendor.quota_at_fit:
            yield f"1. {check.value} (`{WORDS[check].value}`)"
    yield ""
    yield f"A share is {vendor.size.value}. Taken are {vendor.select.value}."
    if vendor.score is not Score.NONE:
        yield f"The node's score grows by {vendor.score.value}."
    yield ""
    if vendor.differs:
        yield "Differs from HAMi: " + ", ".join(f"`{each}`" for each in vendor.differs) + "."
        yield ""


def _resources(vendor: Vendor) -> Iterator[tuple[str, ...]]:
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
            yield what, f"`{name}`"


def _keys(vendor: Vendor) -> Iterator[tuple[str, ...]]:
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
            yield what, f"`{key}`"
    for use, nouse in keys.more_uuids:
        yield "cards wished for, as well", f"`{use}`"
        yield "cards refused, as well", f"`{nouse}`"
    for key in vendor.pod_keys:
        yield "read by its rules", f"`{key}`"
