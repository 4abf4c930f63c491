"""What the server fills in before admission and before storing. Given objects are not changed; new ones are returned."""

from collections.abc import Callable
from typing import Any

from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.kinds import Resource
from hami.sim.apiserver.quantity import canonical

_GRACE = 300
_NODE_TROUBLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def quantities(found: Obj | None) -> Obj | None:
    return None if found is None else {name: canonical(value) for name, value in found.items()}


def _env(variable: Obj) -> Obj:
    source = variable.get("valueFrom")
    if isinstance(source, dict) and "fieldRef" in source:
        reference = {"apiVersion": "v1", **source["fieldRef"]}
        return {**variable, "valueFrom": {**source, "fieldRef": reference}}
    return variable


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in {"", "latest"} and "@" not in image else "IfNotPresent"


def _container(container: Obj) -> Obj:
    resources = container.get("resources") or {}
    limits, requests = quantities(resources.get("limits")), quantities(resources.get("requests"))
    if limits:
        requests = {**limits, **(requests or {})}
    filled = {"limits": limits, "requests": requests}
    known: Obj = {**resources, **{key: value for key, value in filled.items() if value is not None}}
    done: Obj = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": _pull_policy(container.get("image") or ""),
        **container,
        "resources": known,
    }
    if container.get("env"):
        done["env"] = [_env(each) for each in container["env"]]
    return done


def _tolerations(present: list[Obj] | None) -> list[Obj]:
    found = list(present or [])
    for key in _NODE_TROUBLE:
        if not any(each.get("key") in {key, None, ""} and each.get("effect") in {"NoExecute", None, ""} for each in found):
            found.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _GRACE})
    return found


def _pod(obj: Obj) -> Obj:
    spec = obj.get("spec") or {}
    filled: Obj = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        **spec,
        "tolerations": _tolerations(spec.get("tolerations")),
    }
    for field in ("containers", "initContainers", "ephemeralContainers"):
        if isinstance(spec.get(field), list):
            filled[field] = [_container(each) for each in spec[field]]
    return {**obj, "spec": filled, "status": obj.get("status") or {}}


def _node(obj: Obj) -> Obj:
    status = dict(obj.get("status") or {})
    for field in ("capacity", "allocatable"):
        if status.get(field) is not None:
            status[field] = quantities(status[field])
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = status["capacity"]
    return {**obj, "spec": obj.get("spec") or {}, "status": status}


def _quota(obj: Obj) -> Obj:
    spec = obj.get("spec") or {}
    return {**obj, "spec": {**spec, "hard": quantities(spec.get("hard")) or {}}, "status": obj.get("status") or {}}


def _event(obj: Obj) -> Obj:
    return {
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
        **obj,
    }


def _namespace(obj: Obj) -> Obj:
    return {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}, **obj}


def _priority_class(obj: Obj) -> Obj:
    return {"preemptionPolicy": "PreemptLowerPriority", **obj}


def _webhooks(obj: Obj) -> Obj:
    base: Obj = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    if "Mutating" in str(obj.get("kind", "")):
        base["reinvocationPolicy"] = "Never"
    filled: list[Obj] = []
    for hook in obj.get("webhooks") or []:
        rules = [{"scope": "*", **rule} for rule in hook.get("rules") or []]
        filled.append({**base, "timeoutSeconds": 10, **hook, "rules": rules})
    return {**obj, "webhooks": filled}


_BY_KIND: dict[str, Callable[[Obj], Obj]] = {
    "Pod": _pod,
    "Node": _node,
    "ResourceQuota": _quota,
    "Event": _event,
    "Namespace": _namespace,
    "PriorityClass": _priority_class,
    "MutatingWebhookConfiguration": _webhooks,
    "ValidatingWebhookConfiguration": _webhooks,
}


def filled(resource: Resource, obj: Obj) -> Obj:
    """The object with the server's defaults; quantities in canonical form."""
    fill = _BY_KIND.get(resource.kind)
    return obj if fill is None else fill(obj)


def with_priority(pod: Obj, classes: dict[str, Obj]) -> Obj | None:
    """The pod with the value of its priority class, or of the global default; None when the class does not exist."""
    spec = pod["spec"]
    name = spec.get("priorityClassName") or next((key for key, each in classes.items() if each.get("globalDefault")), "")
    found = classes.get(name) if name else {"value": 0}
    if found is None:
        return None
    named = {"priorityClassName": name} if name else {}
    policy = spec.get("preemptionPolicy") or found.get("preemptionPolicy") or "PreemptLowerPriority"
    return {**pod, "spec": {**spec, **named, "priority": found["value"], "preemptionPolicy": policy}}


def _sums(container: Obj) -> tuple[dict[str, str], dict[str, str]]:
    resources = container.get("resources") or {}
    return resources.get("requests") or {}, resources.get("limits") or {}


def quality_of_service(spec: Obj) -> str:
    """`Guaranteed`, `Burstable` or `BestEffort`, by cpu and memory alone as the API computes it."""
    every: list[Any] = [_sums(each) for each in (spec.get("containers") or []) + (spec.get("initContainers") or [])]
    counted = [
        (
            {key: requests[key] for key in ("cpu", "memory") if key in requests},
            {key: limits[key] for key in ("cpu", "memory") if key in limits},
        )
        for requests, limits in every
    ]
    if not any(requests or limits for requests, limits in counted):
        return "BestEffort"
    if all(len(limits) == 2 and requests == limits for requests, limits in counted):
        return "Guaranteed"
    return "Burstable"
