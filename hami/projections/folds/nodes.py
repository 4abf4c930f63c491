"""Nodes and their devices: registration, liveness, health, cordons, quarantine.

Registration replaces one vendor's devices and nothing else. What is known against a device outlives it: a device that is
unhealthy, suspect or cordoned stays so through registering again, vanishing, coming back, and removal of its node; only
`DeviceHealthChanged` and `DeviceUncordoned` clear it. A registration may make health worse, never better than SUSPECT or
UNHEALTHY; an UNKNOWN device takes what its agent now says.

Quarantine. An event of a node that cannot be decoded quarantines it. Where the event was about the node or its devices, the
next registration that decodes ends it: a registration says all there is to say. Where it was about an allocation, no
registration can tell what was given out: the node stays quarantined until a `Corrected` event for it names
`what="quarantine"`, written by an operator or by the reconciler once it has compared the node with the API.
"""

from typing import Final, assert_never

from msgspec.structs import replace

from hami.domain.cluster import Foreign, Liveness, NodeState, Source
from hami.domain.device import Device, DeviceState, Health
from hami.events.catalog.device import (
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    HealthWatchPaused,
    HealthWatchResumed,
)
from hami.events.catalog.node import NodeBack, NodeLost, NodeRegistered, NodeRemoved
from hami.events.catalog.union import NodeEvent
from hami.events.log import Undecodable
from hami.projections.folds.state import NOTHING_HELD, ClusterState, Mark

QUARANTINE: Final = "quarantine"
"""`Corrected.what` that ends a node's quarantine."""

_CLEAN: Final = Mark()
_SEVERITY: Final = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.SUSPECT: 2, Health.UNHEALTHY: 3}

DeviceMark = DeviceHealthChanged | DeviceCordoned | DeviceUncordoned


def apply_node(state: ClusterState, event: NodeEvent, name: str, epoch: int) -> None:
    if not name:
        state.report("node_missing", f"{event.TYPE} names no node")
        return
    match event:
        case NodeRegistered():
            _registered(state, event, name, epoch)
        case NodeLost():
            _change(state, name, liveness=Liveness.LOST)
        case NodeBack():
            _change(state, name, liveness=Liveness.LIVE)
        case NodeRemoved():
            _removed(state, event, name)
        case _:
            assert_never(event)


def apply_mark(state: ClusterState, event: DeviceMark, name: str) -> None:
    """Health or cordon of one device, present or not."""
    match event:
        case DeviceHealthChanged():
            reason = "" if event.now is Health.HEALTHY else event.reason
            _mark(state, name, event.device, health=event.now, reason=reason)
        case DeviceCordoned():
            _mark(state, name, event.device, cordoned=True)
        case DeviceUncordoned():
            _mark(state, name, event.device, cordoned=False)
        case _:
            assert_never(event)


def apply_watch(state: ClusterState, event: HealthWatchPaused | HealthWatchResumed, name: str) -> None:
    _change(state, name, health_paused_by=event.holder if isinstance(event, HealthWatchPaused) else "")


def quarantine(state: ClusterState, event: Undecodable, name: str) -> None:
    state.undecodable[event.type] = state.undecodable.get(event.type, 0) + 1
    why = f"{event.type} at {state.position.entry} cannot be read: {event.error}"
    state.report("undecodable", f"{name or 'no node'}: {why}")
    if not name:
        return
    if event.type.startswith("hami.allocation."):
        state.stuck.setdefault(name, why)
    node = state.nodes.get(name) or NodeState(name=name)
    if not node.quarantine:
        state.nodes[name] = replace(node, quarantine=why)
        state.touched[name] = None


def end_quarantine(state: ClusterState, name: str) -> None:
    state.stuck.pop(name, None)
    _change(state, name, quarantine="")


def _registered(state: ClusterState, event: NodeRegistered, name: str, epoch: int) -> None:
    old = state.nodes.get(name) or NodeState(name=name)
    if event.node_uid and old.uid and event.node_uid != old.uid:
        _set_aside(state, name, old.devices)
        old = replace(old, devices=(), health_paused_by="", own=(), foreign=())
    if event.source is Source.DOOR and event.vendor in old.own:
        state.report("door_after_agent", f"{event.vendor} of {name} is registered by its agent, not through the door")
        return
    before = [each for each in old.devices if each.device.vendor == event.vendor]
    _set_aside(state, name, before)
    # Mostly nothing is known of a card but that it is well: this is what a scheduler's start waits for.
    clean = name not in state.marks and name not in state.held
    fresh = [
        DeviceState(device=each) if clean and each.health is Health.HEALTHY else _arrived(state, name, each)
        for each in event.devices
    ]
    state.nodes[name] = replace(
        _by_its_source(old, event, epoch),
        uid=event.node_uid or old.uid,
        boot_id=event.boot_id or old.boot_id,
        devices=_in_place(old.devices, event.vendor, fresh),
        quarantine=state.stuck.get(name, ""),
    )
    state.touched[name] = None


