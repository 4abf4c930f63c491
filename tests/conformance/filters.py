"""op filter and dry_run: requests, usage, every node's verdict, the winner, the annotations."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from hami.domain.allocation import ContainerShares, usage_of
from hami.domain.device import Health
from hami.domain.errors import InvalidInput
from hami.domain.request import ContainerKind, PodRequest
from hami.scheduler.decide.place import Placement, Unschedulable, place, place_exactly, score_all
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy, policy_of
from hami.scheduler.decide.reserve import binding_annotations
from hami.vendors import nvidia
from hami.vendors.requests import pod_request
from hami.vendors.vendor import Vendor
from tests.conformance import ascend
from tests.conformance.answer import Answer
from tests.conformance.outcome import PASSED, Outcome, difference, documented, failed
from tests.conformance.places import by_place
from tests.conformance.world import Case, flags_for, pod_of, snapshot_of, vendors_for

_PLAIN = re.compile(r"\d+")
_UNIX = re.compile(r"^\d+$")


def check(case: Case) -> Outcome:
    if case["family"] == "nv_no_candidates_arg":
        return _no_candidates(case)
    try:
        answer = decide(case)
    except InvalidInput as error:
        fault = refusal_explained(case, error)
        return documented(fault) if fault else failed(difference("refusal", error, case["expect"].get("requests")))
    found = [*_requests(case, answer), *_usage(case, answer), *_verdicts(case, answer), *_outcome(case, answer)]
    if not found:
        return documented("B1") if _positions_moved(case, answer) or _padded(case, answer) else PASSED
    fault = _explained(case, answer)
    return documented(fault) if fault else failed(*found)


def decide(case: Case) -> Answer:
    given = case["input"]
    vendors = vendors_for(case)
    request = pod_request(pod_of(given["pod"]), vendors)
    snapshot = snapshot_of(case, dry_run=given["op"] == "dry_run")
    policy = policy_of(request.annotations, flags_for(case))
    names = given.get("node_names") or [raw["metadata"]["name"] for raw in given.get("nodes") or ()]
    answer = Answer(request, snapshot, policy, vendors, names, {}, {}, {}, None)
    if isinstance(policy, BadPolicy) or not request.asks_for_devices:
        return answer
    answer.scores, answer.failed, answer.fits = score_all(snapshot, vendors, request, names, policy, exclude_owner=request.uid)
    planes = Planes(vendors)
    planes.sync(snapshot)
    answer.result = place(snapshot, planes, request, names, policy, exclude_owner=request.uid)
    exact = place_exactly(snapshot, vendors, request, names, policy, exclude_owner=request.uid)
    if isinstance(exact, Placement) and isinstance(answer.result, Placement):
        assert (exact.node, exact.score, exact.containers) == (
            answer.result.node,
            answer.result.score,
            answer.result.containers,
        )
    else:
        assert exact == answer.result
    return answer


def amounts(spec: Case) -> Iterator[tuple[str, str, str, str]]:
    """Container, side, resource, value of everything that a pod asks for."""
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        for side in ("limits", "requests"):
            for name, value in ((container.get("resources") or {}).get(side) or {}).items():
                yield container["name"], side, name, str(value)


def odd_quantity(case: Case) -> bool:
    """Is any quantity of a vendor's resource other than a plain whole number within 32 bits (in MiB, where it is memory)?"""
    factors = {name: 1 for vendor in vendors_for(case) for name in vendor.resources.all()}
    factors |= {vendor.resources.memory: vendor.memory_factor for vendor in vendors_for(case)}
    return any(
        name in factors and (not _PLAIN.fullmatch(value) or int(value) * factors[name] >= 2**31)
        for _, _, name, value in amounts(case["input"]["pod"]["spec"])
    )


def refusal_explained(case: Case, error: InvalidInput) -> str:
    """The entry of docs/differences.md that says why hami refuses what HAMi drops or cuts; empty when none does."""
    if not (error.field.startswith("spec.") and "resources" in error.field):
        return ""
    if "neuroncore" in error.field and "multiple" in error.why:
        return "neuron"
    if "beside" in error.why:
        return "V20.10"
    return "B7" if odd_quantity(case) or "between 1 and 100" in error.why else ""


