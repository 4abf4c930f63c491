"""Marks of nodes and devices, and the conditions that follow from them."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from hami.alerts.decide.notice import Alert
from hami.alerts.decide.state import CLEAN, AlertState, DeviceMark, NodeMark
from hami.domain.device import Health
from hami.events.catalog.device import DeviceCordoned, DeviceHealthChanged
from hami.events.catalog.node import NodeRegistered, NodeRemoved

SEVERAL: Final = 3
"""So many nodes lost at the same time are a matter of their own."""

_WORSE: Final = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.SUSPECT: 2, Health.UNHEALTHY: 3}
_ALERT: Final = {
    Health.UNHEALTHY: Alert.DEVICE_UNHEALTHY,
    Health.SUSPECT: Alert.DEVICE_SUSPECT,
    Health.UNKNOWN: Alert.DEVICE_UNKNOWN,
}


class Condition(NamedTuple):
    """Something that lasts: which alert, about which node and device, in words."""

    alert: Alert
    node: str
    device: str
    words: str


def conditions_of(name: str, mark: NodeMark) -> Iterator[Condition]:
    """Everything that is wrong with one node and its devices now."""
    if mark.gone:
        return
    if mark.lost:
        yield Condition(Alert.NODE_LOST, name, "", f"{name}: {mark.lost}")
    for uuid, device in mark.devices.items():
        if device.absent:
            continue
        why = f": {device.reason}" if device.reason else ""
        if device.health in _ALERT:
            yield Condition(_ALERT[device.health], name, uuid, f"{uuid} on {name} is {device.health}{why}")
        if device.cordoned:
            yield Condition(Alert.DEVICE_CORDONED, name, uuid, f"{uuid} on {name} is cordoned {device.cordoned}")


def conditions_of_all(state: AlertState) -> Iterator[Condition]:
    """What is wrong with the nodes taken together."""
    lost = sorted(name for name, mark in state.nodes.items() if mark.lost and not mark.gone)
    if len(lost) >= SEVERAL:
        yield Condition(Alert.SEVERAL_NODES_LOST, "", "", f"{len(lost)} nodes are lost: {', '.join(lost)}")


def registered(state: AlertState, name: str, event: NodeRegistered) -> tuple[str, ...]:
    """The devices of that vendor that the node no longer has."""
    old = state.nodes.get(name, NodeMark())
    another = bool(event.node_uid and old.uid and event.node_uid != old.uid)
    before = [uuid for of in old.registered.values() for uuid in of] if another else old.registered.get(event.vendor, ())
    here = tuple(device.uuid for device in event.devices)
    gone = tuple(uuid for uuid in before if uuid not in here)
    devices = dict(old.devices)
    for uuid in gone:
        _keep(devices, uuid, replace(devices.get(uuid, CLEAN), absent=True))
    for device in event.devices:
        _keep(devices, device.uuid, _arrived(devices.get(device.uuid, CLEAN), device.health))
    state.nodes[name] = NodeMark(
        uid=event.node_uid or old.uid,
        registered={**({} if another else old.registered), event.vendor: here},
        devices=devices,
    )
    return () if another or old.gone else gone


def _arrived(mark: DeviceMark, health: Health) -> DeviceMark:
    """Registering may make health worse, never better; of an UNKNOWN device the agent knows better now."""
    if _WORSE[health] > _WORSE[mark.health] or mark.health is Health.UNKNOWN:
        why = "" if health is Health.HEALTHY else "as registered"
        mark = replace(mark, health=health, reason=why)
    return replace(mark, absent=False)


def _keep(devices: dict[str, DeviceMark], uuid: str, mark: DeviceMark) -> None:
    """An UNKNOWN device that is not there has nothing against it."""
    if mark.clean or (mark.absent and mark.health is Health.UNKNOWN and not mark.cordoned):
        devices.pop(uuid, None)
    else:
        devices[uuid] = mark


def removed(state: AlertState, name: str, event: NodeRemoved) -> None:
    """What is known against its devices stays for the day they come back; a node without such is forgotten."""
    mark = state.nodes.get(name)
    if mark is None or (event.node_uid and mark.uid and event.node_uid != mark.uid):
        return
    devices: dict[str, DeviceMark] = {}
    for uuid, device in mark.devices.items():
        _keep(devices, uuid, replace(device, absent=True))
    if devices:
        state.nodes[name] = NodeMark(uid=mark.uid, gone=True, devices=devices)
    else:
        del state.nodes[name]


def lost(state: AlertState, name: str, why: str) -> None:
    """Empty: it is back."""
    old = state.nodes.get(name, NodeMark())
    state.nodes[name] = replace(old, lost=why, gone=False)


def health_changed(state: AlertState, name: str, event: DeviceHealthChanged) -> None:
    reason = "" if event.now is Health.HEALTHY else event.reason
    _mark(state, name, event.device, health=event.now, reason=reason)


def cordoned(state: AlertState, name: str, event: DeviceCordoned) -> None:
    _mark(state, name, event.device, cordoned=f"by {event.actor}" + (f": {event.reason}" if event.reason else ""))


def uncordoned(state: AlertState, name: str, uuid: str) -> None:
    _mark(state, name, uuid, cordoned="")


def _mark(state: AlertState, name: str, uuid: str, **changes: object) -> None:
    old = state.nodes.get(name, NodeMark())
    devices = dict(old.devices)
    known = devices.get(uuid, CLEAN)
    _keep(devices, uuid, replace(known, absent=known.absent and "health" not in changes, **changes))
    state.nodes[name] = replace(old, devices=devices)
