"""Hygon DCU: shared by memory and cores. A card without a core claim is taken whole."""

from hami.domain.units import CorePercent
from hami.vendors import registers
from hami.vendors.config import HygonConfig
from hami.vendors.vendor import AnnotationKeys, ResourceNames, Vendor


def vendor(config: HygonConfig) -> Vendor:
    return Vendor(
        word="DCU",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/dcu-devices-allocated",
            to_allocate="hami.io/dcu-devices-to-allocate",
            register="hami.io/node-dcu-register",
            handshake="hami.io/node-handshake-dcu",
            lock="hami.io/mutex.lock",
            use_type="hygon.com/use-dcutype",
            nouse_type="hygon.com/nouse-dcutype",
            use_uuid="hygon.com/use-gpuuuid",
            nouse_uuid="hygon.com/nouse-gpuuuid",
        ),
        memory_factor=max(config.memory_factor, 1),
        default_cores=CorePercent(100),
        percent_beside_memory=0,
        discover=registers.listed_by_colon,
        differs=("B1", "B7", "V20.2"),
    )
