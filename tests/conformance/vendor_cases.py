"""Cases restated from the tests of HAMi's vendor packages: one vendor, one rule each."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.cluster import NodeState
from hami.domain.device import Device, DeviceState, DeviceUsage, Health, MigPlacement, MigProfile, MigSlice
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.scheduler.decide import mig
from hami.scheduler.decide.cards import Card, Walk
from hami.scheduler.decide.fit import question
from hami.scheduler.decide.policies import DEVICE_POLICY, SchedulingPolicy
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.decide.vendorscore import added_score
from hami.scheduler.dryrun import cordoned_uuids
from hami.vendors.admission import changes_of
from hami.vendors.registers import listed
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.requests import asks, device_request, pod_request
from hami.vendors.vendor import Refused, Score, Vendor
from tests.conformance import ascend
from tests.conformance.filters import read_otherwise_in, requests_as_recorded, same_requests
from tests.conformance.lifecycles import recorded_row, row_of
from tests.conformance.outcome import PASSED, Outcome, difference, documented, failed, not_covered
from tests.conformance.world import CORDON, Case, config_named, pod_of


def cases_in(path: Path) -> list[Case]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    vendors = json.loads(text)["vendors"]
    return [{**case, "word": word, "config": each["config"]} for word, each in vendors.items() for case in each["cases"]]


def check(case: Case) -> Outcome:
    vendor = by_word(vendors_of(config_named("chart")), case["word"])
    if vendor is None:
        return not_covered(case["word"])
    found = _CHECKS.get(case["kind"])
    if found is None:
        return not_covered(f"kind {case['kind']}")
    return found(_configured(vendor, {**case["config"], **case["given"].get("config", {})}), case["given"], case["expect"])


def _configured(vendor: Vendor, config: Case) -> Vendor:
    """The chart's page with the names and numbers of the test it comes from."""
    if "templates" in config:
        return ascend.configured(vendor.word, config)
    names = msgspec.structs.replace(
        vendor.resources,
        count=config["count"],
        memory=config.get("memory") or "",
        cores=config.get("core") or "",
        percentage=config.get("memory_pct") or "",
    )
    return msgspec.structs.replace(
        vendor,
        resources=names,
        memory_factor=config.get("memoryFactor") or vendor.memory_factor,
        default_memory=MiB(config.get("defaultMemory") or vendor.default_memory),
    )


def _pod(given: Case) -> Case:
    resources = {side: given[side] for side in ("limits", "requests") if side in given}
    return {
        "metadata": {"name": "p", "uid": "u", "annotations": given.get("annotations")},
        "spec": {"containers": [{"name": given.get("name", "c"), "resources": resources}]},
    }