def neuron_otherwise(case: Case) -> bool:
    """Devices named in requests only, cores on nodes with one core a device, or a single device of more than two cores."""
    asked = [
        (who, side, name, value)
        for who, side, name, value in amounts(case["input"]["pod"]["spec"])
        if name.startswith("aws.amazon.com/")
    ]
    limited = {who for who, side, name, _ in asked if side == "limits" and name.endswith("/neuron")}
    if any(name.endswith("/neuron") and who not in limited for who, _, name, _ in asked):
        return True
    sizes = {
        int(each["aws.amazon.com/neuroncore"]) // int(each["aws.amazon.com/neuron"])
        for each in ((raw.get("status") or {}).get("capacity") or {} for raw in case["input"].get("nodes") or ())
        if int(each.get("aws.amazon.com/neuron", 0)) and "aws.amazon.com/neuroncore" in each
    }
    if 1 in sizes and any(name.endswith("/neuroncore") and value != "1" for _, _, name, value in asked):
        return True
    return max(sizes, default=0) > 2 and any(value in {"1", "2"} for _, _, _, value in asked)


def read_otherwise(case: Case) -> bool:
    return read_otherwise_in(case["input"]["pod"]["spec"], vendors_for(case))


def read_otherwise_in(spec: Case, vendors: tuple[Vendor, ...]) -> bool:
    """Does the pod write memory in bytes (`16Gi`), or a nought that HAMi cannot read (`0.0`)?

    Of MetaX HAMi takes every number for bytes that Kubernetes writes with a letter, `8000` (`8k`) among them.
    """
    names = {vendor.resources.memory for vendor in vendors} - {""}
    lettered = {vendor.resources.memory for vendor in vendors if vendor.word == "Metax-SGPU"} - {""}
    return any(
        (name in names and (value.endswith("i") or re.fullmatch(r"0\.0+", value) is not None))
        or (name in lettered and re.search("[A-Za-z]|[1-9][0-9]*000$", value) is not None)
        for _, _, name, value in amounts(spec)
    )


def requests_as_recorded(request: PodRequest) -> list[dict[str, dict[str, Any]]]:
    return [
        {
            each.vendor: {
                "nums": each.count,
                "mem": each.memory,
                "pct": 101 if each.memory_percent is None else each.memory_percent,
                "cores": each.cores,
                "type": each.vendor,
            }
            for each in container.requests
        }
        for container in request.containers
    ]


def same_requests(ours: list[dict[str, dict[str, Any]]], recorded: list[dict[str, dict[str, Any]]]) -> bool:
    """A whole Neuron device is asked for without saying how many cores that is; HAMi says what it learned from some node."""
    plain = [dict(each) for each in recorded]
    for mine, each in zip(ours, plain, strict=True):
        if "AWSNeuron" in each and mine.get("AWSNeuron", {}).get("cores") == 0:
            each["AWSNeuron"] = each["AWSNeuron"] | {"cores": 0}
    return ours == plain


def _requests(case: Case, answer: Answer) -> list[str]:
    recorded = case["expect"].get("requests")
    ours = requests_as_recorded(answer.request)
    return [] if recorded is None or same_requests(ours, recorded) else [difference("requests", ours, recorded)]


def _usage(case: Case, answer: Answer) -> list[str]:
    recorded = case["expect"].get("usage")
    if recorded is None or answer.result is None:
        return []
    ours = {}
    for name in answer.names:
        node = answer.snapshot.nodes.get(name)
        rows = sorted(
            (each.device.uuid, each.used.slots, each.used.memory, each.used.cores, each.health is Health.HEALTHY)
            for each in (node.devices if node else ())
            if each.used.slots or each.health is not Health.HEALTHY or each.mig_in_use
        )
        if rows:
            ours[name] = rows
    theirs = {
        name: sorted((each["id"], each["used"], each["usedmem"], each["usedcores"], each["health"]) for each in rows)
        for name, rows in recorded.items()
        if name in answer.names
    }
    return [] if ours == theirs else [difference("usage", ours, theirs)]


Rows = list[list[tuple[str, str, int, int]]]


def plain(containers: tuple[ContainerShares, ...]) -> dict[str, Rows]:
    """Per vendor word and container, as the recordings have it."""
    words = dict.fromkeys(share.vendor for each in containers for share in each.shares)
    return {
        word: [
            [(share.uuid, share.model, share.memory, share.cores) for share in each.shares if share.vendor == word]
            for each in containers
        ]
        for word in words
    }


def _recorded_devices(case: Case, alternative: Case) -> dict[str, Rows]:
    words = {each.word for each in vendors_for(case)}
    return {
        word: rows
        for word, raws in alternative["devices"].items()
        if word in words and any(rows := [[(d[0], d[1], d[2], d[3]) for d in container] for container in raws or ()])
    }


def _filled(rows: dict[str, Rows]) -> dict[str, Rows]:
    return {word: [each for each in containers if each] for word, containers in rows.items()}


def _moved(case: Case) -> bool:
    return any(tag.startswith("hami_bug:B1") for tag in case["tags"])


