"""AWS Neuron: whole devices, or NeuronCores of devices, counted as bits of a mask.

How many cores a device has is the node's own fact. Cores are asked one, or two per device.
"""

from collections.abc import Mapping
from typing import Final

from hami.domain.allocation import DeviceShare
from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Node, Pod
from hami.domain.request import DeviceRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors import quantities
from hami.vendors.config import NeuronConfig
from hami.vendors.registers import capacity, cards_by_capacity
from hami.vendors.requests import asks, given
from hami.vendors.vendor import AnnotationKeys, Changes, Check, Refused, ResourceNames, Select, Size, Vendor, Writing

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
NODE_TYPE: Final = "AWSNodeType"
_PER_DEVICE: Final = 2
_MOST_CORES: Final = 31


def vendor(config: NeuronConfig) -> Vendor:
    return Vendor(
        word="AWSNeuron",
        about=__doc__ or "",
        resources=ResourceNames(count=config.count, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/aws-neuron-devices-allocated",
            use_uuid="aws.amazon.com/use-neuron-uuid",
            nouse_uuid="aws.amazon.com/nouse-neuron-uuid",
        ),
        asked_by=(config.count, config.cores),
        checks=(
            Check.HEALTH,
            Check.CORDON,
            Check.TYPE,
            Check.UUID,
            Check.SLOTS,
            Check.MUTEX,
            Check.NEURON_CORES,
        ),
        size=Size.NEURON_CORES,
        select=Select.NEURON_RUNS,
        ask=ask,
        admit=admit,
        discover=discover,
        annotate=annotate,
        differs=("V20.3", "neuron", "capacity"),
    )


def ask(container: Container, vendor: Vendor, place: str) -> DeviceRequest | None:
    """A device is asked for with all its cores (`cores` 0)."""
    names = vendor.resources
    devices = given(container, names.count, place, vendor)
    if devices is not None:
        number = quantities.whole(*devices)
        return _request(vendor, number, 0, names.count) if number else None
    cores = given(container, names.cores, place, vendor)
    if cores is None or (number := quantities.whole(*cores)) == 0:
        return None
    if number <= _PER_DEVICE:
        return _request(vendor, 1, number, names.cores)
    if number % _PER_DEVICE:
        raise InvalidInput(*cores, f"must be 1 or a multiple of {_PER_DEVICE}")
    return _request(vendor, number // _PER_DEVICE, _PER_DEVICE, names.cores)


def _request(vendor: Vendor, count: int, cores: int, form: str) -> DeviceRequest:
    return DeviceRequest(vendor=vendor.word, count=count, memory_percent=0, cores=CorePercent(cores), form=form)


def admit(container: Container, _pod: Pod, vendor: Vendor) -> Changes | Refused:
    names = vendor.resources
    if not asks(container, vendor):
        return Changes()
    cores = container.limit(names.cores) if container.limit(names.count) is None else None
    number = None if cores is None else quantities.as_integer(cores)
    if number is not None and number > _PER_DEVICE and number % _PER_DEVICE:
        return Refused(f"{names.cores} must be 1 or a multiple of {_PER_DEVICE}, got {number}")
    return Changes(claims=True)


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    count, cores = capacity(node, vendor.resources.count), capacity(node, vendor.resources.cores)
    if count == 0:
        return ()
    each = cores // count
    if each > _MOST_CORES:
        raise InvalidInput(
            f'status.capacity["{vendor.resources.cores}"]', cores, f"means more than {_MOST_CORES} cores a device"
        )
    return tuple(
        Device(
            uuid=f"{node.metadata.name}-AWSNeuron-{number}",
            vendor=vendor.word,
            model=vendor.word,
            memory=MiB(0),
            cores=CorePercent(2**each - 1),
            slots=Slots(each),
            index=number,
            numa=0,
            attributes={NODE_TYPE: (node.metadata.labels or {}).get(INSTANCE_TYPE, "")},
        )
        for number in cards_by_capacity(node, vendor.resources.count, count)
    )


def annotate(writing: Writing, vendor: Vendor) -> Mapping[str, str]:
    """One list for the whole pod: device numbers of containers that asked for devices, core numbers of the others."""
    slots = {each.device.uuid: each.device.slots for each in writing.node.devices}
    numbers: list[int] = []
    by_cores = False
    for container, asked in zip(writing.containers, writing.request.containers, strict=True):
        cores = next((each.cores for each in asked.requests if each.vendor == vendor.word), 0)
        by_cores = by_cores or cores > 0
        for share in container.shares:
            numbers += _core_numbers(share, slots.get(share.uuid, _PER_DEVICE))[:cores] if cores else [share.index]
    found = {
        "AWS_NEURON_IDS": ",".join(map(str, numbers)),
        "NEURON_ALLOCATED": "false",
        "NEURON_ALLOC_TIME": str(writing.now_s * 10**9),
        "aws.amazon.com/predicate-node": writing.node.name,
    }
    return found | ({"NEURON_RESOURCE_TYPE": vendor.resources.cores} if by_cores else {})


def _core_numbers(share: DeviceShare, per_device: int) -> list[int]:
    return [share.index * per_device + bit for bit in range(share.cores.bit_length()) if share.cores >> bit & 1]
