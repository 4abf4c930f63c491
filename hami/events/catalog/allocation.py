"""Allocations: one pod's devices from decision to release (edges: hami.domain.allocation.TRANSITIONS)."""

from typing import ClassVar

import msgspec

from hami.domain.allocation import DeviceShare, Reservation


class AllocationReserved(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A decision took these devices. Lapses at its deadline unless bound."""

    TYPE: ClassVar[str] = "hami.allocation.reserved"
    SCHEMA: ClassVar[int] = 1

    reservation: Reservation


class AllocationEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What every later event of an allocation names. `namespace` keys the quota that the reservation counts against."""

    reservation: str
    owner_uid: str
    namespace: str = ""


class AllocationBound(AllocationEvent, frozen=True, gc=False, kw_only=True):
    """The pod's Binding to the node is written, or an existing one was adopted (`adopted`: why)."""

    TYPE: ClassVar[str] = "hami.allocation.bound"
    SCHEMA: ClassVar[int] = 1

    adopted: str = ""


class AllocationPrepared(AllocationEvent, frozen=True, gc=False, kw_only=True):
    """The kubelet prepared one container; `served` is what the node saw it get, empty when it equals the reservation."""

    TYPE: ClassVar[str] = "hami.allocation.prepared"
    SCHEMA: ClassVar[int] = 1

    container: str
    device_ids: tuple[str, ...] = ()
    served: tuple[DeviceShare, ...] = ()
    difference: str = ""
    """What differs between reserved and served, in words; empty = nothing."""


class AllocationShrunk(AllocationEvent, frozen=True, gc=False, kw_only=True):
    """All init containers have finished: only the steady state still counts."""

    TYPE: ClassVar[str] = "hami.allocation.shrunk"
    SCHEMA: ClassVar[int] = 1


class AllocationReleased(AllocationEvent, frozen=True, gc=False, kw_only=True):
    """Terminal: the pod is gone or finished (`reason`: pod_deleted, pod_succeeded, pod_failed, pod_absent)."""

    TYPE: ClassVar[str] = "hami.allocation.released"
    SCHEMA: ClassVar[int] = 1

    reason: str


class AllocationLapsed(AllocationEvent, frozen=True, gc=False, kw_only=True):
    """Terminal: never bound (`reason`: deadline, replaced)."""

    TYPE: ClassVar[str] = "hami.allocation.lapsed"
    SCHEMA: ClassVar[int] = 1

    reason: str


class AllocationFailed(AllocationEvent, frozen=True, gc=False, kw_only=True):
    """Terminal: binding or delivery failed (`reason` in words)."""

    TYPE: ClassVar[str] = "hami.allocation.failed"
    SCHEMA: ClassVar[int] = 1

    reason: str
