"""AMD Instinct: memory in MiB, cores in percent of a card's compute units. Requests do not count, limits do."""

from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Pod
from hami.domain.request import DeviceRequest
from hami.domain.units import CorePercent, MiB
from hami.vendors import quantities
from hami.vendors.config import AmdConfig
from hami.vendors.requests import given
from hami.vendors.vendor import AnnotationKeys, Changes, Check, Refused, ResourceNames, Size, Vendor


def vendor(config: AmdConfig) -> Vendor:
    return Vendor(
        word="AMD",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/amd-devices-allocated",
            to_allocate="hami.io/amd-devices-to-allocate",
            register="hami.io/node-amd-register",
            lock="hami.io/mutex.lock",
            use_type="amd.com/use-gputype",
            nouse_type="amd.com/nouse-gputype",
            use_uuid="amd.com/use-gpu-uuid",
            nouse_uuid="amd.com/nouse-gpu-uuid",
        ),
        limits_only=True,
        asked_by=tuple(name for name in (config.count, config.memory, config.cores) if name),
        checks=(
            Check.HEALTH,
            Check.CORDON,
            Check.TYPE,
            Check.UUID,
            Check.SLOTS,
            Check.MUTEX,
            Check.MEMORY,
            Check.COMPUTE_UNITS,
        ),
        size=Size.COMPUTE_UNITS,
        model_in_annotation=True,
        alive_by_capacity=True,
        ask=ask,
        admit=admit,
        differs=("B1", "B7", "V20.2", "V20.10"),
    )


def ask(container: Container, vendor: Vendor, place: str) -> DeviceRequest | None:
    """Cores left out are all of them; others than 1 to 100 percent are refused, and a share without a count."""
    names = vendor.resources
    count = given(container, names.count, place, vendor)
    if count is None:
        alone = given(container, names.memory, place, vendor) or given(container, names.cores, place, vendor)
        if alone is not None:
            raise InvalidInput(*alone, f"needs {names.count} beside it")
        return None
    if (number := quantities.whole(*count)) == 0:
        return None
    memory = given(container, names.memory, place, vendor)
    cores = given(container, names.cores, place, vendor)
    percent = 100 if cores is None else quantities.whole(*cores)
    if cores is not None and not 1 <= percent <= 100:
        raise InvalidInput(*cores, "must be between 1 and 100")
    return DeviceRequest(
        vendor=vendor.word,
        count=number,
        memory=MiB(0 if memory is None else quantities.memory(*memory, factor=1)),
        memory_percent=0,
        cores=CorePercent(percent),
    )


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes | Refused:
    """Memory or cores without a count would be a pod that runs without devices: refused."""
    names = vendor.resources
    limits = (container.resources.limits if container.resources is not None else None) or {}
    if names.count not in limits:
        alone = next((name for name in (names.memory, names.cores) if name and name in limits), None)
        return Changes() if alone is None else Refused(f"{alone} needs {names.count} beside it in container {container.name}")
    cores = limits.get(names.cores) if names.cores else None
    number = None if cores is None else quantities.as_integer(cores)
    if cores is not None and (number is None or not 1 <= number <= 100):
        return Refused(f"{names.cores} must be an integer percentage between 1 and 100, got {cores}")
    return Changes(claims=True)
