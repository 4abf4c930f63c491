"""Iluvatar: one vendor per chip of the configuration. Memory comes in 256 MiB."""

from hami.domain.pod import Container, EnvVar, Pod, Quantity
from hami.vendors import quantities, registers
from hami.vendors.config import IluvatarConfig
from hami.vendors.vendor import AnnotationKeys, Changes, ResourceNames, Vendor

_UNIT = 256
_NAME_ENV = "SOL_CONTINER_NAME"
"""Spelt as the vendor's runtime reads it."""


def vendor(config: IluvatarConfig) -> Vendor:
    word = config.word
    return Vendor(
        word=word,
        about=__doc__ or "",
        resources=ResourceNames(count=config.count, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated=f"hami.io/{word}-devices-allocated",
            to_allocate=f"hami.io/{word}-devices-to-allocate",
            register=f"hami.io/node-{word}-register",
            handshake=f"hami.io/node-handshake-{word}",
            lock="hami.io/mutex.lock",
            use_uuid=f"hami.io/use-{word}-uuid",
            nouse_uuid=f"hami.io/no-use-{word}-uuid",
        ),
        memory_factor=_UNIT,
        percent_beside_memory=0,
        admit=admit,
        discover=registers.listed_by_colon,
        differs=("B7",),
    )


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes:
    """Several cards are whole cards; the runtime wants the container's name."""
    limits = (container.resources.limits if container.resources is not None else None) or {}
    if vendor.resources.count not in limits:
        return Changes()
    added: dict[str, Quantity] = {}
    count = quantities.as_integer(limits[vendor.resources.count]) or 0
    if count > 1 and vendor.resources.cores:
        added[vendor.resources.cores] = str(count * 100)
    named = container.name and all(each.name != _NAME_ENV for each in container.env or ())
    return Changes(claims=True, limits=added, env=(EnvVar(name=_NAME_ENV, value=container.name),) if named else ())
