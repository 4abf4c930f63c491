"""Moore Threads sGPU: memory in 512 MiB, cores in sixteenths of a card; several cards are whole ones."""

from collections.abc import Mapping
from typing import Final

from hami.domain.device import Device
from hami.domain.pod import Container, Node, Pod, Quantity
from hami.domain.request import DeviceRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors import quantities
from hami.vendors.config import MthreadsConfig
from hami.vendors.registers import cards_by_cores
from hami.vendors.requests import cores_of, given
from hami.vendors.vendor import STANDARD, AnnotationKeys, Changes, Check, Refused, ResourceNames, Vendor, Writing

_UNIT: Final = 512
_SLOTS: Final = Slots(100)
_CORES: Final = CorePercent(16)
_MEMORY: Final = 96
_LEGAL: Final = (2, 4, 8, 16, 32, 64, 96)
"""Memory of one shared card, in units."""


def vendor(config: MthreadsConfig) -> Vendor:
    return Vendor(
        word="Mthreads",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/mthreads-vgpu-devices-allocated",
            use_uuid="mthreads.ai/use-gpuuuid",
            nouse_uuid="mthreads.ai/nouse-gpuuuid",
        ),
        memory_factor=_UNIT,
        checks=(*STANDARD, Check.SAME_CARD),
        ask=ask,
        admit=admit,
        discover=discover,
        annotate=annotate,
        differs=("B7", "capacity"),
    )


def ask(container: Container, vendor: Vendor, place: str) -> DeviceRequest | None:
    """Memory and cores are those of all the cards together."""
    names = vendor.resources
    count = given(container, names.count, place, vendor)
    if count is None or (number := quantities.whole(*count)) == 0:
        return None
    memory = given(container, names.memory, place, vendor)
    size = 0 if memory is None else quantities.memory(*memory, factor=_UNIT)
    return DeviceRequest(
        vendor=vendor.word,
        count=number,
        memory=MiB(size // number),
        memory_percent=0 if size else 100,
        cores=CorePercent(cores_of(given(container, names.cores, place, vendor), CorePercent(0)) // number),
    )


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes | Refused:
    names = vendor.resources
    asked = container.limit(names.count)
    if asked is None:
        return Changes()
    count = quantities.as_integer(asked) or 0
    if count <= 0:
        return Refused(f"{names.count} must be greater than 0")
    if count > 1:
        whole: dict[str, Quantity] = {names.cores: str(_CORES * count), names.memory: str(_MEMORY * count)}
        return Changes(claims=True, limits=whole, notes={"mthreads.com/request-gpu-num": str(count)})
    memory = container.limit(names.memory)
    if memory is None:
        return Changes(claims=True, limits={names.cores: str(_CORES), names.memory: str(_MEMORY)})
    if quantities.as_integer(memory) in _LEGAL:
        return Changes(claims=True)
    return Refused(f"{names.memory} must be one of {', '.join(map(str, _LEGAL))}, got {memory}")


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    return cards_by_cores(node, vendor, name="mthreads", per_card=_CORES, slots=_SLOTS)


def annotate(writing: Writing, _vendor: Vendor) -> Mapping[str, str]:
    return {
        "mthreads.com/gpu-index": writing.last_indices,
        "mthreads.com/predicate-node": writing.node.name,
        "mthreads.com/predicate-time": str(writing.now_s * 10**9),
    }
