"""Is this JSON an object of its kind at all? Types and unknown fields, for the parts hami's messages use.

The real server decodes into typed structs: a wrong type ends the request with the decoder's words, an unknown field
is dropped (or refused under `fieldValidation=Strict`).
"""

import re
from collections.abc import Iterator
from typing import Any

from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.kinds import Resource
from hami.sim.apiserver.quantity import NotAQuantity, parse

_NOT_A_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")

_POD_SPEC = frozenset(
    [
        "activeDeadlineSeconds",
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
        "schedulingGroup",
        "workloadRef",
    ]
)
_CONTAINER = frozenset(
    [
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "restartPolicyRules",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "targetContainerName",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    ]
)
_POD_STRINGS = (
    "nodeName",
    "schedulerName",
    "restartPolicy",
    "dnsPolicy",
    "priorityClassName",
    "runtimeClassName",
    "serviceAccountName",
)
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_CONTAINER_KIND = {"ephemeralContainers": "EphemeralContainer"}


def _json_name(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _mismatch(value: object, struct: str, path: str, wanted: str) -> str:
    return f"json: cannot unmarshal {_json_name(value)} into Go struct field {struct}.{path} of type {wanted}"


def _meta_faults(obj: Obj) -> Iterator[str]:
    meta = obj.get("metadata")
    if meta is None:
        return
    if not isinstance(meta, dict):
        yield _mismatch(meta, "Object", "metadata", "v1.ObjectMeta")
        return
    for field in ("name", "namespace", "generateName", "uid", "resourceVersion"):
        if not isinstance(meta.get(field, ""), str):
            yield _mismatch(meta[field], "ObjectMeta", f"metadata.{field}", "string")
    for field in ("labels", "annotations"):
        found = meta.get(field)
        if found is not None and not isinstance(found, dict):
            yield _mismatch(found, "ObjectMeta", f"metadata.{field}", "map[string]string")
        for value in (found or {}).values() if isinstance(found, dict) else ():
            if not isinstance(value, str):
                yield _mismatch(value, "ObjectMeta", f"metadata.{field}", "string")


def _quantity_faults(found: object) -> Iterator[str]:
    if not isinstance(found, dict):
        return
    for value in found.values():
        try:
            parse(value)
        except NotAQuantity:
            yield _NOT_A_QUANTITY


def _container_faults(spec: Obj, field: str) -> Iterator[str]:
    listed = spec.get(field)
    if listed is None:
        return
    struct = _CONTAINER_KIND.get(field, "Container")
    if not isinstance(listed, list):
        yield _mismatch(listed, "PodSpec", f"spec.{field}", f"[]v1.{struct}")
        return
    for each in listed:
        if isinstance(each, dict):
            yield from _one_container_faults(each, struct, f"spec.{field}")
        else:
            yield _mismatch(each, "PodSpec", f"spec.{field}", f"v1.{struct}")


def _one_container_faults(container: Obj, struct: str, path: str) -> Iterator[str]:
    for name in ("name", "image"):
        if not isinstance(container.get(name, ""), str):
            yield _mismatch(container[name], struct, f"{path}.{name}", "string")
    variables = container.get("env") or []
    if not isinstance(variables, list):
        yield _mismatch(variables, struct, f"{path}.env", "[]v1.EnvVar")
        return
    for variable in variables:
        if not isinstance(variable.get("value") or "", str):
            yield _mismatch(variable["value"], "EnvVar", f"{path}.env.value", "string")
    for part in ("limits", "requests"):
        yield from _quantity_faults((container.get("resources") or {}).get(part))


def _pod_faults(obj: Obj) -> Iterator[str]:
    spec = obj.get("spec") or {}
    if not isinstance(spec, dict):
        yield _mismatch(spec, "Pod", "spec", "v1.PodSpec")
        return
    for field in _POD_STRINGS:
        value = spec.get(field)
        if value is not None and not isinstance(value, str):
            yield _mismatch(value, "PodSpec", f"spec.{field}", "string")
    for field in _CONTAINER_LISTS:
        yield from _container_faults(spec, field)


def _lease_faults(obj: Obj) -> Iterator[str]:
    for field in ("acquireTime", "renewTime"):
        value = (obj.get("spec") or {}).get(field)
        if isinstance(value, str) and not _MICRO.fullmatch(value):
            rest = value[19:] or ""
            yield f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "{rest}" as ".000000"'


def fault(resource: Resource, obj: Obj) -> str | None:
    """The decoder's first complaint, or None."""
    complaints: list[Iterator[str]] = [_meta_faults(obj)]
    if resource.kind == "Pod":
        complaints.append(_pod_faults(obj))
    elif resource.kind == "Lease":
        complaints.append(_lease_faults(obj))
    elif resource.kind == "Node":
        complaints += [_quantity_faults((obj.get("status") or {}).get(part)) for part in ("capacity", "allocatable")]
    elif resource.kind == "ResourceQuota":
        complaints.append(_quantity_faults((obj.get("spec") or {}).get("hard")))
    return next((text for each in complaints for text in each), None)


def pruned(resource: Resource, obj: Obj) -> tuple[Obj, list[str]]:
    """The object without the fields its kind does not have, and their paths."""
    if resource.kind != "Pod" or not isinstance(obj.get("spec"), dict):
        return obj, []
    unknown = [f"spec.{field}" for field in obj["spec"] if field not in _POD_SPEC]
    spec: dict[str, Any] = {field: value for field, value in obj["spec"].items() if field in _POD_SPEC}
    for part in _CONTAINER_LISTS:
        listed = spec.get(part)
        if not listed:
            continue
        for index, each in enumerate(listed):
            unknown += [f"spec.{part}[{index}].{field}" for field in each if field not in _CONTAINER]
        spec[part] = [{field: value for field, value in each.items() if field in _CONTAINER} for each in listed]
    return ({**obj, "spec": spec}, unknown) if unknown else (obj, [])
