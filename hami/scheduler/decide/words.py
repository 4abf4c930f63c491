"""A request in words, and what makes one refusal the same as another."""

import hashlib
from collections.abc import Mapping, Sequence

from hami.domain.request import ContainerRequest, DeviceRequest, PodRequest
from hami.scheduler.decide.policies import DEVICE_POLICY, NODE_POLICY, WEIGHTS
from hami.scheduler.decide.reserve import request_digest
from hami.vendors.vendor import Vendor


def words_of(request: PodRequest) -> str:
    """`main: 2 x NVIDIA, 1000 MiB, 30 % cores; init (init): ...`, containers that ask for nothing left out."""
    return "; ".join(_container(each) for each in request.containers if each.requests)


def _container(container: ContainerRequest) -> str:
    kind = "" if container.kind.value == "app" else f" ({container.kind.value})"
    return f"{container.name}{kind}: " + " and ".join(_device(each) for each in container.requests)


def _device(request: DeviceRequest) -> str:
    if request.form and request.memory:
        memory = f"{request.memory} of {request.form}"
    elif request.form and (request.memory_percent or 0) < 0:
        memory = "any memory"
    elif request.memory:
        memory = f"{request.memory} MiB"
    else:
        memory = "any memory" if request.memory_percent is None else f"{request.memory_percent} % memory"
    cores = f", {request.cores} % cores" if request.cores else ""
    return f"{request.count} x {request.vendor}, {memory}{cores}"


def refusal_digest(request: PodRequest, counts: Mapping[str, int], nodes_seen: int) -> str:
    """Changes when the request, a reason or a number of nodes changes."""
    told = f"{request_digest(request)} {nodes_seen} {sorted(counts.items())}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def wishes_in(annotations: Mapping[str, str], vendors: Sequence[Vendor]) -> dict[str, str]:
    """The annotations of a pod that a placement reads, so that the log alone can tell why it went where it went."""
    keys = [NODE_POLICY, DEVICE_POLICY, WEIGHTS]
    for vendor in vendors:
        keys += vendor.wish_keys
    return {key: annotations[key] for key in keys if key in annotations}
