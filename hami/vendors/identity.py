"""The reserved keys by which a container learns its devices: environment of the container -> annotation of its pod.

The webhook writes the environment with references, the Binding carries the annotations, the validating webhook freezes them.
Keys name the container, not its position: another webhook may add containers between the two. All of them are defined here.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.cluster import Visible
from hami.domain.pod import Container

LABEL: Final = "hami.io/managed"
LABEL_VALUE: Final = "true"
MIG_RESOURCE: Final = "/mig-"

IGNORE_LABEL: Final = "hami.io/webhook"
IGNORE_VALUE: Final = "ignore"
"""HAMi's opt-out, on a pod or a namespace: the webhook is not asked."""

RESERVATION: Final = "hami.io/reservation"
NODE: Final = "hami.io/vgpu-node"
TIME: Final = "hami.io/vgpu-time"
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
CONTAINER_PREFIX: Final = "container.hami.io/"

VISIBLE_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICE: Final = "void"
NO_DEVICES: Final = frozenset({"", NO_DEVICE, "none"})
"""Values of VISIBLE_ENV that show no device."""

MEMORY_ENV: Final = "CUDA_DEVICE_MEMORY_LIMIT"
CORES_ENV: Final = "CUDA_DEVICE_SM_LIMIT"
RESERVATION_ENV: Final = "HAMI_RESERVATION"

LIST_IN_MOUNTS: Final = "/var/run/nvidia-container-devices"

MOST_DEVICES: Final = 128
"""Devices of one container that get a limit of their own; no node has as many."""

_SLUG: Final = 40


def slug(container: str) -> str:
    """A container's name as part of a key (63 bytes at most, suffix included): itself, or shortened with a digest."""
    if len(container) <= _SLUG:
        return container
    return f"{container[: _SLUG - 9]}-{hashlib.sha256(container.encode()).hexdigest()[:8]}"


def visible_key(container: str) -> str:
    return f"{CONTAINER_PREFIX}{slug(container)}.visible-devices"


def memory_key(container: str, number: int) -> str:
    return f"{CONTAINER_PREFIX}{slug(container)}.memory-limit-{number}"


def cores_key(container: str) -> str:
    return f"{CONTAINER_PREFIX}{slug(container)}.core-limit"


def references(container: str, devices: int) -> dict[str, str]:
    """Environment name -> annotation key, for a container that asks for this many devices."""
    found = {VISIBLE_ENV: visible_key(container)}
    for number in range(min(devices, MOST_DEVICES)):
        found[f"{MEMORY_ENV}_{number}"] = memory_key(container, number)
    found[CORES_ENV] = cores_key(container)
    found[RESERVATION_ENV] = RESERVATION
    return found


def is_identity_env(name: str) -> bool:
    """Environment that decides which devices a container sees and how much of them: not for users to write."""
    return name in {VISIBLE_ENV, RESERVATION_ENV, MEMORY_ENV, CORES_ENV} or name.startswith((f"{MEMORY_ENV}_", f"{CORES_ENV}_"))


def takes_instances(container: Container) -> bool:
    """Whether a container asks for MIG instances by their own resource (`nvidia.com/mig-1g.10gb`): the kubelet picks those, and
    the plugin names them to the container.
    """
    resources = container.resources
    asked = {**((resources and resources.requests) or {}), **((resources and resources.limits) or {})}
    return any(MIG_RESOURCE in name for name in asked)


def field_path(key: str) -> str:
    return f"metadata.annotations['{key}']"


def reserved_keys(vendor_keys: Iterable[str]) -> frozenset[str]:
    """Exact keys that only the control plane writes; `container.hami.io/` as a whole comes on top.

    The progress keys (bind-phase, bind-time, to-allocate) are not among them: vendor plugins write those, nobody trusts them.
    """
    return frozenset({RESERVATION, NODE, TIME, *vendor_keys} - {""})


def is_reserved(key: str, exact: frozenset[str]) -> bool:
    return key in exact or key.startswith(CONTAINER_PREFIX)


def delivered(
    containers: Sequence[ContainerShares], reservation_id: str, vendor: str, visible: Visible = Visible.UUID
) -> dict[str, str]:
    """The annotations that the references point at. A MIG instance is named once it exists, and carries no limits.

    They are needed in ordered delivery too: the pod's environment beats what the plugin answers.
    """
    found = {RESERVATION: reservation_id}
    for container in containers:
        shares = [share for share in container.shares if share.vendor == vendor]
        if not shares:
            continue
        found[visible_key(container.name)] = _list(shares, visible)
        if any(share.mig is not None for share in shares):
            continue
        for number, share in enumerate(shares[:MOST_DEVICES]):
            found[memory_key(container.name, number)] = f"{share.memory}m"
        found[cores_key(container.name)] = str(shares[0].cores)
    return found


def _list(shares: Sequence[DeviceShare], visible: Visible) -> str:
    match visible:
        case Visible.MOUNTS:
            return LIST_IN_MOUNTS
        case Visible.NOTHING:
            return NO_DEVICE
        case Visible.INDEX:
            return ",".join(dict.fromkeys(_visible(share) if _is_instance(share) else str(share.index) for share in shares))
        case Visible.UUID:
            return ",".join(dict.fromkeys(_visible(share) for share in shares))


def _visible(share: DeviceShare) -> str:
    """A planned MIG instance has no name yet: no device until it has one (never the whole card)."""
    return share.uuid if share.mig is None else share.mig.uuid or NO_DEVICE


def _is_instance(share: DeviceShare) -> bool:
    """Made for this share, or cut by an operator. Neither has an index that a runtime would take for it."""
    return share.mig is not None or share.uuid.startswith("MIG-")
