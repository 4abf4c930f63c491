"""What the server refuses with 422, in its own words, for the fields hami's traffic touches."""

import re
from collections.abc import Callable, Iterator

from hami.sim.apiserver.errors import Cause, Obj, bad_value, forbidden_change, required
from hami.sim.apiserver.kinds import Resource
from hami.sim.apiserver.quantity import parse

_ALNUM = "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
_NAME_PART = (
    f"name part must consist of {_ALNUM} (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    "regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE = (
    f"a valid label must be an empty string or consist of {_ALNUM} (e.g. 'MyValue',  or 'my_value',  or '12345', "
    "regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN_FORM = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ANNOTATION_PATH = re.compile(r"metadata\.(annotations|labels)\['(.*)'\]")
_FIELD_PATHS = frozenset(
    [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.annotations",
        "metadata.labels",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ]
)
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_STANDARD_QUOTA = _STANDARD | frozenset(
    [
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ]
)
_MUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_MOST_ANNOTATIONS = 262_144


def qualified_name_fault(key: str) -> str | None:
    name = key.rpartition("/")[2]
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return None if _NAME.fullmatch(name) else _NAME_PART


def metadata(resource: Resource, obj: Obj) -> Iterator[Cause]:
    meta = obj["metadata"]
    name = meta.get("name") or ""
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif not _SUBDOMAIN_FORM.fullmatch(name):
        yield bad_value("metadata.name", name, SUBDOMAIN)
    yield from _labels(resource, meta.get("labels") or {})
    annotations = meta.get("annotations") or {}
    for key in annotations:
        if why := qualified_name_fault(key.lower()):
            yield bad_value("metadata.annotations", key, why)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _MOST_ANNOTATIONS:
        yield Cause("metadata.annotations", f"Too long: may not be more than {_MOST_ANNOTATIONS} bytes", "FieldValueTooLong")


def _labels(resource: Resource, labels: dict[str, str]) -> Iterator[Cause]:
    # The real server reports a node's label four times over; the message names it once.
    repeats = 4 if resource.kind == "Node" else 1
    for key, value in labels.items():
        if why := qualified_name_fault(key):
            yield bad_value("metadata.labels", key, why)
        if len(value.encode()) > 63:
            yield from [bad_value("metadata.labels", value, "must be no more than 63 bytes")] * repeats
        elif value and not _NAME.fullmatch(value):
            yield from [bad_value("metadata.labels", value, _LABEL_VALUE)] * repeats


def _extended(name: str) -> bool:
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _resources(path: str, resources: Obj) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, written in amounts.items():
            yield from _amount(f"{path}.{part}[{name}]", name, written)
    for name, written in requests.items():
        if not _extended(name):
            continue
        if name not in limits:
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif parse(limits[name])[0] != parse(written)[0]:
            yield bad_value(f"{path}.requests", written, f"must be equal to {name} limit of {limits[name]}")


def _amount(path: str, name: str, written: str) -> Iterator[Cause]:
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        yield bad_value(path, name, "must be a standard resource type or fully qualified")
        yield bad_value(path, name, "must be a standard resource for containers")
    value = parse(written)[0]
    if value < 0:
        yield bad_value(path, written, "must be greater than or equal to 0")
    elif _extended(name) and value != value.to_integral_value():
        yield bad_value(path, written, "must be an integer")


def _field_reference(path: str, field_path: str) -> Iterator[Cause]:
    if "[" in field_path:
        found = _ANNOTATION_PATH.fullmatch(field_path)
        if found is None:
            why = f"error converting fieldPath: field label does not support subscript: {field_path}"
            yield bad_value(f"{path}.fieldPath", field_path, why)
        elif fault := qualified_name_fault(found[2].lower()):
            yield bad_value(path, found[2], fault)
    elif field_path not in _FIELD_PATHS:
        yield bad_value(f"{path}.fieldPath", field_path, f"error converting fieldPath: field label not supported: {field_path}")


def _container(path: str, container: Obj) -> Iterator[Cause]:
    if not container.get("name"):
        yield required(f"{path}.name")
    if not container.get("image"):
        yield required(f"{path}.image")
    for index, variable in enumerate(container.get("env") or []):
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            yield from _field_reference(f"{path}.env[{index}].valueFrom.fieldRef", reference.get("fieldPath") or "")
    yield from _resources(f"{path}.resources", container.get("resources") or {})


def _pod(obj: Obj) -> Iterator[Cause]:
    spec = obj["spec"]
    if not spec.get("containers"):
        yield required("spec.containers")
    for part in ("initContainers", "containers", "ephemeralContainers"):
        seen: set[str] = set()
        for index, each in enumerate(spec.get(part) or []):
            yield from _container(f"spec.{part}[{index}]", each)
            if (name := each.get("name") or "") in seen:
                yield Cause(f"spec.{part}[{index}].name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
            seen.add(name)


def _quota(obj: Obj) -> Iterator[Cause]:
    for name in obj["spec"].get("hard") or {}:
        if "/" in name or name in _STANDARD_QUOTA or name.startswith(("count/", "hugepages-")):
            continue
        yield bad_value(f"spec.hard[{name}]", name, "must be a standard resource type or fully qualified")
        yield bad_value(f"spec.hard[{name}]", name, "must be a standard resource for quota")


def _webhooks(obj: Obj) -> Iterator[Cause]:
    for index, hook in enumerate(obj.get("webhooks") or []):
        path = f"webhooks[{index}]"
        if hook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            message = f'Unsupported value: "{hook.get("sideEffects")}": supported values: "None", "NoneOnDryRun"'
            yield Cause(f"{path}.sideEffects", message, "FieldValueNotSupported")
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            yield bad_value(
                f"{path}.timeoutSeconds", hook["timeoutSeconds"], "the timeout value must be between 1 and 30 seconds"
            )


def _lease(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if "leaseDurationSeconds" in spec and spec["leaseDurationSeconds"] <= 0:
        yield bad_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")


_BY_KIND: dict[str, Callable[[Obj], Iterator[Cause]]] = {
    "Pod": _pod,
    "ResourceQuota": _quota,
    "Lease": _lease,
    "MutatingWebhookConfiguration": _webhooks,
    "ValidatingWebhookConfiguration": _webhooks,
}


def of_object(resource: Resource, obj: Obj) -> list[Cause]:
    """Every fault of an object that is about to be stored."""
    causes = list(metadata(resource, obj))
    check = _BY_KIND.get(resource.kind)
    return causes if check is None else causes + list(check(obj))


def of_new_event(obj: Obj) -> list[Cause]:
    """events.k8s.io/v1 asks for more than core v1 does."""
    meta, causes = obj["metadata"], []
    prefix = meta.get("generateName") or ""
    if prefix and not _SUBDOMAIN_FORM.fullmatch(prefix.removesuffix("-")):
        causes.append(bad_value("metadata.generateName", prefix, SUBDOMAIN))
    if not obj.get("eventTime"):
        causes.append(required("eventTime"))
    causes += _reporter(obj.get("reportingComponent") or "")
    causes += [required(field) for field in ("reportingInstance", "action", "reason") if not obj.get(field)]
    if len((obj.get("message") or "").encode()) > 1024:
        causes.append(bad_value("message", "", "can have at most 1024 characters"))
    kind = obj.get("type") or ""
    if kind not in {"Normal", "Warning"}:
        causes.append(bad_value("type", kind, f"has invalid value: {kind}"))
    return causes


def _reporter(component: str) -> list[Cause]:
    if component:
        why = qualified_name_fault(component)
        return [bad_value("reportingController", component, why)] if why else []
    faults = ("name part must be non-empty", _NAME_PART)
    return [required("reportingController"), *(bad_value("reportingController", "", why) for why in faults)]


def of_update(resource: Resource, before: Obj, after: Obj) -> list[Cause]:
    """What an update may not change."""
    causes: list[Cause] = []
    old, new = before["metadata"], after["metadata"]
    if new.get("uid") not in {None, "", old["uid"]}:
        causes += [bad_value("metadata.uid", new["uid"], "field is immutable")] * 2
    if resource.kind == "Pod" and _frozen_spec(before["spec"], after["spec"]) != _frozen_spec(after["spec"], after["spec"]):
        causes.append(forbidden_change("spec", _MUTABLE))
    return causes


def _frozen_spec(spec: Obj, new: Obj) -> Obj:
    """The spec with everything that may change taken from `new`."""
    frozen = {
        key: value for key, value in spec.items() if key not in {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    }
    for part in ("containers", "initContainers"):
        images = [each.get("image") for each in new.get(part) or []]
        listed = spec.get(part) or []
        if len(images) == len(listed):
            frozen[part] = [{**each, "image": image} for each, image in zip(listed, images, strict=True)]
    return frozen