def _same_node(case: Case, answer: Answer, name: str, alternative: Case) -> bool:
    if "failed" in alternative:
        return bool(answer.failed.get(name) == alternative["failed"])
    if name not in answer.scores:
        return False
    ours, theirs = plain(answer.fits[name]), _recorded_devices(case, alternative)
    if _moved(case):
        ours, theirs = _filled(ours), _filled(theirs)
    close = abs(np.float32(alternative["score"]) - np.float32(answer.scores[name])) <= 1e-6 * max(1, abs(alternative["score"]))
    return bool(ours == theirs and close)


def _verdicts(case: Case, answer: Answer) -> list[str]:
    if answer.result is None:
        return []
    found = []
    for name, alternatives in case["expect"]["nodes"].items():
        if not any(_same_node(case, answer, name, each) for each in alternatives):
            ours = answer.failed.get(name) or (answer.scores.get(name), plain(answer.fits.get(name, ())))
            found.append(difference(f"nodes[{name}]", ours, alternatives))
    return found


def _outcome(case: Case, answer: Answer) -> list[str]:
    expect = case["expect"]
    if isinstance(answer.policy, BadPolicy):
        text = f"calcScore failed {answer.policy.message} for pod {answer.request.name}"
        return (
            []
            if any(each.get("error") == text for each in expect["outcomes"])
            else [difference("error", text, expect["outcomes"])]
        )
    if answer.result is None:
        same = any(each.get("node_names") == case["input"].get("node_names") for each in expect["outcomes"])
        return [] if same else [difference("echo", answer.names, expect["outcomes"])]
    if isinstance(answer.result, Unschedulable):
        same = any(each.get("failed_nodes") == answer.result.reasons for each in expect["outcomes"])
        return [] if same else [difference("failed_nodes", answer.result.reasons, expect["outcomes"])]
    winner = answer.result.node
    if "best" not in expect:
        return [difference("winner", winner, expect["outcomes"])]
    if winner not in expect["best"][0]:
        return [difference("best", winner, expect["best"])]
    recorded = [each for each in expect["outcomes"] if winner in (each.get("node_names") or each.get("nodes") or ())]
    if not recorded:
        return [difference("node_names", winner, expect["outcomes"])]
    found = [_written(case, answer, answer.result, each) for each in recorded if "annotations" in each]
    return min(found, key=len, default=[])


def _written(case: Case, answer: Answer, result: Placement, recorded: Case) -> list[str]:
    node = answer.snapshot.nodes[result.node]
    ours = binding_annotations(
        result.containers, answer.vendors, reservation_id="r", node=node, now_s=1_700_000_000, request=answer.request
    )
    device_keys = {key for vendor in answer.vendors for key in (vendor.keys.allocated, vendor.keys.to_allocate)}
    found = []
    for key, value in recorded["annotations"].items():
        mine = ours.get(key, "")
        if not mine and key in _padding(answer, result):
            continue
        if value in {"<unix_s>", "<unix_ns>"}:
            same = bool(_UNIX.match(mine))
        elif _moved(case) and key in device_keys:
            same = [each for each in mine.split(";") if each] == [each for each in value.split(";") if each]
            same = same and mine.count(";") == len(answer.request.containers)
        elif _moved(case) and key == nvidia.KEYS.mig:
            same = re.sub(r'"containerIndex":\d+', "", mine) == re.sub(r'"containerIndex":\d+', "", value)
        else:
            same = mine == value
        if not same:
            found.append(difference(f"annotations[{key}]", mine, value))
    if not _moved(case) and not any(tag.endswith("B5") for tag in case["tags"]):
        held = {uuid: (each.memory, each.cores, each.slots) for uuid, each in usage_of(result.containers).items()}
        theirs = {d[0]: (d[2], d[3], d[4]) for rows in recorded["reserved"].values() for container in rows for d in container}
        if held != theirs:
            found.append(difference("reserved", held, theirs))
    return found


def _padding(answer: Answer, result: Placement) -> set[str]:
    """Keys of vendors that the pod does not ask: HAMi writes empty lists there where their cards are on the node."""
    asked = {share.vendor for each in result.containers for share in each.shares}
    others = [vendor for vendor in answer.vendors if vendor.word not in asked]
    marks = {"CAMBRICON_DSMLU_ASSIGNED"} if "MLU" not in asked else set()
    marks |= {f"huawei.com/{vendor.word}" for vendor in others}
    marks |= set() if "Metax-SGPU" in asked else {"metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time"}
    marks |= set() if any(word.startswith("Ascend") for word in asked) else {"predicate-time"}
    return marks | {key for vendor in others for key in (vendor.keys.allocated, vendor.keys.to_allocate)}


