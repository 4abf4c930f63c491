"""The closed union of everything hami writes down, the registry by type name, and which entities each event moves.

Adding a type here makes mypy list every fold that must decide about it.
"""

from typing import Final, TypeGuard, get_args

from hami.domain.allocation import PodOwner
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationEvent,
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

NodeEvent = NodeRegistered | NodeLost | NodeBack | NodeRemoved
HandshakeEvent = HandshakeRequested | HandshakeReported | HandshakeExpired
DeviceEvent = (
    FaultObserved
    | DeviceHealthChanged
    | DeviceCordoned
    | DeviceUncordoned
    | DeviceClearRequested
    | HealthWatchPaused
    | HealthWatchResumed
    | MigInstanceCreated
    | MigInstanceDestroyed
    | MigApplyFailed
)
AnyAllocationEvent = (
    AllocationReserved
    | AllocationBound
    | AllocationPrepared
    | AllocationShrunk
    | AllocationReleased
    | AllocationLapsed
    | AllocationFailed
)
GovernanceEvent = (
    PlacementRequested | PlacementRefused | LockReclaimed | LockWaitTimedOut | LockRefused | QuotaChanged | PolicyChanged
)
JournalEvent = LogTruncated | GapAccepted | LogSealed | IncarnationStarted | Corrected | InputRejected

Event = NodeEvent | HandshakeEvent | DeviceEvent | AnyAllocationEvent | GovernanceEvent | JournalEvent

EVENT_TYPES: Final[tuple[type[Event], ...]] = get_args(Event)
BY_TYPE: Final[dict[tuple[str, int], type[Event]]] = {(each.TYPE, each.SCHEMA): each for each in EVENT_TYPES}

AGENT_EVENTS: Final = (
    NodeRegistered,
    HandshakeReported,
    FaultObserved,
    DeviceHealthChanged,
    HealthWatchPaused,
    HealthWatchResumed,
    MigInstanceCreated,
    MigInstanceDestroyed,
    MigApplyFailed,
    AllocationPrepared,
    GapAccepted,
)
"""What a node's agent may put into its inbox; the ingester refuses everything else."""

FEED_EVENTS: Final = (
    AllocationReserved,
    AllocationBound,
    AllocationReleased,
    AllocationLapsed,
    AllocationFailed,
    HandshakeRequested,
    DeviceClearRequested,
)
"""What `append` copies into the node's feed: what the agent must know or answer."""


def may_agent_write(event: Event) -> TypeGuard[Event]:
    return isinstance(event, AGENT_EVENTS)


def entities_of(event: Event, node: str) -> tuple[str, ...]:
    """The entities whose version this event moves, so that a decision made before it conflicts.

    `node/<name>` for whatever changes what fits there, `pod/<uid>` and `quota/<namespace>` for allocations.
    """
    match event:
        case AllocationReserved(reservation=reservation):
            namespace = reservation.owner.namespace
            if isinstance(reservation.owner, PodOwner):
                return (f"node/{reservation.node}", f"pod/{reservation.owner.uid}", f"quota/{namespace}")
            return (f"node/{reservation.node}", f"claim/{reservation.owner.uid}", f"quota/{namespace}")
        case AllocationEvent():
            return (f"node/{node}", f"pod/{event.owner_uid}", f"quota/{event.namespace}")
        case QuotaChanged():
            return (f"quota/{event.namespace}",)
        case PlacementRequested() | PlacementRefused():
            return (f"pod/{event.owner_uid}",)
        case _:
            return (f"node/{node}",) if node else ()
