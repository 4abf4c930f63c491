"""Devices as an agent registers them and as decisions see them."""

from enum import StrEnum

import msgspec

from hami.domain.units import CorePercent, MiB, Slots


class Health(StrEnum):
    """What is known of a device. Only HEALTHY is given to new pods; UNKNOWN is its own value, never a guess."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class MigPlacement(msgspec.Struct, frozen=True, gc=False):
    """Half-open interval [start, start+size) of a card's memory slices."""

    start: int
    size: int


class MigProfile(msgspec.Struct, frozen=True, gc=False):
    """A MIG profile of a card and where it may lie (HAMi key `migProfiles`)."""

    name: str
    memory: MiB
    cores: CorePercent
    slices: int
    placements: tuple[MigPlacement, ...]


class Device(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One card as registered. `model` is the product name (HAMi key `type`), `vendor` the vendor word (`NVIDIA`).

    `slots`, `memory` and `cores` are what may be given out in all, scaling applied. `numa` is -1 when unknown.
    `mode` is `hami-core`, `mig`, `mps` or empty.
    """

    uuid: str
    vendor: str
    model: str
    memory: MiB
    cores: CorePercent
    slots: Slots
    index: int = 0
    numa: int = -1
    mode: str = ""
    health: Health = Health.HEALTHY
    mig_profiles: tuple[MigProfile, ...] = ()
    pair_scores: dict[str, int] = msgspec.field(default_factory=dict)
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    """Further facts worth keeping (pci bus id, minor, driver). A decision reads only those that a vendor's page names."""


class MigSlice(msgspec.Struct, frozen=True, gc=False):
    """A MIG instance: planned when `uuid` is empty, realised when it is set."""

    profile: str
    placement: MigPlacement
    uuid: str = ""


class DeviceUsage(msgspec.Struct, frozen=True, gc=False):
    """What is given out of one device, or what one allocation holds of it."""

    slots: int = 0
    memory: int = 0
    cores: int = 0

    def plus(self, other: "DeviceUsage") -> "DeviceUsage":
        return DeviceUsage(self.slots + other.slots, self.memory + other.memory, self.cores + other.cores)

    def minus(self, other: "DeviceUsage") -> "DeviceUsage":
        return DeviceUsage(self.slots - other.slots, self.memory - other.memory, self.cores - other.cores)


class DeviceState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A device as decisions see it: what it is, how it is, what is given out of it."""

    device: Device
    health: Health = Health.HEALTHY
    health_reason: str = ""
    cordoned: bool = False
    used: DeviceUsage = DeviceUsage()
    mig_in_use: tuple[MigSlice, ...] = ()
    notes: tuple[str, ...] = ()
    """One of each pod here whose shares carry one (`DeviceShare.note`), in the order in which they came."""

    @property
    def schedulable(self) -> bool:
        return self.health is Health.HEALTHY and not self.cordoned
