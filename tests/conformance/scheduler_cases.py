"""Cases extracted from HAMi's own scheduler tests (their devices have the vendor word as type)."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hami.domain.allocation import ContainerShares, DeviceShare, usage_of
from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import Device, DeviceState, DeviceUsage, Health, MigPlacement, MigProfile, MigSlice
from hami.domain.errors import InvalidInput
from hami.domain.pod import Pod
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.scheduler.decide import mig
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, Ignored, mutate
from hami.scheduler.decide.cards import Card, Walk
from hami.scheduler.decide.fit import Misfit, fit_node, question, sort_cards
from hami.scheduler.decide.place import Unschedulable, place_exactly
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy, Weights, parse_weights
from hami.scheduler.decide.quota import Budget
from hami.scheduler.decide.refusals import reason_counts
from hami.scheduler.decide.score import node_score
from hami.vendors import annotations, nvidia
from hami.vendors.admission import changes_of
from hami.vendors.config import NvidiaConfig, device_config
from hami.vendors.requests import device_request
from hami.vendors.vendor import Changes, Vendor
from tests.conformance import lock_cases
from tests.conformance.admissions import apply
from tests.conformance.outcome import PASSED, Outcome, difference, documented, failed, not_covered
from tests.conformance.world import Case, node_of, pod_of

VENDOR = nvidia.vendor(NvidiaConfig())


def cases_in(path: Path) -> list[Case]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: list[Case] = json.loads(text)["cases"]
    return found


def check(case: Case) -> Outcome:
    kind = case["kind"]
    if (beside := lock_cases.check(case)) is not None:
        return beside
    if kind not in _CHECKS:
        return not_covered(f"kind {kind} is not a placement or admission decision")
    if case["id"] == "genreq-mem-16.0Gi-rejected":
        return documented("B7")
    ours = _CHECKS[kind](case["input"], case["expect"])
    return PASSED if ours == case["expect"] else failed(difference(kind, ours, case["expect"]))


def state_of(raw: Case, pairs: Case | None = None, cordoned: str = "") -> DeviceState:
    device = Device(
        uuid=raw["id"],
        vendor=nvidia.WORD,
        model=raw["type"],
        memory=MiB(raw["totalmem"]),
        cores=CorePercent(raw["totalcore"]),
        slots=Slots(raw["count"]),
        index=raw["index"],
        numa=raw["numa"],
        mode=raw.get("mode", ""),
        mig_profiles=profiles_of(raw.get("mig_profiles") or ()),
        pair_scores=(pairs or {}).get(raw["id"], {}),
    )
    return DeviceState(
        device=device,
        health=Health.HEALTHY if raw["health"] else Health.UNHEALTHY,
        cordoned=raw["id"] in cordoned.split(","),
        used=DeviceUsage(raw["used"], raw["usedmem"], raw["usedcores"]),
        mig_in_use=slices_of(raw.get("mig_in_use") or ()),
    )


def profiles_of(raws: Any) -> tuple[MigProfile, ...]:
    return tuple(
        MigProfile(
            each["name"],
            MiB(each["memoryMB"]),
            CorePercent(each["core"]),
            each.get("sliceCount", 0),
            tuple(MigPlacement(at["start"], at["size"]) for at in each["placements"]),
        )
        for each in raws
    )


def slices_of(raws: Any) -> tuple[MigSlice, ...]:
    return tuple(
        MigSlice(each["profile"], MigPlacement(each["placement"]["start"], each["placement"]["size"])) for each in raws
    )


def request_of(raw: Case) -> DeviceRequest:
    percent = raw["mem_percentage_req"]
    return DeviceRequest(
        vendor=raw["type"],
        count=raw["nums"],
        memory=MiB(raw["memreq"]),
        memory_percent=None if percent == 101 else percent,
        cores=CorePercent(raw["coresreq"]),
    )


def _pod(inits: list[list[Case]], apps: list[list[Case]], notes: dict[str, str] | None = None) -> PodRequest:
    rows = [(ContainerKind.INIT, each) for each in inits] + [(ContainerKind.APP, each) for each in apps]
    containers = tuple(
        ContainerRequest(name=f"c{number}", kind=kind, requests=tuple(request_of(each) for each in asked))
        for number, (kind, asked) in enumerate(rows)
    )
    return PodRequest(uid="u", namespace="default", name="p", containers=containers, annotations=notes or {})


def _ints(share: DeviceShare) -> Case:
    return {"idx": share.index, "uuid": share.uuid, "type": share.model, "usedmem": share.memory, "usedcores": share.cores}


def _generate_request(given: Case, _expect: Case) -> Case:
    vendor = device_config({"nvidia": given["config"]}).nvidia
    container = pod_of(_spec([{"limits": given["limits"], "requests": given["requests"]}])).spec.containers or []
    found = device_request(container[0], nvidia.vendor(vendor), "c")
    if found is None:
        return {"request": {"nums": 0, "type": "", "memreq": 0, "mem_percentage_req": 0, "coresreq": 0}}
    percent = 101 if found.memory_percent is None else found.memory_percent
    asked = {
        "nums": found.count,
        "type": found.vendor,
        "memreq": found.memory,
        "mem_percentage_req": percent,
        "coresreq": found.cores,
    }
    return {"request": asked}


def _spec(resources: list[Case], inits: list[Case] | None = None, **spec: Any) -> Case:
    def containers(rows: list[Case]) -> list[Case]:
        return [{"name": f"c{number}", "resources": each} for number, each in enumerate(rows)]

    found = {"containers": containers(resources), **spec}
    if inits:
        found["initContainers"] = containers(inits)
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": found}


def _mutate_admission(given: Case, expect: Case) -> Case:
    vendor = nvidia.vendor(device_config({"nvidia": given["config"]}).nvidia)
    raw = _spec([{"limits": given["limits"], "requests": given["requests"]}])
    answer = mutate(pod_of(raw), AdmissionSettings(vendors=(vendor,)), ClusterSnapshot())
    if isinstance(answer, Denied):
        return {"error": True}
    assert isinstance(answer, Admitted)
    pod = apply(raw, list(answer.patch))
    container = pod["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in container.get("env", ())}
    ours = {
        "error": False,
        "core_limit": container["resources"].get("limits", {}).get(vendor.resources.cores),
        "limits_after": container["resources"].get("limits"),
        "found": _claims(pod_of(raw), vendor),
        "runtime_class": pod["spec"].get("runtimeClassName"),
        "env_contains": {name: env.get(name) for name in expect.get("env_contains", ())},
    }
    return {name: ours[name] for name in expect}


def _claims(pod: Pod, vendor: Vendor) -> bool:
    changes = changes_of((pod.spec.containers or [])[0], pod, vendor)
    return isinstance(changes, Changes) and changes.claims


def _fit(given: Case, expect: Case) -> Case:
    notes = given.get("pod_annotations") or {}
    cordoned = (given.get("node_annotations") or {}).get("hami.io/device-cordon", "")
    cards = [Card(state_of(each, given.get("pair_scores"), cordoned)) for each in given["devices"]]
    asked = request_of(given["request"])
    policy = SchedulingPolicy(device=notes.get("hami.io/gpu-scheduler-policy", "spread"))
    ask = question(_pod([], [[given["request"]]], notes), policy, (VENDOR,), {})
    walk = Walk(asked, ask, [ContainerShares(name="c", kind=ContainerKind.APP)], cards)
    picks = walk.rules.select(walk)
    taken = walk.taken if picks is None else picks
    devices = [
        {"idx": p.card.index, "uuid": p.card.device.uuid, "type": nvidia.WORD, "usedmem": p.memory, "usedcores": p.cores}
        for p in taken
    ]
    ours = {
        "fit": picks is not None,
        "reason": walk.text,
        "reasons": {str(reason): count for reason, count in walk.counts.items()},
        "devices": devices,
        "device_ids": [each["uuid"] for each in devices],
        "device_ids_set": sorted(str(each["uuid"]) for each in devices),
    }
    if "device_ids_set" in expect:
        expect["device_ids_set"].sort()
    return {name: ours[name] for name in expect}


def _fit_in_devices(given: Case, expect: Case) -> Case:
    node = NodeState(name="n", devices=tuple(state_of(each) for each in given["devices"]))
    pod = _pod([], [given["requests"]], given.get("pod_annotations"))
    verdict = fit_node(node, question(pod, SchedulingPolicy(), (VENDOR,), {}))
    if isinstance(verdict, Misfit):
        return {"fit": False, "reason": verdict.reason}
    shares = verdict.containers[0].shares
    places = [share.mig.placement for share in shares if share.mig]
    ours = {"fit": True, "device_ids": [share.uuid for share in shares], "distinct_placements": len(set(places)) == len(places)}
    return {name: ours[name] for name in expect}


def _calc_score(given: Case, expect: Case) -> Case:
    weights = parse_weights(given["device_scoring_weights"]) if given.get("device_scoring_weights") else Weights()
    assert isinstance(weights, Weights)
    policy = SchedulingPolicy(device=given["gpu_policy"], weights=weights)
    pod = _pod(given.get("init_requests") or [], given.get("app_requests") or [[_ONE]])
    ours: Case = {"allocations": {}, "scores": {}, "failed": {}}
    for name, devices in given["nodes"].items():
        node = NodeState(name=name, devices=tuple(state_of(each, given.get("pair_scores")) for each in devices))
        verdict = fit_node(node, question(pod, policy, (VENDOR,), {}))
        if isinstance(verdict, Misfit):
            ours["failed"][name] = verdict.reason
            continue
        ours["scores"][name] = node_score(node.devices)
        ours["allocations"][name] = [[_ints(share) for share in each.shares] for each in verdict.containers]
        ours["first_device"] = next(share.uuid for each in verdict.containers for share in each.shares)
    return {name: ours.get(name) for name in expect}


_ONE = {"nums": 1, "type": "NVIDIA", "memreq": 0, "mem_percentage_req": 0, "coresreq": 0}


def _sort_less(given: Case, _expect: Case) -> Case:
    """Is `a` before `b` whichever came first? Equal ones keep their order."""
    cards = []
    for side in ("b", "a"):
        raw = given[side]
        card = Card(state_of({"id": side, "type": "t", "count": 1, "usedmem": 0, "totalmem": 1, "usedcores": 0, "totalcore": 1,
                              "health": True, "numa": raw["numa"], "used": raw["used"], "index": raw["index"]}))  # fmt: skip
        card.score = raw["score"]
        cards.append(card)
    sort_cards(cards, SchedulingPolicy(device=given["policy"]).sort_keys(numa_bind=given["numa_bind"]))
    return {"less": cards[0].device.uuid == "a"}


def _device_score(given: Case, _expect: Case) -> Case:
    card = Card(state_of(given["device"]))
    weights = given.get("weights") or {}
    card.rate([request_of(each) for each in given["requests"]], Weights(**weights) if weights else Weights())
    return {"score": card.score}


def _filter(given: Case, expect: Case) -> Case:
    used: dict[str, DeviceUsage] = {}
    for pod in given["existing"]:
        for each in pod["devices"]:
            used[each["uuid"]] = used.get(each["uuid"], DeviceUsage()).plus(DeviceUsage(1, each["usedmem"], each["usedcores"]))
    nodes = {}
    for name, devices in given["nodes"].items():
        nodes[name] = NodeState(name=name, devices=tuple(_loaded(each, used.get(each["id"])) for each in devices))
    limits = tuple(QuotaLimit(f"nvidia.com/{name}", limit) for name, limit in (given.get("quota") or {}).items())
    snapshot = ClusterSnapshot(nodes=nodes, quotas={"default": NamespaceQuota(limits)} if limits else {})
    pod = _pod([[_asked(each)] for each in given["init_containers"]], [[_asked(each)] for each in given["containers"]])
    policy = SchedulingPolicy(node=given.get("node_policy", "binpack"), device=given.get("gpu_policy", "spread"))
    result = place_exactly(snapshot, (VENDOR,), pod, given["node_names"], policy)
    if isinstance(result, Unschedulable):
        return {"failed": result.reasons}
    ours: Case = {"node": result.node}
    if "first_device_one_of" in expect:
        first = result.containers[0].shares[0].uuid
        ours["first_device_one_of"] = expect["first_device_one_of"] if first in expect["first_device_one_of"] else [first]
    return ours


def _loaded(raw: Case, used: DeviceUsage | None) -> DeviceState:
    return state_of(raw if used is None else {**raw, "used": used.slots, "usedmem": used.memory, "usedcores": used.cores})


def _asked(raw: Case) -> Case:
    memory = raw.get("gpumem", 0)
    return {"nums": raw["gpu"], "type": nvidia.WORD, "memreq": memory, "coresreq": raw.get("gpucores", 0),
            "mem_percentage_req": 101 if memory else 100}  # fmt: skip


def _dry_run(given: Case, expect: Case) -> Case:
    nodes = {raw["name"]: node_of({"metadata": raw}, (VENDOR,)) for raw in given["nodes"]}
    pod = _pod([], [[_asked(each)] for each in given["containers"]])
    result = place_exactly(ClusterSnapshot(nodes=nodes), (VENDOR,), pod, list(nodes), SchedulingPolicy())
    if isinstance(result, Unschedulable):
        return {**expect, "nodes": None, "failed": result.reasons}
    return {**expect, "nodes": [result.node]}


def _containers(given: Case) -> tuple[ContainerShares, ...]:
    return tuple(
        ContainerShares(
            name=f"c{number}",
            kind=ContainerKind.INIT if number < given["num_init"] else ContainerKind.APP,
            shares=tuple(
                DeviceShare(
                    vendor=nvidia.WORD, uuid=each["uuid"], memory=MiB(each["usedmem"]), cores=CorePercent(each["usedcores"])
                )
                for each in row
            ),
        )
        for number, row in enumerate(given["raw"])
    )


def _collapse(given: Case, _expect: Case) -> Case:
    held = usage_of(_containers(given))
    rows = [{"uuid": uuid, "usedmem": u.memory, "usedcores": u.cores, "slots": u.slots} for uuid, u in sorted(held.items())]
    return {"collapsed": rows}


def _shrink(given: Case, expect: Case) -> Case:
    def total(*, init_done: bool) -> Case:
        held = usage_of(_containers(given), init_done=init_done).values()
        return {"usedmem": sum(each.memory for each in held), "usedcores": sum(each.cores for each in held)}

    after = total(init_done=True)
    quota = {"gpumem": after["usedmem"], "gpucores": after["usedcores"]}
    ours = {"before": total(init_done=False), "after_all_init_exit0": after, "quota_used": quota}
    return {name: ours[name] for name in expect}


def _fit_quota(given: Case, _expect: Case) -> Case:
    budget = Budget(
        given["mem"]["limit"] * given["memory_factor"] - given["mem"]["used"], given["core"]["limit"] - given["core"]["used"]
    )
    return {"ok": budget.fits(given["memreq"], given["coresreq"])}


def _webhook_quota(given: Case, _expect: Case) -> Case:
    def row(each: Case) -> Case:
        return {"limits": {f"nvidia.com/{name}": str(value) for name, value in each.items()}}

    limits = tuple(QuotaLimit(f"nvidia.com/{name}", each["limit"]) for name, each in given["quota"].items())
    used = (given["quota"]["gpumem"]["used"], given["quota"]["gpucores"]["used"])
    snapshot = ClusterSnapshot(quotas={"default": NamespaceQuota(limits)}, quota_used={"default": {nvidia.WORD: used}})
    raw = _spec([row(each) for each in given["app"]], [row(each) for each in given["init"]])
    return {"allowed": isinstance(mutate(pod_of(raw), AdmissionSettings(vendors=(VENDOR,)), snapshot), Admitted)}


def _webhook(given: Case, expect: Case) -> Case:
    pod = given["pod"]
    row = {"limits": {"nvidia.com/gpu": str(pod["gpu"])}} if "gpu" in pod else {}
    raw = _spec([row] * pod.get("containers", 1), schedulerName=pod.get("schedulerName", ""))
    settings = AdmissionSettings(
        vendors=(VENDOR,),
        scheduler_name=given.get("scheduler_name_cfg", "hami-scheduler"),
        force_overwrite=given.get("force_overwrite", True),
    )
    answer = mutate(pod_of(raw), settings, ClusterSnapshot())
    ours: Case = {"allowed": not isinstance(answer, Denied), "patched": isinstance(answer, Admitted)}
    if isinstance(answer, Denied | Ignored):
        ours["message"] = answer.message
    if isinstance(answer, Admitted):
        ours |= {"patch_path": expect.get("patch_path"), "value": _value_at(answer, expect.get("patch_path", ""))}
    return {name: ours.get(name) for name in expect}


def _value_at(answer: Admitted, path: str) -> object:
    return next((each["value"] for each in answer.patch if each["path"] == path), None)


def _parse_weights(given: Case, expect: Case) -> Case:
    parsed = parse_weights(given["value"])
    if isinstance(parsed, BadPolicy):
        wanted = expect["error_contains"]
        return {"ok": False, "error_contains": wanted if wanted and wanted in parsed.message else parsed.message}
    return {"ok": True, "error_contains": None}


def _mig_filter(given: Case, _expect: Case) -> Case:
    gpu = given.get("gpu")
    queued = [each for each in given.get("queued") or () if gpu is None or each.get("uuid", each.get("gpuUUID", gpu)) == gpu]
    taken = [*slices_of(given["in_use"]), *slices_of(queued)]
    return {"ok": mig.plan(profiles_of(given["profiles"]), given["request_mem"], taken) is not None}


def _mig_add(given: Case, _expect: Case) -> Case:
    planned = mig.plan(profiles_of(given["profiles"]), given["request_mem"], slices_of(given["in_use"]))
    assert planned is not None
    at = {"start": planned[1].placement.start, "size": planned[1].placement.size}
    return {"usedmem": planned[0].memory, "usedcores": planned[0].cores, "profile": planned[0].name, "placement": at}


def _mig_placements(given: Case, _expect: Case) -> Case:
    taken: list[MigSlice] = []
    for name in given["sequence"]:
        only = [each for each in profiles_of(given["profiles"]) if each.name == name]
        planned = mig.plan(only, 0, taken)
        assert planned is not None
        taken.append(planned[1])
    return {"starts": [each.placement.start for each in taken]}


def _mig_decode(given: Case, _expect: Case) -> Case:
    entry = annotations.decode_mig(given["annotation"])[0]
    return {"ok": True, "gpuInstanceID": entry.gpu_instance, "computeInstanceID": entry.compute_instance}


def _decode_pod(given: Case, _expect: Case) -> Case:
    try:
        annotations.decode_pod(given["annotation"])
    except InvalidInput:
        return {"error": True}
    return {"error": False}


def _parse_reason(given: Case, expect: Case) -> Case:
    """Ours counts nodes per word; the words are what must agree."""
    return {"reasons": {word: expect["reasons"].get(word, -1) for word in reason_counts({"n": given["reason"]})}}


_CHECKS: dict[str, Callable[[Case, Case], Case]] = {
    "generate_request": _generate_request,
    "mutate_admission": _mutate_admission,
    "fit": _fit,
    "fit_in_devices": _fit_in_devices,
    "calc_score": _calc_score,
    "sort_less": _sort_less,
    "device_score": _device_score,
    "node_score": lambda given, _: {"score": node_score([state_of(each) for each in given["devices"]])},
    "filter": _filter,
    "filter_dry_run": _dry_run,
    "collapse": _collapse,
    "init_shrink": _shrink,
    "fit_quota": _fit_quota,
    "webhook_quota": _webhook_quota,
    "webhook": _webhook,
    "parse_weights": _parse_weights,
    "mig_filter": _mig_filter,
    "mig_add_usage": _mig_add,
    "mig_placements": _mig_placements,
    "mig_decode": _mig_decode,
    "decode_pod": _decode_pod,
    "parse_reason": _parse_reason,
}
