"""The rules: one committed event in, the notices that follow from it out.

    watch(state, record) -> notices      the same state, changed in place

Whoever reads the log decides whether notices are sent: replay calls `watch` too and throws them away. A record already
looked at gives none: by its g, or, when an event was appended again after a failover, by its (producer, epoch, seq).
"""

from collections.abc import Iterator
from typing import Final, assert_never

from hami.alerts.decide import nodes
from hami.alerts.decide.notice import LONGEST, Alert, Notice, Status
from hami.alerts.decide.state import AlertState
from hami.domain.units import EpochMs
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
from hami.events.catalog.union import (
    AnyAllocationEvent,
    DeviceEvent,
    Event,
    GovernanceEvent,
    HandshakeEvent,
    JournalEvent,
    NodeEvent,
)
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.folds.words import words_of

_NEVER: Final = (-1, -1)


def watch(state: AlertState, record: Record) -> tuple[Notice, ...]:
    """What there is to tell of this record, in order."""
    last, found = state.position, record.position
    if found.g <= last.g:
        return ()
    notices = [_missing(last.g, record)] if 0 < last.g < found.g - 1 else []
    state.previous, state.position = last, found
    envelope, event = record.envelope, record.event
    order = (envelope.epoch, envelope.seq)
    if envelope.producer:
        if order <= state.seen.get(envelope.producer, _NEVER):
            return tuple(notices)
        state.seen[envelope.producer] = order
    if isinstance(event, Undecodable):
        notices.append(_once(Alert.EVENT_UNREADABLE, record))
    elif not isinstance(event, Unknown):
        notices += _told(state, record, event, envelope.node)
    return tuple(notices)


def _told(state: AlertState, record: Record, event: Event, node: str) -> Iterator[Notice]:
    if isinstance(event, NodeEvent):
        return _node(state, record, event, node)
    if isinstance(event, DeviceEvent):
        return _device(state, record, event, node)
    if isinstance(event, AnyAllocationEvent):
        return _allocation(state, record, event)
    if isinstance(event, GovernanceEvent | HandshakeEvent | JournalEvent):
        return _rest(record, event)
    assert_never(event)


def _node(state: AlertState, record: Record, event: NodeEvent, node: str) -> Iterator[Notice]:
    match event:
        case NodeRegistered():
            for uuid in nodes.registered(state, node, event):
                yield _once(Alert.DEVICE_GONE, record, device=uuid, words=f"{uuid} is no longer registered by {node}")
        case NodeLost():
            nodes.lost(state, node, event.reason or "lost")
        case NodeBack():
            nodes.lost(state, node, "")
        case NodeRemoved():
            nodes.removed(state, node, event)
        case _:
            assert_never(event)
    yield from _settle(state, record, node)


def _device(state: AlertState, record: Record, event: DeviceEvent, node: str) -> Iterator[Notice]:
    match event:
        case DeviceHealthChanged():
            nodes.health_changed(state, node, event)
            yield from _settle(state, record, node)
        case DeviceCordoned():
            nodes.cordoned(state, node, event)
            yield from _settle(state, record, node)
        case DeviceUncordoned():
            nodes.uncordoned(state, node, event.device)
            yield from _settle(state, record, node)
        case FaultObserved():
            yield _once(Alert.DEVICE_FAULT, record, device=event.device)
        case MigApplyFailed():
            pod = state.pods.get(event.reservation, "")
            yield _once(Alert.MIG_FAILED, record, device=event.device, pod=pod)
        case (
            DeviceClearRequested() | HealthWatchPaused() | HealthWatchResumed() | MigInstanceCreated() | MigInstanceDestroyed()
        ):
            pass  # the day's work; what comes of it is an event of its own
        case _:
            assert_never(event)


def _allocation(state: AlertState, record: Record, event: AnyAllocationEvent) -> Iterator[Notice]:
    match event:
        case AllocationReserved(reservation=reservation):
            state.pods[reservation.id] = f"{reservation.owner.namespace}/{reservation.owner.name}"
        case AllocationPrepared():
            if event.difference:
                pod = state.pods.get(event.reservation, event.owner_uid)
                yield _once(Alert.SERVED_OTHERWISE, record, pod=pod)
        case AllocationFailed():
            pod = state.pods.pop(event.reservation, event.owner_uid)
            yield _once(Alert.ALLOCATION_FAILED, record, pod=pod)
        case AllocationReleased() | AllocationLapsed():
            state.pods.pop(event.reservation, None)
        case AllocationBound() | AllocationShrunk():
            pass  # nothing is wrong
        case _:
            assert_never(event)


def _rest(record: Record, event: GovernanceEvent | HandshakeEvent | JournalEvent) -> Iterator[Notice]:
    match event:
        case LockWaitTimedOut():
            yield _once(Alert.LOCK_WAITED, record)
        case InputRejected():
            yield _once(Alert.INPUT_REJECTED, record)
        case GapAccepted():
            yield _once(Alert.EVENTS_LOST, record)
        case LogTruncated():
            yield _once(Alert.LOG_TRUNCATED, record)
        case (
            HandshakeRequested()
            | HandshakeReported()
            | HandshakeExpired()
            | PlacementRequested()
            | PlacementRefused()
            | LockReclaimed()
            | LockRefused()
            | QuotaChanged()
            | PolicyChanged()
            | LogSealed()
            | IncarnationStarted()
            | Corrected()
        ):
            pass  # the day's work; a node that stays silent is lost in the end, and that is told
        case _:
            assert_never(event)


def _settle(state: AlertState, record: Record, node: str) -> Iterator[Notice]:
    """Bring `firing` in line with what is wrong now; first what ended, then what began."""
    mark = state.nodes.get(node)
    now = [*(() if mark is None else nodes.conditions_of(node, mark)), *nodes.conditions_of_all(state)]
    wanted = {each.about: each for each in (_begun(record, condition) for condition in now)}
    for about, fired in [*state.firing.items()]:
        if fired.node in {node, ""} and about not in wanted:
            del state.firing[about]
            yield _ended(record, fired)
    for about, notice in wanted.items():
        if about not in state.firing:
            state.firing[about] = notice
            yield notice


def _begun(record: Record, condition: nodes.Condition) -> Notice:
    return Notice(
        alert=condition.alert,
        status=Status.FIRING,
        event=_event_of(record),
        started_ms=record.position.recorded_ms,
        node=condition.node,
        device=condition.device,
        description=condition.words[:LONGEST],
    )


def _ended(record: Record, fired: Notice) -> Notice:
    words = words_of(record.event)
    return Notice(
        alert=fired.alert,
        status=Status.RESOLVED,
        event=_event_of(record),
        started_ms=fired.started_ms,
        ended_ms=record.position.recorded_ms,
        node=fired.node,
        device=fired.device,
        description=words[:LONGEST],
    )


def _once(alert: Alert, record: Record, *, device: str = "", pod: str = "", words: str = "") -> Notice:
    return Notice(
        alert=alert,
        status=Status.ONCE,
        event=_event_of(record),
        started_ms=record.position.recorded_ms,
        node=record.envelope.node,
        device=device,
        pod=pod,
        description=(words or words_of(record.event))[:LONGEST],
    )


def _missing(last_g: int, record: Record) -> Notice:
    return Notice(
        alert=Alert.LOG_TRUNCATED,
        status=Status.ONCE,
        event=_event_of(record),
        started_ms=EpochMs(record.position.recorded_ms),
        description=f"the log goes on with event {record.position.g} after event {last_g}: those between are gone",
    )


def _event_of(record: Record) -> str:
    """An entry without a readable envelope is known by its place."""
    return record.envelope.id or record.position.entry
