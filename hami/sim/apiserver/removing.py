"""DELETE and eviction: preconditions, admission, grace, finalizers."""

from datetime import timedelta

import msgspec

from hami.sim.apiserver.admission import Review
from hami.sim.apiserver.call import Answer, Call, Target, json_answer
from hami.sim.apiserver.core import Core, full, full_json
from hami.sim.apiserver.errors import ApiRefusal, Obj, conflict, details_of, success
from hami.sim.apiserver.kinds import NAMESPACES, RESOURCES
from hami.sim.apiserver.selectors import selector
from hami.sim.apiserver.store import Stored


def _options(call: Call) -> Obj:
    options: Obj = {}
    if call.body:
        decoded = call.decoded()
        options = dict(decoded.get("deleteOptions") or decoded) if isinstance(decoded, dict) else {}
    if "gracePeriodSeconds" in call.query:
        options["gracePeriodSeconds"] = int(call.query["gracePeriodSeconds"])
    return options


def _check_preconditions(target: Target, stored: Stored, options: Obj) -> None:
    wanted, meta = options.get("preconditions") or {}, stored.obj["metadata"]
    for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(key) and wanted[key] != meta[key]:
            why = (
                f"the {word} in the precondition ({wanted[key]}) does not match the {word} in record ({meta[key]}). "
                "The object might have been deleted and then recreated"
            )
            # Deletion names the kind where every other conflict names the plural.
            raise conflict(target.resource.kind, target.resource.group, target.name, why)


async def _admitted(core: Core, call: Call, target: Target, stored: Stored, options: Obj) -> list[str]:
    seen: Obj = {key: options[key] for key in ("gracePeriodSeconds", "propagationPolicy") if key in options}
    review = Review(
        target.resource,
        "DELETE",
        call.user,
        target.name,
        target.namespace,
        None,
        full(target.resource, stored.obj),
        dry_run=call.dry_run,
        options=seen,
    )
    await core.admission.mutate(review, lambda obj: obj)
    await core.admission.validate(review)
    return review.warnings


def _grace(stored: Stored, options: Obj) -> int:
    """How long a pod may take; only a pod that runs on a node, and has not finished, is given time."""
    spec, status = stored.obj.get("spec") or {}, stored.obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    asked = options.get("gracePeriodSeconds")
    seconds: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return seconds


def _marked(core: Core, target: Target, stored: Stored, grace: int) -> Stored:
    """The object with the time by which it should be gone."""
    meta = dict(stored.obj["metadata"])
    due = (core.now() + timedelta(seconds=grace)).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta |= {"deletionTimestamp": due, "deletionGracePeriodSeconds": grace}
    if target.resource.generation:
        meta["generation"] = meta.get("generation", 1) + 1
    return core.store.replace(target.resource.store_key, stored, {**stored.obj, "metadata": meta})


def remove(core: Core, target: Target, stored: Stored, options: Obj) -> tuple[Stored, bool]:
    """Delete or mark one object; whether it is gone."""
    resource, meta = target.resource, stored.obj["metadata"]
    grace = _grace(stored, options) if resource.kind == "Pod" else 0
    if grace > 0:
        shorter = meta.get("deletionGracePeriodSeconds")
        if meta.get("deletionTimestamp") and (shorter is None or grace >= shorter):
            return stored, False
        return _marked(core, target, stored, grace), False
    if not meta.get("deletionTimestamp") and options.get("gracePeriodSeconds") != 0 and resource.kind == "Pod":
        stored = _marked(core, target, stored, 0)
    if meta.get("finalizers"):
        return (stored if stored.obj["metadata"].get("deletionTimestamp") else _marked(core, target, stored, 0)), False
    if resource is NAMESPACES:
        _empty(core, target.name)
    return core.store.remove(resource.store_key, stored), True


def _empty(core: Core, namespace: str) -> None:
    for storage in {each.store_key for each in RESOURCES if each.namespaced}:
        for key, stored in list(core.store.shelf(storage).items.items()):
            if key[0] == namespace:
                core.store.remove(storage, stored)


async def delete(core: Core, call: Call) -> Answer:
    target, options = call.target, _options(call)
    stored = core.find(target)
    _check_preconditions(target, stored, options)
    warnings = await _admitted(core, call, target, stored, options)
    stored = core.find(target)
    _check_preconditions(target, stored, options)
    if call.dry_run:
        return Answer(200, full_json(target.resource, stored), warnings)
    left, gone = remove(core, target, stored, options)
    if target.resource.kind == "Pod" or not gone:
        return Answer(200, full_json(target.resource, left), warnings)
    details = details_of(target.name, target.resource.plural, target.resource.group) | {"uid": stored.obj["metadata"]["uid"]}
    return json_answer(200, success(200, details), warnings)


async def delete_collection(core: Core, call: Call) -> Answer:
    resource, options = call.target.resource, _options(call)
    labels, fields = call.query.get("labelSelector", ""), call.query.get("fieldSelector", "")
    matches = selector(resource, labels, fields, call.target.namespace)
    chosen = [each for each in core.store.shelf(resource.store_key).in_order() if matches(each.obj)]
    for stored in chosen:
        target = Target(resource, *stored.key)
        await _admitted(core, call, target, stored, options)
        current = core.store.get(resource.store_key, *stored.key)
        if current is not None and not call.dry_run:
            remove(core, target, current, options)
    meta = {"resourceVersion": str(core.store.revision)}
    head = msgspec.json.encode({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta})
    return Answer(200, head[:-1] + b',"items":[' + b",".join(each.json for each in chosen) + b"]}")


async def evict(core: Core, call: Call) -> Answer:
    """POST pods/<name>/eviction: a deletion that a disruption budget could refuse; none exists here."""
    body = call.decoded_object()
    named = (body.get("metadata") or {}).get("name") or call.target.name
    if named != call.target.name:
        raise ApiRefusal(400, "name in URL does not match name in Eviction object")
    target, options = Target(call.target.resource, call.target.namespace, call.target.name), _options(call)
    stored = core.find(target)
    _check_preconditions(target, stored, options)
    await _admitted(core, call, target, stored, options)
    if not call.dry_run:
        remove(core, target, core.find(target), options if "gracePeriodSeconds" in options else {})
    return json_answer(201, success(201))