def _by_its_source(old: NodeState, event: NodeRegistered, epoch: int) -> NodeState:
    """An agent speaks for its node. The door speaks for one vendor: of a node with an agent it cannot say that it is there."""
    others = tuple(each for each in old.foreign if each.vendor != event.vendor)
    if event.source is Source.DOOR:
        said = (Foreign(event.vendor, event.unread),) if event.devices or event.unread else ()
        return replace(old, liveness=old.liveness if old.own else Liveness.LIVE, foreign=(*others, *said))
    return replace(
        old,
        epoch=epoch,
        liveness=Liveness.LIVE,
        delivery=event.delivery,
        visible=event.visible,
        own=old.own if event.vendor in old.own else (*old.own, event.vendor),
        foreign=others,
    )


def _in_place(devices: tuple[DeviceState, ...], vendor: str, fresh: list[DeviceState]) -> tuple[DeviceState, ...]:
    """The vendor's devices stand where they stood before; a new vendor comes last."""
    first = next((i for i, each in enumerate(devices) if each.device.vendor == vendor), len(devices))
    rest = [each for each in devices[first:] if each.device.vendor != vendor]
    return (*devices[:first], *fresh, *rest)


def _removed(state: ClusterState, event: NodeRemoved, name: str) -> None:
    """What live allocations hold there stays held until each of them ends."""
    node = state.nodes.get(name)
    if node is None or (event.node_uid and node.uid and event.node_uid != node.uid):
        return
    _set_aside(state, name, node.devices)
    del state.nodes[name]
    state.touched[name] = None


def _set_aside(state: ClusterState, name: str, devices: tuple[DeviceState, ...] | list[DeviceState]) -> None:
    for each in devices:
        _keep(state, name, each.device.uuid, Mark(each.health, each.health_reason, each.cordoned))


def _keep(state: ClusterState, name: str, uuid: str, mark: Mark) -> None:
    """UNKNOWN says nothing against a device: whoever registers it next knows better."""
    marks = state.marks.setdefault(name, {})
    if mark.cordoned or _SEVERITY[mark.health] >= _SEVERITY[Health.SUSPECT]:
        marks[uuid] = mark
    else:
        marks.pop(uuid, None)
    if not marks:
        del state.marks[name]


def _arrived(state: ClusterState, name: str, device: Device) -> DeviceState:
    mark = state.marks.get(name, {}).get(device.uuid, _CLEAN)
    health, reason = mark.health, mark.reason
    if _SEVERITY[device.health] > _SEVERITY[health] or health is Health.UNKNOWN:
        health, reason = device.health, "" if device.health is Health.HEALTHY else "as registered"
    if mark is not _CLEAN:
        _keep(state, name, device.uuid, _CLEAN)
    held = state.held.get(name, {}).get(device.uuid, NOTHING_HELD)
    return DeviceState(
        device=device,
        health=health,
        health_reason=reason,
        cordoned=mark.cordoned,
        used=held.used,
        mig_in_use=held.mig,
        notes=held.notes,
    )


def _mark(
    state: ClusterState,
    name: str,
    uuid: str,
    *,
    health: Health | None = None,
    reason: str = "",
    cordoned: bool | None = None,
) -> None:
    node = state.nodes.get(name)
    at = -1 if node is None else next((i for i, each in enumerate(node.devices) if each.device.uuid == uuid), -1)
    if node is None or at < 0:
        known = state.marks.get(name, {}).get(uuid, _CLEAN)
        if health is not None:
            known = replace(known, health=health, reason=reason)
        if cordoned is not None:
            known = replace(known, cordoned=cordoned)
        _keep(state, name, uuid, known)
        return
    device = node.devices[at]
    if health is not None:
        device = replace(device, health=health, health_reason=reason)
    if cordoned is not None:
        device = replace(device, cordoned=cordoned)
    state.nodes[name] = replace(node, devices=(*node.devices[:at], device, *node.devices[at + 1 :]))
    state.touched[name] = None


def _change(state: ClusterState, name: str, **changes: object) -> None:
    """A node that never registered has nothing to change."""
    node = state.nodes.get(name)
    if node is not None:
        state.nodes[name] = replace(node, **changes)
        state.touched[name] = None