def _padded(case: Case, answer: Answer) -> bool:
    if not isinstance(answer.result, Placement):
        return False
    keys = _padding(answer, answer.result)
    return any(keys & set(each.get("annotations") or ()) for each in case["expect"]["outcomes"])


def _init_units(containers: tuple[ContainerShares, ...]) -> bool:
    """Does an init container hold several units of one card (MIG)? HAMi then counts only one of them."""
    return any(
        each.kind is ContainerKind.INIT and len({share.uuid for share in each.shares}) < len(each.shares) for each in containers
    )


def _positions_moved(case: Case, answer: Answer) -> bool:
    """HAMi put a container's devices at another container's place; ours kept each at its own."""
    if not _moved(case) or not isinstance(answer.result, Placement):
        return False
    alternatives = case["expect"]["nodes"][answer.result.node]
    return plain(answer.result.containers) not in [_recorded_devices(case, each) for each in alternatives if "devices" in each]


def _explained(case: Case, answer: Answer) -> str:
    """The entry of docs/differences.md that covers this case; empty when none does."""
    tags = set(case["tags"])
    if read_otherwise(case):
        return "B7"
    if neuron_otherwise(case):
        return "neuron"
    if _named_otherwise(case, answer):
        return "V20.2"
    if ("hami_bug_maybe:V20.3_positional" in tags and _runs_by_place(answer)) or _linked_by_place(case, answer):
        return "V20.3"
    if "hami_bug_maybe:B5" in tags and not _usage(case, answer):
        return "B5"
    if any(tag.endswith(":B3") for tag in tags) and any("ResourceQuotaNotFit" in each for each in answer.failed.values()):
        return "B3"
    if "hami_bug_maybe:B4" in tags and all(
        name in answer.scores or _same_node(case, answer, name, each[0]) for name, each in case["expect"]["nodes"].items()
    ):
        return "B4"
    if isinstance(answer.result, Placement) and _init_units(answer.result.containers) and not _verdicts(case, answer):
        return "init-units"
    if "sort_unstable_over_12" in tags and all(
        _sorted(plain(answer.fits.get(name, ()))) == _sorted(_recorded_devices(case, each[0]))
        for name, each in case["expect"]["nodes"].items()
        if "devices" in each[0]
    ):
        return "sort"
    nodes = case["expect"]["nodes"]
    differing = [name for name, each in nodes.items() if not any(_same_node(case, answer, name, a) for a in each)]
    return ascend.explained(
        answer.request,
        {name: answer.snapshot.nodes[name] for name in differing},
        {name: plain(answer.fits.get(name, ())) for name in differing},
        {name: [_recorded_devices(case, each) for each in nodes[name] if "devices" in each] for name in differing},
    )


def _runs_by_place(answer: Answer) -> bool:
    """Several Neuron devices under mutex: HAMi sorts by load and takes what then lies side by side."""
    mutex = isinstance(answer.policy, SchedulingPolicy) and answer.policy.mutex
    return mutex and any(
        each.vendor == "AWSNeuron" and each.count > 1 for container in answer.request.containers for each in container.requests
    )


def _linked_by_place(case: Case, answer: Answer) -> bool:
    """Is every node answered as recorded once cards are linked by their place instead of their index?"""
    other = by_place(answer)
    nodes = case["expect"]["nodes"].items()
    return other is not None and all(any(_same_node(case, other, name, a) for a in each) for name, each in nodes)


def _named_otherwise(case: Case, answer: Answer) -> bool:
    """HAMi does not see the cards of a node because their model does not contain the vendor's word; else all is the same."""
    differing = [
        name for name, each in case["expect"]["nodes"].items() if not any(_same_node(case, answer, name, a) for a in each)
    ]
    words = {asked.vendor.lower() for container in answer.request.containers for asked in container.requests}
    return bool(differing) and all(
        case["expect"]["nodes"][name] == [{"failed": "NodeInsufficientDevice"}]
        and any(
            each.device.vendor.lower() in words and each.device.vendor.lower() not in each.device.model.lower()
            for each in answer.snapshot.nodes[name].devices
        )
        for name in differing
    )


def _sorted(rows: dict[str, Rows]) -> dict[str, list[list[tuple[str, str, int, int]]]]:
    return {word: sorted(map(sorted, containers)) for word, containers in rows.items()}


def _no_candidates(case: Case) -> Outcome:
    """HAMi's process panics; ours has nothing to choose from and says so."""
    vendors = vendors_for(case)
    snapshot = snapshot_of(case)
    planes = Planes(vendors)
    planes.sync(snapshot)
    result = place(snapshot, planes, pod_request(pod_of(case["input"]["pod"]), vendors), [], SchedulingPolicy())
    return documented("B9") if isinstance(result, Unschedulable) and not result.reasons else failed("placed without candidates")
