"""What happened, in words: one sentence for each event, for timelines, alerts and terminals. Pure.

The sentences name what the event holds; times, producer and place in the log stand beside them (see audit.py).
"""

from collections.abc import Iterable
from typing import assert_never

from hami.domain.allocation import ContainerShares, Reservation
from hami.domain.cluster import Source
from hami.domain.device import Device, MigSlice
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationPrepared,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.events.catalog.device import (
    DeviceClearRequested,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    FaultKind,
    FaultObserved,
    HealthWatchPaused,
    HealthWatchResumed,
    MigApplyFailed,
    MigInstanceCreated,
    MigInstanceDestroyed,
)
from hami.events.catalog.governance import (
    LockReclaimed,
    LockRefused,
    LockWaitTimedOut,
    PlacementRefused,
    PlacementRequested,
    PolicyChanged,
    QuotaChanged,
)
from hami.events.catalog.handshake import HandshakeExpired, HandshakeReported, HandshakeRequested
from hami.events.catalog.journal import (
    Corrected,
    GapAccepted,
    IncarnationStarted,
    InputRejected,
    LogSealed,
    LogTruncated,
)
from hami.events.catalog.node import NodeBack, NodeLost, NodeRegistered, NodeRemoved
from hami.events.catalog.union import (
    AnyAllocationEvent,
    DeviceEvent,
    Event,
    GovernanceEvent,
    HandshakeEvent,
    JournalEvent,
    NodeEvent,
)
from hami.events.log import Undecodable, Unknown


def words_of(event: Event | Unknown | Undecodable) -> str:
    if isinstance(event, Unknown):
        return f"unknown event {event.type} (schema {event.schema})"
    if isinstance(event, Undecodable):
        return f"unreadable event {event.type or '(no envelope)'}: {event.error}"
    if isinstance(event, AnyAllocationEvent):
        return _allocation(event)
    if isinstance(event, DeviceEvent):
        return _device(event)
    if isinstance(event, NodeEvent):
        return _node(event)
    if isinstance(event, GovernanceEvent):
        return _governance(event)
    if isinstance(event, HandshakeEvent):
        return _handshake(event)
    if isinstance(event, JournalEvent):
        return _journal(event)
    assert_never(event)


def shares_in_words(containers: Iterable[ContainerShares]) -> str:
    """`main: 4096 MiB + 30 % of GPU-a; side: ...`, containers without devices left out."""
    return "; ".join(
        f"{container.name}: "
        + ", ".join(f"{share.memory} MiB + {share.cores} % of {share.uuid}{_slice(share.mig)}" for share in container.shares)
        for container in containers
        if container.shares
    )


def _slice(mig: MigSlice | None) -> str:
    return "" if mig is None else f" (MIG {mig.profile} at {mig.placement.start}{' ' + mig.uuid if mig.uuid else ''})"


def _with(reason: str) -> str:
    return f": {reason}" if reason else ""


def _allocation(event: AnyAllocationEvent) -> str:
    match event:
        case AllocationReserved(reservation=reservation):
            return _reserved(reservation)
        case AllocationBound():
            return f"bound {event.reservation}" + (f" (adopted: {event.adopted})" if event.adopted else "")
        case AllocationPrepared():
            return f"prepared {event.reservation}, container {event.container}" + _with(event.difference)
        case AllocationShrunk():
            return f"shrunk {event.reservation}: init containers are done"
        case AllocationReleased():
            return f"released {event.reservation}: {event.reason}"
        case AllocationLapsed():
            return f"lapsed {event.reservation}: {event.reason}"
        case AllocationFailed():
            return f"failed {event.reservation}: {event.reason}"
        case _:
            assert_never(event)


def _reserved(reservation: Reservation) -> str:
    owner = reservation.owner
    held = shares_in_words(reservation.containers)
    return f"reserved {reservation.id} for {owner.namespace}/{owner.name} on {reservation.node}{_with(held)}"


