"""A snapshot as rows for people and as one JSON document for programs. Values in, values out."""

from collections.abc import Iterator
from typing import Any

from hami.cli.when import shown
from hami.domain.allocation import Allocation, PodOwner
from hami.domain.cluster import ClusterSnapshot, Liveness, NodeState
from hami.domain.device import DeviceState, Health
from hami.events.envelope import Position

Row = tuple[object, ...]


def node_rows(snapshot: ClusterSnapshot, only: str = "") -> list[Row]:
    return [
        (
            node.name,
            node.liveness,
            node.delivery,
            f"{sum(d.schedulable for d in node.devices)}/{len(node.devices)}",
            _note(node),
        )
        for node in _nodes(snapshot, only)
    ]


def device_rows(snapshot: ClusterSnapshot, only: str = "") -> list[Row]:
    rows: list[Row] = []
    for node in _nodes(snapshot, only):
        for state in node.devices:
            device, used = state.device, state.used
            share = (
                f"{used.slots}/{device.slots}",
                f"{used.memory}/{device.memory}",
                f"{used.cores}/{device.cores}",
            )
            health = health_shown(node, state)
            rows.append((node.name, device.index, device.uuid, device.model, health, *share, _device_note(node, state)))
    return rows


def health_shown(node: NodeState, state: DeviceState) -> Health:
    """A node that is silent says nothing of its devices: what was known last is not what is. Bad news stays bad news."""
    return Health.UNKNOWN if node.liveness is Liveness.LOST and state.health is Health.HEALTHY else state.health


def allocation_rows(snapshot: ClusterSnapshot, only: str = "") -> list[Row]:
    rows: list[Row] = []
    for allocation in _live(snapshot, only):
        owner, node = allocation.reservation.owner, allocation.reservation.node
        for container in allocation.reservation.containers:
            for share in container.shares:
                where = (f"{owner.namespace}/{owner.name}", allocation.phase, node, container.name)
                rows.append((*where, share.uuid, share.memory, share.cores))
    return rows


def quota_rows(snapshot: ClusterSnapshot) -> list[Row]:
    return [
        (namespace, limit.resource, limit.limit, limit.quota)
        for namespace, quota in sorted(snapshot.quotas.items())
        for limit in quota.limits
    ]


def as_json(snapshot: ClusterSnapshot, position: Position, *, node: str = "") -> dict[str, Any]:
    return {
        "g": position.g,
        "recorded_at": shown(position.recorded_ms) if position.g else None,
        "nodes": [_node_json(each) for each in _nodes(snapshot, node)],
        "allocations": [_allocation_json(each) for each in _live(snapshot, node)],
        "quotas": [
            {
                "namespace": namespace,
                "limits": [{"resource": each.resource, "limit": each.limit, "quota": each.quota} for each in quota.limits],
            }
            for namespace, quota in sorted(snapshot.quotas.items())
        ],
        "quota_used": [
            {"namespace": namespace, "vendor": vendor, "memory_mib": memory, "cores_percent": cores}
            for namespace, by_vendor in sorted(snapshot.quota_used.items())
            for vendor, (memory, cores) in sorted(by_vendor.items())
        ],
    }


def _nodes(snapshot: ClusterSnapshot, only: str) -> Iterator[NodeState]:
    for name in sorted(snapshot.nodes):
        if only in {"", name}:
            yield snapshot.nodes[name]


def _live(snapshot: ClusterSnapshot, only: str) -> list[Allocation]:
    found = [each for each in snapshot.allocations.values() if each.live and only in {"", each.reservation.node}]
    return sorted(found, key=lambda each: (each.reservation.owner.namespace, each.reservation.owner.name, each.id))


def _note(node: NodeState) -> str:
    notes = [f"quarantined: {node.quarantine}"] if node.quarantine else []
    if node.health_paused_by:
        notes.append(f"health watch paused by {node.health_paused_by}")
    if node.foreign:
        notes.append(f"by annotation: {', '.join(each.vendor for each in node.foreign)}")
    notes += [f"not read: {text}" for each in node.foreign for text in each.unread]
    return "; ".join(notes)


def _device_note(node: NodeState, state: DeviceState) -> str:
    notes = ["cordoned"] if state.cordoned else []
    if health_shown(node, state) is not state.health:
        notes.append(f"last known {state.health}")
    if state.health_reason:
        notes.append(state.health_reason)
    return "; ".join(notes)


def _node_json(node: NodeState) -> dict[str, Any]:
    return {
        "name": node.name,
        "uid": node.uid,
        "epoch": node.epoch,
        "liveness": node.liveness,
        "delivery": node.delivery,
        "quarantine": node.quarantine or None,
        "health_paused_by": node.health_paused_by or None,
        "by_annotation": [{"vendor": each.vendor, "not_read": [*each.unread]} for each in node.foreign],
        "devices": [_device_json(node, each) for each in node.devices],
    }


def _device_json(node: NodeState, state: DeviceState) -> dict[str, Any]:
    device, used = state.device, state.used
    return {
        "uuid": device.uuid,
        "vendor": device.vendor,
        "model": device.model,
        "index": device.index,
        "numa": None if device.numa < 0 else device.numa,
        "mode": device.mode or None,
        "health": health_shown(node, state),
        "last_known_health": state.health,
        "health_reason": state.health_reason or None,
        "cordoned": state.cordoned,
        "schedulable": state.schedulable and node.liveness is Liveness.LIVE,
        "slots": {"used": used.slots, "total": device.slots},
        "memory_mib": {"used": used.memory, "total": device.memory},
        "cores_percent": {"used": used.cores, "total": device.cores},
        "mig_in_use": [*state.mig_in_use],
    }


def _allocation_json(allocation: Allocation) -> dict[str, Any]:
    reservation = allocation.reservation
    owner = reservation.owner
    return {
        "id": allocation.id,
        "phase": allocation.phase,
        "owner": {
            "kind": "pod" if isinstance(owner, PodOwner) else "claim",
            "uid": owner.uid,
            "namespace": owner.namespace,
            "name": owner.name,
        },
        "node": reservation.node,
        "deadline": shown(reservation.deadline_ms),
        "init_done": allocation.init_done,
        "containers": [
            {
                "name": container.name,
                "kind": container.kind,
                "prepared": container.name in allocation.prepared,
                "shares": [
                    {
                        "vendor": share.vendor,
                        "uuid": share.uuid,
                        "memory_mib": share.memory,
                        "cores_percent": share.cores,
                        "mig": share.mig,
                    }
                    for share in container.shares
                ],
            }
            for container in reservation.containers
        ],
    }
