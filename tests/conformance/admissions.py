"""op admit and op requests."""

import copy
import re
from typing import Any

import msgspec

from hami.domain.errors import InvalidInput
from hami.domain.pod import Pod
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, mutate
from hami.vendors import identity
from hami.vendors.requests import pod_request
from tests.conformance import ascend
from tests.conformance.filters import (
    neuron_otherwise,
    odd_quantity,
    read_otherwise,
    refusal_explained,
    requests_as_recorded,
    same_requests,
)
from tests.conformance.outcome import PASSED, Outcome, difference, documented, failed, not_covered
from tests.conformance.world import Case, pod_of, snapshot_of, vendors_for

_UNITS = {"": 1, "k": 1000, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def check_requests(case: Case) -> Outcome:
    recorded = case["expect"].get("requests")
    if recorded is None:
        return not_covered("registration order decides")
    try:
        ours = requests_as_recorded(pod_request(pod_of(case["input"]["pod"]), vendors_for(case)))
    except InvalidInput as error:
        fault = refusal_explained(case, error)
        return documented(fault) if fault else failed(difference("refused", error, recorded))
    if not same_requests(ours, recorded):
        fault = "B7" if read_otherwise(case) else "neuron" if neuron_otherwise(case) else ""
        return documented(fault) if fault else failed(difference("requests", ours, recorded))
    return PASSED


def check_admission(case: Case) -> Outcome:
    raw = case["input"]["pod"]
    flags = case["input"].get("flags") or {}
    settings = AdmissionSettings(
        vendors=vendors_for(case),
        scheduler_name=flags.get("scheduler_name", "hami-scheduler"),
        force_overwrite=flags.get("force_overwrite_default_scheduler", True),
    )
    answer = mutate(pod_of(raw), settings, snapshot_of(case))
    ours = _as_recorded(raw, answer)
    recorded = [_without_others(each) for each in case["expect"]["outcomes"]]
    if ours in recorded:
        return PASSED
    if isinstance(answer, Denied) and answer.code == 422 and odd_quantity(case):
        return documented("B7")
    if read_otherwise(case):
        return documented("B7")
    if isinstance(answer, Denied) and ascend.sliced_pair(answer.message):
        return documented("V20.7")
    if ascend.without_blinds(ours) in map(ascend.without_blinds, recorded):
        return documented("ascend-env")
    if isinstance(answer, Denied) and "environment" in answer.message:
        return documented("identity")
    return failed(difference("outcome", ours, recorded))


def _as_recorded(raw: Case, answer: object) -> Case:
    if isinstance(answer, Denied):
        return {"allowed": False, "code": answer.code, "message": answer.message}
    if isinstance(answer, Admitted):
        pod = apply(raw, list(answer.patch))
        return {"allowed": True, "code": 200, "pod": _comparable(pod)}
    return {"allowed": True, "code": 200, "message": getattr(answer, "message", "")}


def _without_others(outcome: Case) -> Case:
    found = dict(outcome)
    if "pod" in found:
        found["pod"] = _comparable(found["pod"])
    return found


def _comparable(pod: Case) -> Case:
    """The pod less what hami adds for identity delivery, with the Ascend variable once and last; quantities as numbers."""
    found = copy.deepcopy(pod)
    found.pop("status", None)
    labels = found["metadata"].get("labels") or {}
    labels.pop(identity.LABEL, None)
    spec = found["spec"]
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        env = ascend.one_blind([each for each in container.get("env") or () if not _ours(each)])
        container.pop("env", None)
        if env:
            container["env"] = env
        resources = container.setdefault("resources", {})
        for side in ("limits", "requests"):
            amounts = resources.pop(side, None)
            if amounts:
                resources[side] = {name: _number(value) for name, value in amounts.items()}
    return found


def _ours(env: Case) -> bool:
    path = ((env.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
    refers = identity.is_identity_env(env["name"]) and path.startswith("metadata.annotations[")
    return refers or (env["name"], env.get("value")) == (identity.VISIBLE_ENV, identity.NO_DEVICE)


def _number(value: object) -> object:
    match = re.fullmatch(r"(-?\d+)(k|Ki|Mi|Gi|)", str(value))
    return int(match[1]) * _UNITS[match[2]] if match else value


def apply(raw: Case, operations: list[Case]) -> Case:
    """RFC 6902 `add`, which is all that the webhook writes; raises where a parent is missing, as the API server does."""
    document: Any = copy.deepcopy(raw)
    for operation in operations:
        assert operation["op"] == "add"
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target = document
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        else:
            target[last] = operation["value"]
    msgspec.convert(document, Pod, strict=False)
    found: Case = document
    return found
