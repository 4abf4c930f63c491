"""The three patch dialects. None of them changes the object it is given: what stays the same is shared, what changes is new."""

from collections.abc import Mapping
from typing import Any

import jsonpatch

from hami.sim.apiserver.errors import ApiRefusal, Obj

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# Where a list is merged by key rather than replaced. The field's name decides; the two `conditions` and both
# `addresses` agree on theirs, and `ports` means containerPort in pods, the only place where it is met here.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "conditions": "type",
    "addresses": "type",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "hostAliases": "ip",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "webhooks": "name",
}
# Lists of plain values that are united instead of replaced.
_UNITED = frozenset({"finalizers"})
# `tolerations` and `taints` are atomic in the API: a strategic patch replaces the whole list.


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    merged: Obj = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic(target: Any, patch: Any) -> Any:
    """Kubernetes' own dialect: objects merge, keyed lists merge by their key, `$patch` and `$deleteFromPrimitiveList` apply."""
    if not isinstance(patch, Mapping):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged: Obj = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if key == "$patch" or key.startswith(("$setElementOrder/", "$retainKeys")):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [each for each in merged.get(name) or [] if each not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _strategic_list(key, merged.get(key), value, patch.get(f"$setElementOrder/{key}"))
        else:
            merged[key] = strategic(merged.get(key), value)
    return merged


def _strategic_list(name: str, target: Any, patch: list[Any], order: list[Any] | None) -> list[Any]:
    present = list(target) if isinstance(target, list) else []
    if name in _UNITED:
        return present + [each for each in patch if each not in present]
    key = _MERGE_KEYS.get(name)
    if key is None or any(not isinstance(each, Mapping) for each in patch):
        return patch
    if any(each.get("$patch") == "replace" for each in patch):
        return [each for each in patch if "$patch" not in each]
    by_key = {each.get(key): each for each in present}
    for each in patch:
        if key not in each:
            raise ApiRefusal(400, f"map: {dict(each)} does not contain declared merge key: {key}")
        if each.get("$patch") == "delete":
            by_key.pop(each[key], None)
        else:
            by_key[each[key]] = strategic(by_key.get(each[key]), each)
    if order:
        ranked = {each.get(key): rank for rank, each in enumerate(order)}
        return sorted(by_key.values(), key=lambda item: ranked.get(item.get(key), len(ranked)))
    return list(by_key.values())


def json_patch(target: Obj, operations: Any) -> Obj:
    """RFC 6902 on behalf of a user: whatever does not apply is one 422 without details, as the server says it."""
    try:
        patched = jsonpatch.JsonPatch(operations).apply(target)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
        message = "the server rejected our request due to an error in our request"
        raise ApiRefusal(422, message, details={}) from None
    if not isinstance(patched, dict):
        raise ApiRefusal(422, "the server rejected our request due to an error in our request", details={})
    return patched


def dialect_of(content_type: str) -> str:
    """The dialect a request names; 415 when it is none of the four."""
    dialect = content_type.partition(";")[0].strip()
    if dialect not in {MERGE, JSON, STRATEGIC, APPLY}:
        raise ApiRefusal(415, "415: Unsupported Media Type", details={})
    return dialect


def apply(content_type: str, target: Obj, patch: Any) -> Obj:
    """The object after the patch."""
    dialect = dialect_of(content_type)
    if dialect == JSON:
        return json_patch(target, patch)
    if not isinstance(patch, dict):
        raise ApiRefusal(400, "error decoding patch: the patch is not a JSON object")
    patched = merge(target, patch) if dialect == MERGE else strategic(target, patch)
    assert isinstance(patched, dict)
    return patched
