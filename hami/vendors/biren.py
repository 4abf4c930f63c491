"""Biren: cards are shared by slots only."""

from hami.vendors.config import BirenConfig
from hami.vendors.registers import listed_with_all_cores
from hami.vendors.vendor import AnnotationKeys, Check, ResourceNames, Size, Vendor


def vendor(config: BirenConfig) -> Vendor:
    return Vendor(
        word="Biren",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count),
        keys=AnnotationKeys(
            allocated="hami.io/Biren-devices-allocated",
            to_allocate="hami.io/Biren-devices-to-allocate",
            register="hami.io/node-biren-register",
            handshake="hami.io/node-handshake-biren",
            lock="hami.io/mutex.lock",
            use_uuid="birentech.com/use-gpuuuid",
            nouse_uuid="birentech.com/nouse-gpuuuid",
        ),
        checks=(Check.HEALTH, Check.CORDON, Check.TYPE, Check.UUID, Check.SLOTS, Check.MUTEX),
        size=Size.NOTHING,
        discover=listed_with_all_cores,
    )
