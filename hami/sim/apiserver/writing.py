"""POST, PUT and PATCH: decode, fill in, mutate, validate, store; with the checks in the order the real server makes them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hami.sim.apiserver import patch, shape, validate
from hami.sim.apiserver.admission import Review
from hami.sim.apiserver.call import Answer, Call, Target, json_answer
from hami.sim.apiserver.core import Core, full, full_json, stripped
from hami.sim.apiserver.defaults import filled, quality_of_service, with_priority
from hami.sim.apiserver.errors import (
    MODIFIED,
    ApiRefusal,
    Cause,
    Obj,
    already_exists,
    conflict,
    details_of,
    internal,
    invalid,
    not_found,
    precondition_failed,
)
from hami.sim.apiserver.kinds import NAMESPACES, PRIORITY_CLASSES, Resource
from hami.sim.apiserver.quota import exceeded
from hami.sim.apiserver.store import Stored

_ATTEMPTS = 5
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def decoded(call: Call) -> tuple[Obj, list[str]]:
    """The object of a POST or PUT, typed and without unknown fields, and the warnings about those."""
    resource, obj = call.target.resource, call.decoded_object()
    said, wanted = (obj.get("kind"), obj.get("apiVersion")), (resource.kind, resource.api_version)
    if said[0] is not None and said != wanted:
        raise ApiRefusal(400, f"{said[1]}, Kind={said[0]} in the body does not match {wanted[1]}, Kind={wanted[0]}")
    told = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    if complaint := shape.fault(resource, obj):
        raise ApiRefusal(400, f"{told}: {complaint}")
    obj, unknown = shape.pruned(resource, obj)
    if unknown and call.query.get("fieldValidation") == "Strict":
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise ApiRefusal(400, f"{told}: strict decoding error: {listed}")
    warned = unknown if call.query.get("fieldValidation") == "Warn" else []
    kept = stripped(resource, obj)
    return {**kept, "metadata": dict(kept.get("metadata") or {})}, [f'unknown field "{path}"' for path in warned]


def normaliser(core: Core, resource: Resource) -> Callable[[Obj], Obj]:
    """What happens to the object a webhook patched: typed, pruned and filled in again."""

    def normalise(obj: Obj) -> Obj:
        if complaint := shape.fault(resource, obj):
            raise internal(complaint)
        known, _ = shape.pruned(resource, obj)
        return full(resource, _completed(core, resource, stripped(resource, known)))

    return normalise


def _completed(core: Core, resource: Resource, obj: Obj) -> Obj:
    done = filled(resource, obj)
    if resource.kind != "Pod":
        return done
    classes = {key[1]: each.obj for key, each in core.store.shelf(PRIORITY_CLASSES.store_key).items.items()}
    with_class = with_priority(done, classes)
    if with_class is None:
        name, wanted = done["metadata"].get("name") or "", done["spec"]["priorityClassName"]
        message = f'pods "{name}" is forbidden: no PriorityClass with name {wanted} was found'
        raise ApiRefusal(403, message, details=details_of(name, "pods"))
    return with_class


def check_namespace(core: Core, target: Target, obj: Obj) -> None:
    """Fill in the URL's namespace; refuse another one, or one that does not exist."""
    meta, resource = obj["metadata"], target.resource
    if not resource.namespaced:
        meta.pop("namespace", None)
        return
    if meta.setdefault("namespace", target.namespace) != target.namespace:
        raise ApiRefusal(400, "the namespace of the provided object does not match the namespace sent on the request")
    if core.store.get(NAMESPACES.store_key, "", target.namespace) is None:
        raise not_found("namespaces", "", target.namespace)


def _born(core: Core, resource: Resource, obj: Obj) -> Obj:
    """What the server writes into a new object itself: name, uid, times, first status."""
    given = obj["metadata"]
    name = given.get("name") or ""
    if not name and given.get("generateName"):
        name = given["generateName"][:58] + core.name_suffix()
    meta = {key: value for key, value in given.items() if key not in {"resourceVersion", "deletionTimestamp", "selfLink"}}
    meta |= {"name": name, "uid": core.new_uid(), "creationTimestamp": core.stamp()}
    if resource.generation:
        meta["generation"] = 1
    if resource.kind == "Pod":
        status: Obj = {"phase": "Pending", "qosClass": quality_of_service(obj["spec"])}
        if obj["spec"].get("schedulingGates"):
            status["conditions"] = [{**_GATED, "lastTransitionTime": core.stamp()}]
        return {**obj, "metadata": meta, "status": status}
    if resource.kind == "ResourceQuota":
        return {**obj, "metadata": meta, "status": {}}
    return {**obj, "metadata": meta}


