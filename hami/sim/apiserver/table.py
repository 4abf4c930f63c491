"""The Table and PartialObjectMetadata forms that `kubectl get` asks for."""

from datetime import datetime
from typing import Any

from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.kinds import Resource

_TABLE_VERSION = "meta.k8s.io/v1"


def wants(accept: str) -> str:
    """`Table`, `PartialObjectMetadataList` or nothing, from the Accept header's first acceptable entry."""
    for entry in accept.split(","):
        parts = dict(part.strip().partition("=")[::2] for part in entry.split(";")[1:])
        if parts.get("g") == "meta.k8s.io" and parts.get("v") == "v1" and parts.get("as"):
            return parts["as"].removesuffix("List")
        if entry.strip().startswith("application/json"):
            return ""
    return ""


def _column(name: str, kind: str = "string", priority: int = 0, form: str = "") -> Obj:
    return {"name": name, "type": kind, "format": form, "description": name, "priority": priority}


_NAME, _AGE = _column("Name", form="name"), _column("Age")
_COLUMNS: dict[str, list[Obj]] = {
    "Pod": [
        _NAME,
        _column("Ready"),
        _column("Status"),
        _column("Restarts", "integer"),
        _AGE,
        _column("IP", priority=1),
        _column("Node", priority=1),
        _column("Nominated Node", priority=1),
        _column("Readiness Gates", priority=1),
    ],
    "Node": [_NAME, _column("Status"), _column("Roles"), _AGE, _column("Version")],
    "Namespace": [_NAME, _column("Status"), _AGE],
    "Lease": [_NAME, _column("Holder"), _AGE],
    "Event": [_column("Last Seen"), _column("Type"), _column("Reason"), _column("Object"), _column("Message")],
}


def age(created: str | None, now: datetime) -> str:
    if not created:
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h" if seconds < 172_800 else f"{seconds // 86_400}d"


def _pod_cells(obj: Obj, old: str) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for each in statuses if each.get("ready"))
    phase = (
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("reason") or status.get("phase") or "Unknown"
    )
    restarts = sum(each.get("restartCount", 0) for each in statuses)
    wide = [
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]
    return [obj["metadata"]["name"], f"{ready}/{len(spec.get('containers') or [])}", phase, restarts, old, *wide]


def _node_cells(obj: Obj, old: str) -> list[Any]:
    status = obj.get("status") or {}
    ready = next((each["status"] for each in status.get("conditions") or [] if each["type"] == "Ready"), None)
    word = {"True": "Ready", "False": "NotReady"}.get(ready or "", "Unknown")
    if (obj.get("spec") or {}).get("unschedulable"):
        word += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in obj["metadata"].get("labels") or {} if key.startswith(prefix)]
    version = (status.get("nodeInfo") or {}).get("kubeletVersion") or ""
    return [obj["metadata"]["name"], word, ",".join(sorted(roles)) or "<none>", old, version]


def _cells(resource: Resource, obj: Obj, now: datetime) -> list[Any]:
    name, old = obj["metadata"]["name"], age(obj["metadata"].get("creationTimestamp"), now)
    match resource.kind:
        case "Pod":
            return _pod_cells(obj, old)
        case "Node":
            return _node_cells(obj, old)
        case "Namespace":
            return [name, (obj.get("status") or {}).get("phase") or "", old]
        case "Lease":
            return [name, (obj.get("spec") or {}).get("holderIdentity") or "", old]
        case "Event":
            about = obj.get("involvedObject") or {}
            seen = age(obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp"), now)
            where = f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}"
            return [seen, obj.get("type") or "", obj.get("reason") or "", where, obj.get("message") or ""]
    return [name, old]


def partial(obj: Obj) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": _TABLE_VERSION, "metadata": obj["metadata"]}


def table(resource: Resource, objects: list[Obj], meta: Obj, now: datetime) -> Obj:
    rows = [{"cells": _cells(resource, each, now), "object": partial(each)} for each in objects]
    columns = _COLUMNS.get(resource.kind, [_NAME, _AGE])
    return {"kind": "Table", "apiVersion": _TABLE_VERSION, "metadata": meta, "columnDefinitions": columns, "rows": rows}


def partial_list(objects: list[Obj], meta: Obj) -> Obj:
    items = [partial(each) for each in objects]
    return {"kind": "PartialObjectMetadataList", "apiVersion": _TABLE_VERSION, "metadata": meta, "items": items}
