"""The cluster fold: nodes, devices, allocations and quotas at one position of the log.

    apply(state, record) -> state        the same state, changed in place
    snapshot(state) -> ClusterSnapshot   read-only windows, valid until the next apply

Each record's g must follow the last one; a jump raises LogGap. A record already applied is passed over: by its g, or, when an
event was appended again after a failover, by its (producer, epoch, seq). An unknown type is counted and skipped; an entry
whose envelope cannot be read names no producer and no node: it is counted and reported.
"""

from types import MappingProxyType
from typing import Final, assert_never

from hami.domain.cluster import ClusterSnapshot
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
from hami.events.catalog.union import Event
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.folds import allocations, nodes, quotas
from hami.projections.folds.errors import LogGap, LogRewritten
from hami.projections.folds.state import ClusterState

_NEVER: Final = (-1, -1)


def new_cluster() -> ClusterState:
    return ClusterState()


def apply(state: ClusterState, record: Record) -> ClusterState:
    """Raises LogGap on a jump of g, LogRewritten where the last position now holds another entry; nothing changes then."""
    last, found = state.position, record.position
    if found.g != last.g + 1:
        if found.g > last.g:
            raise LogGap(last, found)
        if found.g == last.g and found.entry != last.entry:
            raise LogRewritten(last, found)
        return state
    state.previous, state.position = last, found
    if record.versions:
        state.versions.update(record.versions)
    envelope = record.envelope
    order = (envelope.epoch, envelope.seq)
    if envelope.producer:
        if order <= state.seen.get(envelope.producer, _NEVER):
            return state
        state.seen[envelope.producer] = order
    event = record.event
    if isinstance(event, Unknown):
        state.unknown[event.type] = state.unknown.get(event.type, 0) + 1
    elif isinstance(event, Undecodable):
        nodes.quarantine(state, event, envelope.node)
    else:
        _apply(state, event, envelope.node, envelope.epoch)
    return state


def snapshot(state: ClusterState) -> ClusterSnapshot:
    return ClusterSnapshot(
        g=state.position.g,
        nodes=MappingProxyType(state.nodes),
        allocations=MappingProxyType(state.allocations),
        by_owner=MappingProxyType(state.by_owner),
        quotas=MappingProxyType(state.quotas),
        quota_used=MappingProxyType(state.quota_used),
        versions=MappingProxyType(state.versions),
    )


def _apply(state: ClusterState, event: Event, node: str, epoch: int) -> None:  # noqa: C901 - one arm a subject
    match event:
        case AllocationReserved():
            allocations.reserved(state, event)
        case AllocationBound():
            allocations.bound(state, event)
        case AllocationPrepared():
            allocations.prepared(state, event, node)
        case AllocationReleased():
            allocations.released(state, event)
        case AllocationShrunk():
            allocations.shrunk(state, event)
        case AllocationLapsed():
            allocations.lapsed(state, event)
        case AllocationFailed():
            allocations.failed(state, event)
        case NodeRegistered() | NodeLost() | NodeBack() | NodeRemoved():
            nodes.apply_node(state, event, node, epoch)
        case DeviceHealthChanged() | DeviceCordoned() | DeviceUncordoned():
            nodes.apply_mark(state, event, node)
        case HealthWatchPaused() | HealthWatchResumed():
            nodes.apply_watch(state, event, node)
        case MigInstanceCreated():
            allocations.realised(state, event, node)
        case MigApplyFailed():
            allocations.not_realised(state, event, node)
        case MigInstanceDestroyed():
            nodes.forget_mark(state, event.instance.uuid, node)
        case QuotaChanged():
            quotas.changed(state, event)
        case PolicyChanged():
            state.policy_version = event.version
        case IncarnationStarted():
            state.incarnation = event.incarnation
        case Corrected():
            if event.what == nodes.QUARANTINE:
                nodes.end_quarantine(state, node)
        case (
            FaultObserved()
            | DeviceClearRequested()
            | HandshakeRequested()
            | HandshakeReported()
            | HandshakeExpired()
            | PlacementRequested()
            | PlacementRefused()
            | LockReclaimed()
            | LockWaitTimedOut()
            | LockRefused()
            | LogTruncated()
            | GapAccepted()
            | LogSealed()
            | InputRejected()
        ):
            pass  # they change nothing that a placement rests on; health, audit and alerts read them
        case _:
            assert_never(event)
