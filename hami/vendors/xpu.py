"""Kunlunxin vXPU: a quarter, a half or all of a card, on one, two, four or eight linked cards. Parts of one card are equal."""

from bisect import bisect_left
from typing import Final

from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Pod, Quantity
from hami.domain.request import DeviceRequest
from hami.domain.units import CorePercent, MiB
from hami.vendors import quantities
from hami.vendors.config import KunlunConfig
from hami.vendors.kunlun import CARD, OLD_UUIDS, UUIDS
from hami.vendors.registers import listed
from hami.vendors.requests import given
from hami.vendors.vendor import AnnotationKeys, Changes, Check, ResourceNames, Select, Vendor

_PARTS: Final = (CARD // 4, CARD // 2, CARD)


def vendor(config: KunlunConfig) -> Vendor:
    return Vendor(
        word="XPU",
        about=__doc__ or "",
        resources=ResourceNames(count=config.parts, memory=config.memory),
        keys=AnnotationKeys(
            allocated="hami.io/xpu-devices-allocated",
            to_allocate="hami.io/xpu-devices-to-allocate",
            register="hami.io/node-register-xpu",
            handshake="hami.io/node-handshake-xpu",
            lock="hami.io/mutex.lock",
            use_uuid=UUIDS[0],
            nouse_uuid=UUIDS[1],
            more_uuids=(OLD_UUIDS,),
        ),
        checks=(
            Check.UUID,
            Check.HEALTH,
            Check.CORDON,
            Check.SLOTS,
            Check.MEMORY,
            Check.EQUAL_PARTS,
            Check.MUTEX,
        ),
        select=Select.WINGS,
        ask=ask,
        admit=admit,
        discover=listed,
        differs=("B7", "V20.3", "vxpu-slots"),
    )


def ask(container: Container, vendor: Vendor, place: str) -> DeviceRequest | None:
    """Memory is rounded up to a part and brings its cores; without it the card is taken whole."""
    names = vendor.resources
    count = given(container, names.count, place, vendor)
    if count is None or (number := quantities.whole(*count)) == 0:
        return None
    memory = given(container, names.memory, place, vendor)
    size = CARD if memory is None else part_for(quantities.memory(*memory, factor=1))
    return DeviceRequest(
        vendor=vendor.word,
        count=number,
        memory=MiB(size),
        memory_percent=100 if memory is None else 0,
        cores=CorePercent(size * 100 // CARD),
    )


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes:
    """The part that memory is rounded up to is written where users read it."""
    limits = (container.resources.limits if container.resources is not None else None) or {}
    name = vendor.resources.memory
    claims = vendor.resources.count in limits
    if not claims or name not in limits:
        return Changes(claims=claims)
    try:
        size = quantities.memory(name, limits[name], factor=1)
    except InvalidInput:
        return Changes(claims=True)  # refused with its place in the spec (`requests.malformed`)
    part: dict[str, Quantity] = {name: str(part_for(size))}
    return Changes(claims=True, limits=part, requests=part)


def part_for(size: int) -> int:
    """The smallest part with that much memory; the whole card where none has."""
    return _PARTS[min(bisect_left(_PARTS, size), len(_PARTS) - 1)]
