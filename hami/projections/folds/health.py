"""Each device's health history: what was decided about it, and what was seen of it, follow-on faults under their root.

Some faults only report what another one did (after XID 31 the driver ends the process and says XID 45). Which codes follow is
policy, so the caller names them. Root and follower come from one agent, so its own clock tells how far apart they were: the
store's would not, when an agent sends late what it kept while the store was away.
"""

from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from hami.domain.device import Health
from hami.domain.units import EpochMs
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
from hami.events.catalog.union import DeviceEvent
from hami.events.envelope import START, Position
from hami.events.log import Record

KEPT_CHANGES: Final = 100
KEPT_GROUPS: Final = 50
FOLLOWS_WITHIN_MS: Final = 10_000
FOLLOW_ON_XIDS: Final = frozenset({45})


class Change(msgspec.Struct, frozen=True):
    """A decided change of health."""

    position: Position
    was: Health
    now: Health
    reason: str
    evidence: str
    actor: str


class FaultGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of root fault on a device: how often, first and last, and what followed it (code -> how often)."""

    kind: FaultKind
    code: int
    count: int = 1
    first: Position = START
    last: Position = START
    last_occurred_ms: EpochMs = EpochMs(0)
    follow_on: tuple[tuple[int, int], ...] = ()


class DeviceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The last changes and the last fault groups, oldest first. `now` is what was decided last, UNKNOWN before that."""

    device: str
    node: str
    now: Health = Health.UNKNOWN
    since: Position = START
    cordoned: bool = False
    changes: tuple[Change, ...] = ()
    faults: tuple[FaultGroup, ...] = ()


class HealthState(msgspec.Struct):
    """`devices` is (node, uuid) -> history; the dict is owned and changed in place."""

    follow_on: frozenset[int] = FOLLOW_ON_XIDS
    devices: dict[tuple[str, str], DeviceHistory] = msgspec.field(default_factory=dict)


def apply(state: HealthState, record: Record) -> HealthState:
    """Only device events count; order and gaps are checked by whoever reads the log."""
    event = record.event
    if not isinstance(event, DeviceEvent):
        return state
    match event:
        case FaultObserved():
            _observed(state, record, event)
        case DeviceHealthChanged():
            _changed(state, record, event)
        case DeviceCordoned() | DeviceUncordoned():
            at, old = _history(state, record, event.device)
            state.devices[at] = replace(old, cordoned=isinstance(event, DeviceCordoned))
        case (
            DeviceClearRequested()
            | HealthWatchPaused()
            | HealthWatchResumed()
            | MigInstanceCreated()
            | MigInstanceDestroyed()
            | MigApplyFailed()
        ):
            pass  # they say nothing about how a device is
        case _:
            assert_never(event)
    return state


def _history(state: HealthState, record: Record, device: str) -> tuple[tuple[str, str], DeviceHistory]:
    at = (record.envelope.node, device)
    return at, state.devices.get(at) or DeviceHistory(device=device, node=at[0])


def _changed(state: HealthState, record: Record, event: DeviceHealthChanged) -> None:
    at, old = _history(state, record, event.device)
    change = Change(record.position, event.was, event.now, event.reason, event.evidence, event.actor)
    since = old.since if old.now is event.now else record.position
    state.devices[at] = replace(old, now=event.now, since=since, changes=(*old.changes, change)[-KEPT_CHANGES:])


def _observed(state: HealthState, record: Record, event: FaultObserved) -> None:
    at, old = _history(state, record, event.device)
    occurred = record.envelope.occurred_ms
    if event.kind is FaultKind.XID and event.code in state.follow_on and old.faults:
        root = old.faults[-1]
        if 0 <= occurred - root.last_occurred_ms <= FOLLOWS_WITHIN_MS:
            state.devices[at] = replace(old, faults=(*old.faults[:-1], _followed(root, event.code)))
            return
    same = next((each for each in old.faults if (each.kind, each.code) == (event.kind, event.code)), None)
    if same is None:
        group = FaultGroup(
            kind=event.kind, code=event.code, first=record.position, last=record.position, last_occurred_ms=occurred
        )
    else:
        group = replace(same, count=same.count + 1, last=record.position, last_occurred_ms=occurred)
    others = tuple(each for each in old.faults if each is not same)
    state.devices[at] = replace(old, faults=(*others, group)[-KEPT_GROUPS:])


def _followed(root: FaultGroup, code: int) -> FaultGroup:
    counts = dict(root.follow_on)
    counts[code] = counts.get(code, 0) + 1
    return replace(root, follow_on=tuple(sorted(counts.items())))