def _request(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    container = (pod_of(_pod(given)).spec.containers or [])[0]
    wanted = expect["request"]
    try:
        found = device_request(container, vendor, "spec.containers[0]") if asks(container, vendor) else None
    except InvalidInput as error:
        fault = "neuron" if "multiple" in error.why else "V20.10" if "beside" in error.why else "B7"
        return documented(fault) if wanted is None else failed(difference("refused", error, wanted))
    request = ContainerRequest(name="c", kind=ContainerKind.APP, requests=() if found is None else (found,))
    ours = requests_as_recorded(PodRequest(uid="u", namespace="", name="p", containers=(request,)))
    theirs: list[dict[str, dict[str, Any]]] = [{}]
    if wanted is not None:
        theirs[0][vendor.word] = {"cores": wanted["core"], "type": vendor.word}
        theirs[0][vendor.word] |= {key: wanted[key] for key in ("nums", "mem", "pct")}
    if same_requests(ours, theirs):
        return PASSED
    return (
        documented("B7") if read_otherwise_in(_pod(given)["spec"], (vendor,)) else failed(difference("request", ours, theirs))
    )


def _node(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    raw = given["node"]
    meta = {"name": raw["name"], "annotations": raw.get("annotations"), "labels": raw.get("labels")}
    node = msgspec.convert({"metadata": meta, "status": {"capacity": raw.get("capacity")}}, Node, strict=False)
    try:
        devices = (vendor.discover or listed)(node, vendor)
    except InvalidInput as error:
        return PASSED if "error" in expect else failed(difference("devices", error, expect))
    if "error" in expect:
        return PASSED if not devices else failed(difference("error", devices, expect))
    ours = [row_of(each) for each in devices]
    theirs = [recorded_row(each) for each in expect["devices"]]
    same = len(ours) == len(theirs) and all(
        all(mine.get(key, 0) == value for key, value in each.items()) for mine, each in zip(ours, theirs, strict=True)
    )
    return PASSED if same else failed(difference("devices", ours, expect))


def state_of(raw: Case, vendor: Vendor, pairs: Case, cordoned: frozenset[str]) -> DeviceState:
    profiles = tuple(_profile(each) for each in raw.get("migProfiles", ()))
    device = Device(
        uuid=raw["uuid"],
        vendor=vendor.word,
        model=raw.get("type", vendor.word),
        memory=MiB(raw.get("totalmem", 0)),
        cores=CorePercent(raw.get("totalcore", 0)),
        slots=Slots(raw.get("count", 0)),
        index=raw.get("index", 0),
        numa=raw.get("numa", 0),
        mode=raw.get("mode", ""),
        mig_profiles=profiles,
        pair_scores=pairs.get(raw["uuid"], {}),
        attributes={key: each if isinstance(each, str) else json.dumps(each) for key, each in raw.get("info", {}).items()},
    )
    slices = tuple(MigSlice("", MigPlacement(each["start"], each["size"])) for each in raw.get("mig_in_use", ()))
    return DeviceState(
        device=device,
        health=Health.HEALTHY if raw.get("health", True) else Health.UNHEALTHY,
        cordoned=raw["uuid"] in cordoned,
        used=DeviceUsage(raw.get("used", 0), raw.get("usedmem", 0), raw.get("usedcores", 0)),
        mig_in_use=slices,
        notes=tuple(each for each in raw.get("pod_classes", ()) if each),
    )


def _profile(raw: Case) -> MigProfile:
    places = tuple(MigPlacement(at["start"], at["size"]) for at in raw["placements"])
    return MigProfile(raw["name"], MiB(raw["memoryMB"]), CorePercent(raw["core"]), raw["sliceCount"], places)


def walk_of(vendor: Vendor, given: Case, asked: DeviceRequest) -> Walk:
    """The cards in the order given, as the tests call the vendor's fit."""
    notes = given.get("annotations") or {}
    cordoned = cordoned_uuids((given.get("node_annotations") or {}).get(CORDON, ""))
    raws = [ascend.with_node(each, given.get("node_annotations") or {}) for each in given["devices"]]
    cards = [Card(state_of(each, vendor, given.get("pair_scores") or {}, cordoned)) for each in raws]
    container = ContainerRequest(name="c", kind=ContainerKind.APP, requests=(asked,))
    request = PodRequest(uid="u", namespace="", name="p", containers=(container,), annotations=notes)
    ask = question(request, SchedulingPolicy(device=notes.get(DEVICE_POLICY, "spread")), (vendor,), {})
    return Walk(asked, ask, [ContainerShares(name="c", kind=ContainerKind.APP)], cards)


def _asked(vendor: Vendor, raw: Case) -> DeviceRequest:
    percent = raw["pct"]
    return DeviceRequest(
        vendor=vendor.word,
        count=raw["nums"],
        memory=MiB(raw["mem"]),
        memory_percent=None if percent == 101 else percent,
        cores=CorePercent(raw["core"]),
    )


def _fit(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    walk = walk_of(vendor, given, _asked(vendor, given["request"]))
    picks = walk.rules.select(walk)
    ours: dict[str, Any] = {"fit": picks is not None, "reason": "" if picks is not None else walk.text}
    chosen = [pick.card.device.uuid for pick in picks or ()]
    ours |= {"chosen": chosen, "chosen_set": sorted(chosen)}
    ours["reason_has"] = expect.get("reason_has") if str(expect.get("reason_has")) in walk.text else walk.text
    if "alloc" in expect and picks:
        model = picks[0].card.device.model if vendor.model_in_annotation else vendor.word
        first = {"mem": picks[0].memory, "core": picks[0].cores, "type": model}
        if picks[0].planned is not None:
            first |= {"mem": picks[0].planned[0].memory, "core": picks[0].planned[0].cores}
        ours["alloc"] = {key: first.get(key) for key in expect["alloc"]}
    wanted = {**expect, **({"chosen_set": sorted(expect["chosen_set"])} if "chosen_set" in expect else {})}
    found = [difference(key, ours.get(key), value) for key, value in wanted.items() if ours.get(key) != value]
    return failed(*found) if found else PASSED


def _pick(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    if "sequence" in given:
        return _mig_sequence(given, expect)
    asked = DeviceRequest(vendor=vendor.word, count=given["count"], memory=MiB(given.get("mem", 0)), memory_percent=0)
    walk = walk_of(vendor, given, asked)
    ours = [pick.card.device.index for pick in walk.rules.select(walk) or ()]
    return PASSED if ours == expect["positions"] else failed(difference("positions", ours, expect["positions"]))


def _score(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    notes = given.get("node_annotations", {})
    cards = given.get("previous") or [each for shares in given["granted"] for each in shares]
    node = NodeState(
        name="n",
        devices=tuple(state_of({**each, "info": {**each.get("info", {}), **notes}}, vendor, {}, frozenset()) for each in cards),
    )
    containers = tuple(
        ContainerShares(name=f"c{number}", kind=ContainerKind.APP, shares=tuple(_granted(vendor, each) for each in shares))
        for number, shares in enumerate(given["granted"])
    )
    vendor = msgspec.structs.replace(vendor, link_zones=given.get("topology_aware", False))
    asked = DeviceRequest(vendor=vendor.word, count=1)
    container = ContainerRequest(name="c", kind=ContainerKind.APP, requests=(asked,))
    request = PodRequest(uid="u", namespace="", name="p", containers=(container,))
    policy = SchedulingPolicy(node=given.get("policy", "binpack"))
    ours = added_score(node, containers, question(request, policy, (vendor,), {}))
    if vendor.score is Score.CLASS_AND_ZONES:
        ours /= 10_000  # the test asks for the score before it is made independent of the policy
    return PASSED if ours == expect["score"] else failed(difference("score", ours, expect["score"]))


def _granted(vendor: Vendor, raw: Case) -> DeviceShare:
    return DeviceShare(
        vendor=vendor.word,
        uuid=raw.get("uuid", f"card-{raw.get('idx')}"),
        memory=MiB(raw.get("mem", 0)),
        cores=CorePercent(raw.get("core", 0)),
        index=raw.get("idx", 0),
    )


def _mig_sequence(given: Case, expect: Case) -> Outcome:
    profiles = [_profile(each) for each in given["migProfiles"]]
    taken: list[MigSlice] = []
    for name in given["sequence"]:
        planned = mig.plan([each for each in profiles if each.name == name], 0, taken)
        if planned is not None:
            taken.append(planned[1])
    ours = [each.placement.start for each in taken]
    return PASSED if ours == expect["starts"] else failed(difference("starts", ours, expect["starts"]))


def _admit(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    pod = pod_of(_pod(given))
    changes = changes_of((pod.spec.containers or [])[0], pod, vendor)
    if isinstance(changes, Refused):
        wanted = expect.get("error", False)
        same = wanted is True or (isinstance(wanted, str) and wanted in changes.message)
        if ascend.sliced_pair(changes.message):
            return documented("V20.7")
        return PASSED if same else failed(difference("error", changes.message, expect))
    ours: dict[str, Any] = {
        "claimed": changes.claims,
        "error": False,
        "limits": {**given.get("limits", {}), **changes.limits},
        "requests": {**given.get("requests", {}), **changes.requests},
        "annotations": {**(given.get("annotations") or {}), **changes.notes},
        "env": {each.name: each.value for each in changes.env},
    }
    found = [
        difference(key, ours[key], value)
        for key, value in expect.items()
        if (not value.items() <= ours[key].items() if isinstance(value, dict) else ours[key] != value)
    ]
    return failed(*found) if found else PASSED


def _announced(given: Case, vendor: Vendor) -> NodeState:
    """The node as far as its chosen cards tell: what a card can be cut into, where they say of which part they give it."""
    states = []
    for device in (each for devices in given["devices"] for each in devices):
        info = dict(device.get("info", {}))
        if "drsSlice" in info:
            info["profiles"] = {info["profileName"]: info["profileID"]}
            info["maxSlice"] = info["drsSlice"] * 100 // device["core"]
        states.append(state_of({**device, "info": info}, vendor, {}, frozenset()))
    return NodeState(name="", devices=tuple(states))


def _annotate(vendor: Vendor, given: Case, expect: Case) -> Outcome:
    names = given.get("containers") or [f"c{number}" for number in range(len(given["devices"]))]
    containers = tuple(
        ContainerShares(
            name=name,
            kind=ContainerKind.APP,
            shares=tuple(
                DeviceShare(
                    vendor=vendor.word,
                    uuid=each["uuid"],
                    memory=MiB(each["mem"]),
                    cores=CorePercent(each["core"]),
                    model=each["type"],
                    index=each["idx"],
                )
                for each in devices
            ),
        )
        for name, devices in zip(names, given["devices"], strict=True)
    )
    spec = {"containers": [{"name": name, "resources": {"limits": given.get("limits")}} for name in names]}
    request = pod_request(pod_of({"metadata": {"annotations": given.get("annotations")}, "spec": spec}), (vendor,))
    ours = binding_annotations(
        containers, (vendor,), reservation_id="r", node=_announced(given, vendor), now_s=1_700_000_000, request=request
    )
    found = [
        difference(key, ours.get(key), value)
        for key, value in expect["annotations"].items()
        if (key not in ours if value == "*" else ours.get(key) != value)
    ]
    found += [difference(key, ours[key], "absent") for key in expect.get("absent", ()) if key in ours]
    return failed(*found) if found else PASSED


_CHECKS: dict[str, Callable[[Vendor, Case, Case], Outcome]] = {
    "request": _request,
    "node": _node,
    "fit": _fit,
    "pick": _pick,
    "admit": _admit,
    "annotate": _annotate,
    "score": _score,
}