def _causes(resource: Resource, obj: Obj) -> list[Cause]:
    causes = validate.of_object(resource, obj)
    return causes + validate.of_new_event(obj) if resource.group == "events.k8s.io" else causes


async def create(core: Core, call: Call) -> Answer:
    target, resource = call.target, call.target.resource
    obj, warned = decoded(call)
    check_namespace(core, target, obj)
    obj = _completed(core, resource, obj)
    review = Review(
        resource,
        "CREATE",
        call.user,
        obj["metadata"].get("name") or "",
        target.namespace,
        full(resource, obj),
        None,
        dry_run=call.dry_run,
        warnings=warned,
    )
    await core.admission.mutate(review, normaliser(core, resource))
    assert review.object is not None
    obj = _born(core, resource, stripped(resource, review.object))
    name = obj["metadata"]["name"]
    if causes := _causes(resource, obj):
        # Every kind outside core is named with its group here, events alone are not.
        raise invalid(resource.kind, "" if resource.kind == "Event" else resource.group, name, causes)
    if resource.kind == "Pod" and (why := exceeded(core, obj)):
        raise ApiRefusal(403, f'pods "{name}" is forbidden: {why}', details=details_of(name, "pods"))
    review.object, review.name = full(resource, obj), name
    await core.admission.validate(review)
    if core.store.get(resource.store_key, target.namespace, name) is not None:
        raise already_exists(resource.plural, resource.group, name)
    if call.dry_run:
        return json_answer(201, full(resource, obj), review.warnings)
    return Answer(201, full_json(resource, core.store.create(resource.store_key, obj)), review.warnings)


async def put(core: Core, call: Call) -> Answer:
    obj, warned = decoded(call)
    target, resource = call.target, call.target.resource
    if (named := obj["metadata"].get("name") or target.name) != target.name:
        message = f"the name of the object ({named}) does not match the name on the URL ({target.name})"
        raise ApiRefusal(400, message)
    obj["metadata"]["name"] = target.name
    check_namespace(core, target, obj)
    if resource.create_on_update and core.store.get(resource.store_key, target.namespace, target.name) is None:
        return await create(core, call)
    revision = obj["metadata"].get("resourceVersion") or ""
    if not revision and not resource.unconditional_update:
        cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
        # This one check names the plural, not the kind.
        raise invalid(resource.plural, resource.group, target.name, [cause])
    uid = obj["metadata"].get("uid") or ""

    def make(before: Obj) -> Obj:
        if uid and uid != before["metadata"]["uid"]:
            key = resource.registry_key(target.namespace, target.name)
            found = before["metadata"]["uid"]
            raise precondition_failed(resource.plural, resource.group, key, target.name, "UID", uid, found)
        return obj

    return await change(core, call, make, warned, retry=not revision)


async def apply_patch(core: Core, call: Call) -> Answer:
    """Retried on a race unless the patch itself names a resourceVersion."""
    dialect = patch.dialect_of(call.content_type)
    operations, target, resource = call.decoded(), call.target, call.target.resource
    if dialect == patch.APPLY and core.store.get(resource.store_key, target.namespace, target.name) is None:
        return await create(core, replace(call, target=Target(resource, target.namespace)))
    named = isinstance(operations, dict) and bool((operations.get("metadata") or {}).get("resourceVersion"))

    def make(before: Obj) -> Obj:
        seen = full(resource, before)
        patched = patch.apply(call.content_type, seen, operations)
        if complaint := shape.fault(resource, patched):
            text = _encoded(patched).replace("\\", "\\\\").replace('"', '\\"')
            message = f'Invalid value: "{text}": {complaint}'
            details = {"causes": [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]}
            raise ApiRefusal(422, f' "" is invalid: patch: {message}', details=details)
        known, _ = shape.pruned(resource, patched)
        return stripped(resource, known)

    return await change(core, call, make, [], retry=not named)


def _encoded(obj: Any) -> str:
    import json  # noqa: PLC0415 - sorted keys as Go prints them; only this refusal needs it

    return json.dumps(obj, sort_keys=True, separators=(",", ":"))


