"""MetaX GPU, whole cards, counted up from what the node advertises.

MetaX's plugin picks the cards. What is lost, or scored, with its pick of so many cards stands in two tables on the node.
"""

from typing import Final

import msgspec

from hami.domain.device import Device
from hami.domain.pod import Node
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors.config import MetaxConfig
from hami.vendors.registers import capacity, cards_by_capacity
from hami.vendors.vendor import STANDARD, AnnotationKeys, Check, ResourceNames, Score, Vendor

LOSSES: Final = "metax-tech.com/gpu.topology.losses"
SCORES: Final = "metax-tech.com/gpu.topology.scores"
_MEMORY: Final = 65536
_CORES: Final = 100


def vendor(config: MetaxConfig) -> Vendor:
    return Vendor(
        word="Metax-GPU",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count),
        keys=AnnotationKeys(
            allocated="hami.io/metax-gpu-devices-allocated", to_allocate="hami.io/metax-gpu-devices-to-allocate"
        ),
        default_cores=CorePercent(_CORES),
        checks=(*STANDARD, Check.SAME_CARD),
        score=Score.NODE_TABLE,
        discover=discover,
        differs=("B7", "capacity"),
    )


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """The node's tables are kept with each of its cards."""
    resource = vendor.resources.count
    notes = node.metadata.notes
    return tuple(
        Device(
            uuid=f"{node.metadata.name}-metax-{number}",
            vendor=vendor.word,
            model=vendor.word,
            memory=MiB(_MEMORY),
            cores=CorePercent(_CORES),
            slots=Slots(1),
            index=number,
            numa=0,
            attributes={key: notes[key] for key in (LOSSES, SCORES) if key in notes},
        )
        for number in cards_by_capacity(node, resource, capacity(node, resource))
    )


def in_table(text: str, count: int) -> int:
    """What the node says of so many cards; 0 where it does not, or says something unreadable."""
    try:
        return _TABLE.decode(text).get(count, 0)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return 0


_TABLE: Final = msgspec.json.Decoder(dict[int, int])
