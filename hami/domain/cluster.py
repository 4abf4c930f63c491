"""The cluster as decisions see it: nodes with their devices, live allocations, quotas, all at one position of the log."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from hami.domain.allocation import Allocation
from hami.domain.device import DeviceState


class Liveness(StrEnum):
    LIVE = "live"
    LOST = "lost"


class Delivery(StrEnum):
    """How a node hands devices to containers (docs/delivery.md)."""

    IDENTITY = "identity"
    ORDERED = "ordered"


class Visible(StrEnum):
    """What NVIDIA_VISIBLE_DEVICES of a container holds on a node: the container's runtime reads it there."""

    UUID = "uuid"
    INDEX = "index"
    MOUNTS = "mounts"
    """Only that the list is in the mounts (strategy `volume-mounts`)."""
    NOTHING = "nothing"
    """No device by this way: CDI brings them."""


class Source(StrEnum):
    """Who registers a vendor's devices on a node."""

    AGENT = "agent"
    """The node's own hami agent."""
    DOOR = "door"
    """A device plugin that speaks HAMi's annotations, through the scheduler (docs/compatibility.md)."""


class Foreign(msgspec.Struct, frozen=True, gc=False):
    """A vendor that came through the door; `unread` is what of its announcement could not be read."""

    vendor: str
    unread: tuple[str, ...] = ()


class NodeState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One node. `devices` keep registration order within a vendor; their order decides ties, as HAMi's does.

    `quarantine` is not empty when an event of this node could not be read: nothing is placed there until it is resolved.
    `own` are the vendors that the node's agent registered, `foreign` those that came through the door.
    """

    name: str
    uid: str = ""
    boot_id: str = ""
    epoch: int = 0
    liveness: Liveness = Liveness.LIVE
    delivery: Delivery = Delivery.IDENTITY
    visible: Visible = Visible.UUID
    devices: tuple[DeviceState, ...] = ()
    quarantine: str = ""
    health_paused_by: str = ""
    own: tuple[str, ...] = ()
    foreign: tuple[Foreign, ...] = ()

    @property
    def has_agent(self) -> bool:
        """Whether an agent keeps this node's lease and answers for it."""
        return bool(self.own) or not self.foreign

    def is_foreign(self, vendor: str) -> bool:
        return any(each.vendor == vendor for each in self.foreign)


class QuotaLimit(msgspec.Struct, frozen=True, gc=False):
    """One namespace's limit on one resource (HAMi key `limits.<resource>` of a ResourceQuota), in the vendor's unit."""

    resource: str
    limit: int
    quota: str = ""
    """Name of the ResourceQuota that sets it; the smallest limit of several wins."""


class NamespaceQuota(msgspec.Struct, frozen=True, gc=False):
    limits: tuple[QuotaLimit, ...] = ()

    def limit_of(self, resource: str) -> int | None:
        found = [each.limit for each in self.limits if each.resource == resource]
        return min(found) if found else None


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The only input of a decision. Mappings are read-only windows, valid until the next event is applied.

    `versions` are the entities' versions at this position: what an append conditions on (`node/<name>`, `pod/<uid>`,
    `quota/<namespace>`); absent means 0. `quota_used` is namespace -> vendor word -> (memory MiB, core percent).
    """

    g: int = 0
    nodes: Mapping[str, NodeState] = MappingProxyType({})
    allocations: Mapping[str, Allocation] = MappingProxyType({})
    by_owner: Mapping[str, str] = MappingProxyType({})
    quotas: Mapping[str, NamespaceQuota] = MappingProxyType({})
    quota_used: Mapping[str, Mapping[str, tuple[int, int]]] = MappingProxyType({})
    versions: Mapping[str, int] = MappingProxyType({})

    def allocation_of(self, owner_uid: str) -> Allocation | None:
        """The live allocation of a pod (by uid), if it has one."""
        found = self.by_owner.get(owner_uid)
        return None if found is None else self.allocations.get(found)