async def change(core: Core, call: Call, make: Callable[[Obj], Obj], warned: list[str], *, retry: bool) -> Answer:
    """Replace one object by what `make` makes of it, under optimistic concurrency."""
    target, resource = call.target, call.target.resource
    for attempt in range(_ATTEMPTS):
        before = core.find(target)
        proposed = make(before.obj)
        asked = proposed["metadata"].get("resourceVersion") or ""
        if asked and asked != str(before.revision):
            raise conflict(resource.plural, resource.group, target.name, MODIFIED)
        after, warnings = await _admitted(core, call, before, proposed)
        current = core.store.get(resource.store_key, target.namespace, target.name)
        if current is not before:
            if retry and attempt + 1 < _ATTEMPTS:
                continue
            raise conflict(resource.plural, resource.group, target.name, MODIFIED)
        if after == before.obj:
            return Answer(200, full_json(resource, before), warned + warnings)
        if call.dry_run:
            return json_answer(200, full(resource, after), warned + warnings)
        return Answer(200, full_json(resource, keep(core, resource, before, after)), warned + warnings)
    raise AssertionError("the loop returns or raises")


async def _admitted(core: Core, call: Call, before: Stored, proposed: Obj) -> tuple[Obj, list[str]]:
    target, resource = call.target, call.target.resource
    causes = validate.of_update(resource, before.obj, {**before.obj, "metadata": proposed["metadata"]})
    proposed = settled(target, before.obj, filled(resource, proposed))
    review = Review(
        resource,
        "UPDATE",
        call.user,
        target.name,
        target.namespace,
        full(resource, proposed),
        full(resource, before.obj),
        subresource=target.subresource,
        dry_run=call.dry_run,
    )
    await core.admission.mutate(review, normaliser(core, resource))
    assert review.object is not None
    after = settled(target, before.obj, stripped(resource, review.object))
    if target.subresource != "ephemeralcontainers":
        causes += validate.of_update(resource, before.obj, after)
    causes += validate.of_object(resource, after)
    if causes:
        raise invalid(resource.kind, resource.group, target.name, causes)
    review.object = full(resource, after)
    await core.admission.validate(review)
    return after, review.warnings


def settled(target: Target, before: Obj, proposed: Obj) -> Obj:
    """The update that this path may make: each subresource touches its own part, and nobody the server's metadata."""
    old, new = before["metadata"], proposed["metadata"]
    own = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation")
    gone = ("deletionTimestamp", "deletionGracePeriodSeconds")
    meta = {key: value for key, value in new.items() if key not in own + gone and value not in ({}, None)}
    meta = {key: old[key] for key in own + gone if key in old} | meta
    match target.subresource:
        case "status":
            meta["ownerReferences"] = old.get("ownerReferences")
            meta = {key: value for key, value in meta.items() if value is not None}
            return {**before, "metadata": meta, "status": proposed.get("status") or {}}
        case "ephemeralcontainers":
            spec = {**before["spec"], "ephemeralContainers": (proposed.get("spec") or {}).get("ephemeralContainers") or []}
            return {**before, "spec": spec}
        case "resize":
            return _resized(target.name, before, proposed)
    if "status" in target.resource.subresources:
        kept = {**proposed, "metadata": meta, "status": before.get("status")}
        return kept if "status" in before else {key: value for key, value in kept.items() if key != "status"}
    return {**proposed, "metadata": meta}


def _resized(name: str, before: Obj, proposed: Obj) -> Obj:
    def without_cpu_and_memory(spec: Obj) -> list[Obj]:
        listed = []
        for each in spec.get("containers") or []:
            kept = {
                part: {key: value for key, value in amounts.items() if key not in {"cpu", "memory"}}
                for part, amounts in (each.get("resources") or {}).items()
                if part in {"limits", "requests"}
            }
            listed.append({part: amounts for part, amounts in kept.items() if amounts})
        return listed

    if without_cpu_and_memory(before["spec"]) != without_cpu_and_memory(proposed["spec"]):
        cause = Cause("spec", "Forbidden: only cpu and memory resources are mutable", "FieldValueForbidden")
        raise invalid("Pod", "", name, [cause])
    return {**before, "spec": {**before["spec"], "containers": proposed["spec"]["containers"]}}


def keep(core: Core, resource: Resource, before: Stored, after: Obj) -> Stored:
    """Store a new version; an object that was only waiting for its finalizers goes with the last of them."""
    meta = after["metadata"]
    if resource.generation and _spec_of(before.obj) != _spec_of(after):
        meta = {**meta, "generation": meta.get("generation", 1) + 1}
    stored = core.store.replace(resource.store_key, before, {**after, "metadata": meta})
    if meta.get("deletionTimestamp") and before.obj["metadata"].get("finalizers") and not meta.get("finalizers"):
        return core.store.remove(resource.store_key, stored)
    return stored


def _spec_of(obj: Obj) -> Any:
    return obj.get("spec", obj.get("webhooks"))
