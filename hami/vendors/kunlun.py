"""Kunlunxin XPU, whole cards: one, two, four or eight that are linked. They are counted up from what the node advertises."""

from collections.abc import Mapping
from typing import Final

from hami.domain.device import Device
from hami.domain.pod import Node
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors.config import KunlunConfig
from hami.vendors.registers import capacity, numbered_cards
from hami.vendors.vendor import AnnotationKeys, Check, ResourceNames, Score, Select, Size, Vendor, Writing

CARD: Final = MiB(98_304)
"""Memory of every card."""
UUIDS: Final = ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid")
OLD_UUIDS: Final = ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid")
_SLOTS: Final = Slots(100)


def vendor(config: KunlunConfig) -> Vendor:
    return Vendor(
        word="kunlun",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count),
        keys=AnnotationKeys(
            allocated="hami.io/kunlun-allocated", use_uuid=UUIDS[0], nouse_uuid=UUIDS[1], more_uuids=(OLD_UUIDS,)
        ),
        checks=(Check.UUID, Check.HEALTH, Check.CORDON, Check.WHOLE),
        size=Size.WHOLE,
        select=Select.WINGS,
        score=Score.WINGS,
        discover=discover,
        annotate=annotate,
        differs=("B7", "V20.3", "capacity"),
    )


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """The first half of the cards lies on the first NUMA node."""
    count = capacity(node, vendor.resources.count)
    return numbered_cards(
        node,
        vendor,
        vendor.resources.count,
        count,
        name="kunlun",
        memory=CARD,
        cores=CorePercent(100),
        slots=_SLOTS,
        numa=lambda number: int(number >= count // 2),
    )


def annotate(writing: Writing, _vendor: Vendor) -> Mapping[str, str]:
    return {"BAIDU_COM_DEVICE_IDX": writing.last_indices}
