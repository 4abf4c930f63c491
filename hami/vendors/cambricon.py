"""Cambricon MLU (dynamic sMLU): cards are counted up from what the node advertises, memory comes in 256 MiB."""

from collections.abc import Mapping

from hami.domain.device import Device
from hami.domain.pod import Node
from hami.domain.units import CorePercent, Slots
from hami.vendors.config import CambriconConfig
from hami.vendors.registers import cards_by_cores
from hami.vendors.vendor import AnnotationKeys, ResourceNames, Vendor, Writing

_UNIT = 256
_SLOTS = Slots(100)
_CORES = CorePercent(100)


def vendor(config: CambriconConfig) -> Vendor:
    return Vendor(
        word="MLU",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/cambricon-mlu-devices-allocated",
            to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
            lock="cambricon.com/dsmlu.lock",
            lock_names_pod=False,
            lock_expires_s=120,
            use_uuid="cambricon.com/use-gpuuuid",
            nouse_uuid="cambricon.com/nouse-gpuuuid",
        ),
        memory_factor=_UNIT,
        default_cores=_CORES,
        percent_beside_memory=0,
        quota_at_fit=True,
        discover=discover,
        annotate=annotate,
        differs=("B1", "B7", "V20.6", "capacity"),
    )


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    return cards_by_cores(node, vendor, name="cambricon-mlu", per_card=_CORES, slots=_SLOTS)


def annotate(writing: Writing, _vendor: Vendor) -> Mapping[str, str]:
    """The plugin sees one share per pod: the first. It reads the misspelt key, HAMi writes the other one: both are written."""
    share = next(share for container in writing.containers for share in container.shares)
    return {
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_ASSIGHED": "false",
        "CAMBRICON_DSMLU_PROFILE": f"{share.index}_{share.cores}_{share.memory // _UNIT}",
    }
