"""Events exist once and are seen in two versions: kept as core v1, converted at the door for events.k8s.io/v1."""

from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.kinds import Resource

_TO_V1 = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_FROM_V1 = {new: old for old, new in _TO_V1.items()}


def shown(resource: Resource, obj: Obj) -> Obj:
    """The stored object in the version asked for."""
    if resource.group != "events.k8s.io":
        return obj
    return {_TO_V1.get(key, key): value for key, value in obj.items()}


def kept(resource: Resource, obj: Obj) -> Obj:
    """The given object in the version that is stored."""
    if resource.group != "events.k8s.io":
        return obj
    return {_FROM_V1.get(key, key): value for key, value in obj.items()}
