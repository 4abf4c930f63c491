"""POST pods/<name>/binding: node name, annotations and labels land on the pod in one write, or not at all."""

from hami.sim.apiserver import shape
from hami.sim.apiserver.admission import Review
from hami.sim.apiserver.call import Answer, Call, Target, json_answer
from hami.sim.apiserver.core import Core
from hami.sim.apiserver.errors import ApiRefusal, Obj, conflict, internal, invalid, precondition_failed, required, success
from hami.sim.apiserver.kinds import BINDINGS, PODS
from hami.sim.apiserver.store import Stored

_BINDING = ("", "v1", "Binding")


def _decoded(call: Call) -> Obj:
    body = call.decoded_object()
    if complaint := shape.fault(call.target.resource, {"metadata": body.get("metadata") or {}}):
        raise ApiRefusal(400, f'Binding in version "v1" cannot be handled as a Binding: {complaint}')
    meta = {"namespace": call.target.namespace, **(body.get("metadata") or {})}
    meta.setdefault("name", call.target.name)
    if call.target.name and meta["name"] != call.target.name:
        raise ApiRefusal(400, "name in URL does not match name in Binding object")
    if not (body.get("target") or {}).get("name"):
        raise invalid("Binding", "", meta["name"], [required("target.name")])
    return {"kind": "Binding", "apiVersion": "v1", "metadata": meta, "target": body["target"]}


async def bind(core: Core, call: Call) -> Answer:
    binding = _decoded(call)
    name, legacy = binding["metadata"]["name"], not call.target.name
    review = Review(
        BINDINGS if legacy else PODS,
        "CREATE",
        call.user,
        name,
        call.target.namespace,
        binding,
        None,
        subresource="" if legacy else "binding",
        kind=_BINDING,
        dry_run=call.dry_run,
    )
    await core.admission.mutate(review, _checked)
    await core.admission.validate(review)
    assert review.object is not None
    stored = core.find(Target(PODS, call.target.namespace, name))
    _check(stored, review.object)
    if not call.dry_run:
        core.store.replace(PODS.store_key, stored, _bound(core, stored.obj, review.object))
    return json_answer(201, success(201), review.warnings)


def _checked(binding: Obj) -> Obj:
    if complaint := shape.fault(PODS, {"metadata": binding.get("metadata") or {}}):
        raise internal(complaint)
    return binding


def _check(stored: Stored, binding: Obj) -> None:
    wanted, meta = binding["metadata"], stored.obj["metadata"]
    name, key = meta["name"], PODS.registry_key(meta["namespace"], meta["name"])
    for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != meta[field]:
            raise precondition_failed("pods", "", key, name, word, wanted[field], meta[field])
    if meta.get("deletionTimestamp"):
        raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if node := stored.obj["spec"].get("nodeName"):
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{node}"')
    if stored.obj["spec"].get("schedulingGates"):
        raise conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")


def _bound(core: Core, pod: Obj, binding: Obj) -> Obj:
    meta = dict(pod["metadata"])
    for field in ("annotations", "labels"):
        if given := binding["metadata"].get(field):
            meta[field] = {**(meta.get(field) or {}), **given}
    status = pod.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": core.stamp()}
    spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
    return {**pod, "metadata": meta, "spec": spec, "status": {**status, "conditions": [*others, scheduled]}}
