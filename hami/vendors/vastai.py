"""Vastai: cards are shared by slots only. Where a node's cards are dies, those of one board (`AIC`) are kept together."""

from hami.vendors.config import VastaiConfig
from hami.vendors.registers import listed_with_all_cores
from hami.vendors.vendor import AnnotationKeys, Check, ResourceNames, Score, Select, Size, Vendor

BOARD = "AIC"
STRATEGY = "DeviceStrategy"
"""What a card says of itself: the board it is on, and `die` where it is a die of that board."""


def vendor(config: VastaiConfig) -> Vendor:
    return Vendor(
        word="Vastai",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count),
        keys=AnnotationKeys(
            allocated="hami.io/Vastai-devices-allocated",
            to_allocate="hami.io/Vastai-devices-to-allocate",
            register="hami.io/node-va-register",
            handshake="hami.io/node-handshake-va",
            lock="hami.io/mutex.lock",
            use_uuid="vastaitech.com/use-gpuuuid",
            nouse_uuid="vastaitech.com/nouse-gpuuuid",
        ),
        checks=(Check.HEALTH, Check.CORDON, Check.TYPE, Check.UUID, Check.SLOTS, Check.BOARD_MUTEX),
        size=Size.NOTHING,
        select=Select.DIE_GROUPS,
        score=Score.SAME_BOARD,
        discover=listed_with_all_cores,
    )
