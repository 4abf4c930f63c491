"""What a pod asks for, vendor words and units already resolved at the door."""

from enum import StrEnum

import msgspec

from hami.domain.units import CorePercent, MiB


class ContainerKind(StrEnum):
    """When a container runs: INIT one after another before the apps, SIDECAR (restartable init) from then on, APP."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class DeviceRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one container asks of one vendor.

    `memory` in MiB per card, 0 = by percentage. `memory_percent` of the card's own total, None = unset.
    `cores` in percent per card, 0 = no claim. Where `form` says so, `memory` counts something else (slices, a unit that the
    cards decide) and a negative percentage marks it.
    """

    vendor: str
    count: int
    memory: MiB = MiB(0)
    memory_percent: int | None = None
    cores: CorePercent = CorePercent(0)
    form: str = ""
    """How it was asked, where a vendor can be asked in several ways: the name of the resource that decided."""


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container of the pod, in spec order (init containers first), with what it asks; empty = no device."""

    name: str
    kind: ContainerKind
    requests: tuple[DeviceRequest, ...] = ()


class PodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as placement sees it."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerRequest, ...]
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int = 0

    @property
    def asks_for_devices(self) -> bool:
        return any(container.requests for container in self.containers)
