"""Devices: what was seen of them, and what was decided about them."""

from enum import StrEnum
from typing import ClassVar

import msgspec

from hami.domain.device import Health, MigSlice


class FaultKind(StrEnum):
    """What kind of observation a fault is (source: the NVML call or event behind it)."""

    XID = "xid"
    ECC = "ecc"
    GPU_LOST = "gpu_lost"
    UNMONITORED = "unmonitored"
    ROW_REMAP = "row_remap"
    RECOVERY_ACTION = "recovery_action"
    PROBE = "probe"


class FaultObserved(msgspec.Struct, frozen=True, kw_only=True):
    """A raw observation: `code` is the XID, the NVML error or a counter's increase, by kind. Decides nothing."""

    TYPE: ClassVar[str] = "hami.device.fault_observed"
    SCHEMA: ClassVar[int] = 1

    device: str
    kind: FaultKind
    code: int = 0
    detail: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class DeviceHealthChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A decided change, with the evidence it rests on and who decided (`policy`, or an operator by name)."""

    TYPE: ClassVar[str] = "hami.device.health_changed"
    SCHEMA: ClassVar[int] = 1

    device: str
    was: Health
    now: Health
    reason: str
    evidence: str = ""
    policy_version: str = ""
    actor: str = "policy"


class DeviceCordoned(msgspec.Struct, frozen=True, kw_only=True):
    """No new pod on this device. `actor` is an operator, or `annotation` for HAMi's `hami.io/device-cordon`."""

    TYPE: ClassVar[str] = "hami.device.cordoned"
    SCHEMA: ClassVar[int] = 1

    device: str
    actor: str
    reason: str = ""


class DeviceUncordoned(msgspec.Struct, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "hami.device.uncordoned"
    SCHEMA: ClassVar[int] = 1

    device: str
    actor: str
    reason: str = ""


class DeviceClearRequested(msgspec.Struct, frozen=True, kw_only=True):
    """An operator declares a device good. Its agent forgets what it holds against it and answers `DeviceHealthChanged`."""

    TYPE: ClassVar[str] = "hami.device.clear_requested"
    SCHEMA: ClassVar[int] = 1

    device: str
    actor: str
    reason: str = ""


class HealthWatchPaused(msgspec.Struct, frozen=True, kw_only=True):
    """Faults cannot be seen from now on (holder `mig-apply`); every device is probed on resume."""

    TYPE: ClassVar[str] = "hami.health_watch.paused"
    SCHEMA: ClassVar[int] = 1

    holder: str


class HealthWatchResumed(msgspec.Struct, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "hami.health_watch.resumed"
    SCHEMA: ClassVar[int] = 1

    holder: str
    blind_ms: int = 0


class MigInstanceCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance exists at exactly the profile and placement that a reservation asked for."""

    TYPE: ClassVar[str] = "hami.mig.instance_created"
    SCHEMA: ClassVar[int] = 1

    device: str
    instance: MigSlice
    reservation: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class MigInstanceDestroyed(msgspec.Struct, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "hami.mig.instance_destroyed"
    SCHEMA: ClassVar[int] = 1

    device: str
    instance: MigSlice
    why: str = ""


class MigApplyFailed(msgspec.Struct, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "hami.mig.apply_failed"
    SCHEMA: ClassVar[int] = 1

    device: str
    instance: MigSlice
    error: str
    reservation: str = ""
