"""What a pod asks for: containers and their resources -> PodRequest, for every vendor, units resolved."""

from collections.abc import Iterator, Sequence

from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Pod, Quantity
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB
from hami.vendors import quantities
from hami.vendors.vendor import Vendor


def kind_of(container: Container, *, init: bool) -> ContainerKind:
    if not init:
        return ContainerKind.APP
    return ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT


def containers_of(pod: Pod) -> Iterator[tuple[str, ContainerKind, Container]]:
    """Init containers (sidecars among them) first, then apps, with their places in the spec: positions count in this order."""
    for index, container in enumerate(pod.spec.init_containers or ()):
        yield f"spec.initContainers[{index}]", kind_of(container, init=True), container
    for index, container in enumerate(pod.spec.containers or ()):
        yield f"spec.containers[{index}]", ContainerKind.APP, container


def pod_request(pod: Pod, vendors: Sequence[Vendor]) -> PodRequest:
    """Raises InvalidInput where a count or a memory size cannot be read: dropping it would place the pod without accounting.

    Cores and percentages that are no whole numbers count as not given here; admission refuses them before (`malformed`).
    """
    found: list[ContainerRequest] = []
    for place, kind, container in containers_of(pod):
        asked = [device_request(container, vendor, place) for vendor in vendors if asks(container, vendor)]
        found.append(
            ContainerRequest(name=container.name, kind=kind, requests=tuple([each for each in asked if each is not None]))
        )
    meta = pod.metadata
    return PodRequest(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        containers=tuple(found),
        annotations=dict(meta.notes),
        priority=pod.spec.priority or 0,
    )


def asks(container: Container, vendor: Vendor) -> bool:
    """Does it name a resource that is a request to this vendor?"""
    given = container.resources
    if given is None:
        return False
    limits, requests = given.limits, None if vendor.limits_only else given.requests
    for name in vendor.asked_by or (vendor.resources.count,):  # asked of every vendor for every container
        if (limits is not None and name in limits) or (requests is not None and name in requests):
            return True
    return False


def device_request(container: Container, vendor: Vendor, place: str) -> DeviceRequest | None:
    """What this container asks of this vendor; None when it asks for no card."""
    if vendor.ask is not None:
        return vendor.ask(container, vendor, place)
    names = vendor.resources
    count = given(container, names.count, place, vendor)
    if count is None:
        return None
    number = quantities.whole(*count)
    if number == 0:
        return None
    percent = _percent(given(container, names.percentage, place, vendor))
    memory = 0
    written = given(container, names.memory, place, vendor)
    if written is not None:
        memory = quantities.memory(*written, factor=vendor.memory_factor)
    if memory > 0 and percent is None:
        percent = vendor.percent_beside_memory
    elif percent is None:
        memory = vendor.default_memory
        percent = vendor.percent_beside_memory if memory else vendor.percent_without_memory
    return DeviceRequest(
        vendor=vendor.word,
        count=number,
        memory=MiB(memory),
        memory_percent=percent,
        cores=cores_of(given(container, names.cores, place, vendor), vendor.default_cores),
    )


def malformed(pod: Pod, vendors: Sequence[Vendor]) -> InvalidInput | None:
    """The first quantity of any vendor's resources that is no whole number, negative or too large, wherever it stands."""
    for place, _, container in containers_of(pod):
        if container.resources is None:
            continue
        for side, amounts in (("limits", container.resources.limits), ("requests", container.resources.requests)):
            for vendor in vendors:
                names = vendor.resources
                for name in names.all():
                    if amounts is None or name not in amounts:
                        continue
                    field = f'{place}.resources.{side}["{name}"]'
                    try:
                        if name == names.memory:
                            quantities.memory(field, amounts[name], factor=vendor.memory_factor)
                        else:
                            quantities.whole(field, amounts[name])
                    except InvalidInput as error:
                        return error
    return None


def given(container: Container, resource: str, place: str, vendor: Vendor) -> tuple[str, Quantity] | None:
    """Limits first, then requests where they count: field name and value."""
    if not resource or container.resources is None:
        return None
    sides = [("limits", container.resources.limits), ("requests", container.resources.requests)]
    for side, amounts in sides[:1] if vendor.limits_only else sides:
        if amounts is not None and resource in amounts:
            return f'{place}.resources.{side}["{resource}"]', amounts[resource]
    return None


def _percent(written: tuple[str, Quantity] | None) -> int | None:
    """1..100; above counts as 100, anything else as not given."""
    if written is None:
        return None
    number = quantities.as_integer(written[1])
    return None if number is None or number <= 0 else min(number, 100)


def cores_of(written: tuple[str, Quantity] | None, default: CorePercent) -> CorePercent:
    """A negative or oversized claim is refused even here: it would corrupt the sum of a card's cores."""
    if written is None or quantities.as_integer(written[1]) is None:
        return default
    return CorePercent(quantities.whole(*written))
