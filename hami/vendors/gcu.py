"""Enflame GCU, whole cards. They are counted up from what the node advertises; memory and cores are shares of a hundred."""

from typing import Final

from hami.domain.device import Device
from hami.domain.pod import Node
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors.config import EnflameConfig
from hami.vendors.registers import capacity, numbered_cards
from hami.vendors.vendor import AnnotationKeys, Check, ResourceNames, Size, Vendor

_ALL: Final = 100


def vendor(config: EnflameConfig) -> Vendor:
    return Vendor(
        word="GCU",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count),
        keys=AnnotationKeys(
            allocated="hami.io/enflame-gcu-devices-allocated", to_allocate="hami.io/enflame-gcu-devices-to-allocate"
        ),
        default_memory=MiB(_ALL),
        percent_beside_memory=_ALL,
        default_cores=CorePercent(_ALL),
        checks=(Check.HEALTH, Check.CORDON, Check.TYPE, Check.IDLE),
        size=Size.WHOLE,
        discover=discover,
        differs=("B7", "capacity"),
    )


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    resource = vendor.resources.count
    return numbered_cards(
        node,
        vendor,
        resource,
        capacity(node, resource),
        name="GCU",
        memory=MiB(_ALL),
        cores=CorePercent(_ALL),
        slots=Slots(1),
    )