def _device(event: DeviceEvent) -> str:  # noqa: C901 - one arm a type
    match event:
        case FaultObserved():
            code = f" {event.code}" if event.kind is FaultKind.XID or event.code else ""
            return f"{event.device}: saw {event.kind}{code}{_with(event.detail)}"
        case DeviceHealthChanged():
            evidence = f" ({event.evidence})" if event.evidence else ""
            return f"{event.device}: {event.was} -> {event.now}{_with(event.reason)}{evidence}"
        case DeviceCordoned():
            return f"{event.device}: cordoned{_with(event.reason)}"
        case DeviceUncordoned():
            return f"{event.device}: uncordoned{_with(event.reason)}"
        case DeviceClearRequested():
            return f"{event.device}: declared good{_with(event.reason)}"
        case HealthWatchPaused():
            return f"health watch paused by {event.holder}"
        case HealthWatchResumed():
            return f"health watch resumed by {event.holder} after {event.blind_ms} ms blind"
        case MigInstanceCreated():
            return f"{event.device}: created{_slice(event.instance)} for {event.reservation or 'nobody'}"
        case MigInstanceDestroyed():
            return f"{event.device}: destroyed{_slice(event.instance)}{_with(event.why)}"
        case MigApplyFailed():
            return f"{event.device}: could not create{_slice(event.instance)}: {event.error}"
        case _:
            assert_never(event)


def _node(event: NodeEvent) -> str:
    match event:
        case NodeRegistered():
            how = " by annotation" if event.source is Source.DOOR else ""
            return f"registered {len(event.devices)} {event.vendor} devices{how}{_with(_uuids(event.devices))}"
        case NodeLost():
            return f"lost: {event.reason}"
        case NodeBack():
            return "back"
        case NodeRemoved():
            return "removed: its Node object is gone"
        case _:
            assert_never(event)


def _uuids(devices: Iterable[Device]) -> str:
    return ", ".join(each.uuid for each in devices)


def _governance(event: GovernanceEvent) -> str:
    match event:
        case PlacementRequested():
            return f"{event.namespace}/{event.name} asks for {event.request}"
        case PlacementRefused():
            why = ", ".join(f"{word} on {count}" for word, count in sorted(event.counts.items()))
            return f"no place for {event.namespace}/{event.name} ({event.request}) among {event.nodes_seen} nodes{_with(why)}"
        case LockReclaimed():
            return f"lock {event.lock} taken back from {event.owner}: {event.why}"
        case LockWaitTimedOut():
            return f"lock {event.lock}: {event.waiter} waited {event.waited_ms} ms for {event.holder or 'nobody'}"
        case LockRefused():
            return f"lock {event.lock}: refused {event.by}: {event.why}"
        case QuotaChanged():
            limits = ", ".join(f"{each.resource}={each.limit}" for each in event.quota.limits)
            return f"quota of {event.namespace}: {limits or 'none'}"
        case PolicyChanged():
            return f"policy {event.version} in force"
        case _:
            assert_never(event)


def _handshake(event: HandshakeEvent) -> str:
    match event:
        case HandshakeRequested():
            return f"asked to report: {event.why}"
        case HandshakeReported() if event.vendor and not event.nonce:
            return f"the {event.vendor} device plugin reports again"
        case HandshakeReported():
            return f"reported (epoch {event.epoch}, devices {event.digest[:12] or 'unknown'})"
        case HandshakeExpired():
            return f"the {event.vendor} device plugin no longer reports" if event.vendor else "did not report in time"
        case _:
            assert_never(event)


def _journal(event: JournalEvent) -> str:
    match event:
        case LogTruncated():
            return f"log truncated before {event.before}: {event.why}"
        case GapAccepted():
            lost = f"{event.first_seq}..{event.last_seq}"
            return f"events {lost} of {event.producer} (epoch {event.epoch}) are lost{_with(event.why)}"
        case LogSealed():
            return f"archive segment {event.segment} sealed: g {event.first_g}..{event.last_g}"
        case IncarnationStarted():
            return f"store incarnation {event.incarnation} began"
        case Corrected():
            return f"corrected {event.what}: log said {event.fold_said}, API said {event.api_said}"
        case InputRejected():
            return f"rejected input from {event.source}: {event.field}={event.value}: {event.why}"
        case _:
            assert_never(event)
