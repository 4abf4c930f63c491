"""What decisions rest on, and what was refused: placement refusals, locks, quotas, policies."""

from typing import ClassVar

import msgspec

from hami.domain.cluster import NamespaceQuota
from hami.domain.request import ContainerRequest


class PlacementRequested(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that asks for devices reached the scheduler for the first time: the beginning of its story.

    `request` is what it asks, in words, `containers` the same in full; `wishes` are its annotations that placement reads;
    `created` is the pod's creationTimestamp as the API wrote it.
    """

    TYPE: ClassVar[str] = "hami.placement.requested"
    SCHEMA: ClassVar[int] = 1

    owner_uid: str
    namespace: str
    name: str
    request: str
    created: str = ""
    containers: tuple[ContainerRequest, ...] = ()
    wishes: dict[str, str] = {}


class PlacementRefused(msgspec.Struct, frozen=True, kw_only=True):
    """No node fits a pod. Written once per change of `digest` (request shape and reasons), not per retry.

    `counts` is reason word -> nodes; `request` the shape in words.
    """

    TYPE: ClassVar[str] = "hami.placement.refused"
    SCHEMA: ClassVar[int] = 1

    owner_uid: str
    namespace: str
    name: str
    request: str
    counts: dict[str, int]
    nodes_seen: int
    digest: str = ""


class LockReclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """A lock was taken from an owner that is gone or past its TTL."""

    TYPE: ClassVar[str] = "hami.lock.reclaimed"
    SCHEMA: ClassVar[int] = 1

    lock: str
    owner: str
    why: str


class LockWaitTimedOut(msgspec.Struct, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "hami.lock.wait_timed_out"
    SCHEMA: ClassVar[int] = 1

    lock: str
    waiter: str
    holder: str = ""
    waited_ms: int = 0


class LockRefused(msgspec.Struct, frozen=True, kw_only=True):
    """A release or a guarded write named a lock that its sender does not hold."""

    TYPE: ClassVar[str] = "hami.lock.refused"
    SCHEMA: ClassVar[int] = 1

    lock: str
    by: str
    why: str


class QuotaChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace's limits from now on (all of them; empty = none), so that old decisions replay under their own rules."""

    TYPE: ClassVar[str] = "hami.quota.changed"
    SCHEMA: ClassVar[int] = 1

    namespace: str
    quota: NamespaceQuota


class PolicyChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's settings that decide placements, by version (a digest of `settings`)."""

    TYPE: ClassVar[str] = "hami.policy.changed"
    SCHEMA: ClassVar[int] = 1

    version: str
    settings: dict[str, str]
