"""op lifecycle (pods come, change and go: what is held after each step) and op node_decode (a node's register annotation)."""

import json

import msgspec

from hami.domain.allocation import Allocation, Phase, usage_of
from hami.domain.cluster import ClusterSnapshot
from hami.domain.device import Device, DeviceUsage
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node, Pod
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationEvent,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
    AllocationShrunk,
)
from hami.scheduler.decide.reconcile import Action, PodFacts, reconcile
from hami.vendors import ascend, metax, nvidia, registers
from hami.vendors.requests import containers_of
from hami.vendors.vendor import Vendor
from tests.conformance.outcome import PASSED, Outcome, difference, documented, failed, not_covered
from tests.conformance.world import NODE_KEY, Case, loaded, node_of, pod_of, quota_used, vendors_for


def facts_of(pod: Pod) -> PodFacts:
    """In the recordings the node stands in HAMi's annotation only."""
    status = pod.status
    states = (status.init_container_statuses if status else None) or []
    inits = [container.name for container in pod.spec.init_containers or () if container.restart_policy != "Always"]
    ended = {each.name for each in states if each.state and each.state.terminated and each.state.terminated.exit_code == 0}
    return PodFacts(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.metadata.notes.get(NODE_KEY, ""),
        phase=status.phase if status else "",
        init_done=bool(states) and ended >= set(inits),
        containers=tuple((container.name, kind) for _, kind, container in containers_of(pod)),
        annotations=dict(pod.metadata.notes),
    )


def check_lifecycle(case: Case) -> Outcome:
    vendors = vendors_for(case)
    allocations: dict[str, Allocation] = {}
    pods: dict[str, PodFacts] = {}
    found = []
    for number, (event, step) in enumerate(zip(case["input"]["events"], case["expect"]["steps"], strict=True)):
        facts = facts_of(pod_of(event["pod"]))
        if event["ev"] == "delete":
            pods.pop(facts.uid, None)
        elif facts.node or facts.uid not in pods:
            pods[facts.uid] = facts
        snapshot = ClusterSnapshot(allocations=allocations, by_owner={_owner(each): key for key, each in allocations.items()})
        for action in reconcile(snapshot, pods, vendors, now_ms=0):
            apply(allocations, action)
        ours, theirs = _held(case, allocations), _recorded(step)
        if ours != theirs:
            found.append(difference(f"step {number}", ours, theirs))
    if not found:
        return PASSED
    fault = _explained(case)
    return documented(fault) if fault else failed(*found)


def _owner(allocation: Allocation) -> str:
    return allocation.reservation.owner.uid


def apply(allocations: dict[str, Allocation], action: Action) -> None:
    match action:
        case AllocationReserved(reservation=reservation):
            allocations[reservation.id] = Allocation(reservation=reservation)
        case AllocationBound():
            allocations[action.reservation] = allocations[action.reservation].moved_to(Phase.BOUND)
        case AllocationShrunk():
            allocations[action.reservation] = msgspec.structs.replace(allocations[action.reservation], init_done=True)
        case AllocationReleased() | AllocationLapsed() | AllocationFailed():
            del allocations[action.reservation]
        case AllocationEvent():
            raise AssertionError(action)


def _held(case: Case, allocations: dict[str, Allocation]) -> object:
    pods = {
        _owner(each): rows
        for each in allocations.values()
        if (rows := sorted((uuid, u.memory, u.cores, u.slots) for uuid, u in _usage(each).items()))
    }
    nodes = [loaded(node_of(raw, vendors_for(case)), allocations.values()) for raw in case["input"]["nodes"]]
    usage = {
        node.name: rows
        for node in nodes
        if (rows := sorted((d.device.uuid, d.used.slots, d.used.memory, d.used.cores) for d in node.devices if d.used.slots))
    }
    quota = {
        name: used["NVIDIA"]
        for name, used in quota_used(allocations.values(), vendors_for(case)).items()
        if any(used["NVIDIA"])
    }
    return {"pods": pods, "usage": usage, "quota": quota}


def _usage(allocation: Allocation) -> dict[str, DeviceUsage]:
    return usage_of(allocation.reservation.containers, init_done=allocation.init_done)


def _recorded(step: Case) -> object:
    pods = {
        uid: sorted((d[0], d[2], d[3], d[4]) for container in pod["devices"].get("NVIDIA", ()) for d in container)
        for uid, pod in step["pods"].items()
    }
    usage = {
        name: rows
        for name, raws in step["usage"].items()
        if (rows := sorted((d["id"], d["used"], d["usedmem"], d["usedcores"]) for d in raws if d["used"]))
    }
    quota = {
        name: (each.get("nvidia.com/gpumem", {}).get("used", 0), each.get("nvidia.com/gpucores", {}).get("used", 0))
        for name, each in step["quota"].items()
    }
    return {
        "pods": {uid: rows for uid, rows in pods.items() if rows},
        "usage": usage,
        "quota": {name: used for name, used in quota.items() if any(used)},
    }


def _explained(case: Case) -> str:
    text = json.dumps(case["input"]["events"])
    if any(tag.endswith("B5") for tag in case["tags"]):
        return "B5"
    if "deletionTimestamp" in text:
        return "terminating"
    seen: dict[str, str] = {}
    for event in case["input"]["events"]:
        meta = event["pod"]["metadata"]
        if event["ev"] == "delete" and NODE_KEY not in meta["annotations"]:
            return "leak"
        allocated = meta["annotations"].get(nvidia.KEYS.allocated, "")
        if seen.setdefault(meta["uid"], allocated) != allocated:
            return "edited"
        inits = allocated.split(";")[: len(event["pod"]["spec"].get("initContainers") or ())]
        uuids = [[entry.partition(",")[0] for entry in each.split(":") if entry] for each in inits]
        if any(len(set(each)) < len(each) for each in uuids):
            return "init-units"
    return ""


def check_node(case: Case) -> Outcome:
    """What a node announces; HAMi's health check over time is replaced by leases."""
    raw = case["input"]["nodes"][0]
    decoded = case["expect"]["decoded"].get(raw["metadata"]["name"], {})
    vendors = {each.word: each for each in vendors_for(case)}
    known = [word for word in case["input"]["vendors"] if word in vendors]
    if len(known) < len(case["input"]["vendors"]):
        return not_covered("another vendor")
    found = []
    for word in known:
        recorded = decoded.get(word, {})
        if "panic" in recorded:
            return documented("null-card")
        read = _nvidia_node if word == nvidia.WORD else _other_node
        found += read(raw, vendors[word], recorded)
    if found and all("status.capacity" in each for each in found):
        return documented("capacity")
    return failed(*found) if found else PASSED


def _nvidia_node(raw: Case, _vendor: Vendor, recorded: Case) -> list[str]:
    notes = raw["metadata"].get("annotations") or {}
    text = notes.get(nvidia.KEYS.register)
    if text is None:
        return [] if "error" in recorded else [difference("devices", "no annotation", recorded)]
    try:
        pairs = registers.decode_pair_scores(notes[nvidia.KEYS.pair_scores]) if nvidia.KEYS.pair_scores in notes else {}
        wire = registers.decode_register(text)
    except InvalidInput as error:
        return [] if "error" in recorded else [difference("devices", error, recorded)]
    if "error" in recorded:
        return [difference("error", wire, recorded["error"])] if wire else []
    ours = json.loads(registers.encode_wire(wire))
    for each in ours:
        if pairs.get(each["id"]):
            each["pair_score"] = pairs[each["id"]]
    theirs = [{key: value for key, value in each.items() if key != "devicevendor"} for each in recorded.get("devices") or ()]
    return [] if ours == theirs else [difference("devices", ours, theirs)]


def _other_node(raw: Case, vendor: Vendor, recorded: Case) -> list[str]:
    """Nothing announced, or what cannot be read: no device, where HAMi says an error."""
    try:
        devices = (vendor.discover or registers.listed)(msgspec.convert(raw, Node, strict=False), vendor)
    except InvalidInput as error:
        return [] if "error" in recorded else [difference("devices", error, recorded)]
    ours = [row_of(each) for each in devices]
    theirs = [recorded_row(each) for each in recorded.get("devices") or ()]
    return [] if ours == theirs else [difference("devices", ours, recorded)]


_OF_NODE = {ascend.SOFT_SPLIT, metax.LOSSES, metax.SCORES}
"""What a card carries of its node: HAMi reads it there."""


def row_of(device: Device) -> Case:
    row: Case = json.loads(registers.encode_register([device]))[0]
    row.pop("custominfo", None)
    own = {key: value for key, value in device.attributes.items() if key not in _OF_NODE}
    return row | ({"custominfo": own} if own else {})


def recorded_row(raw: Case) -> Case:
    row = {key: value for key, value in raw.items() if key != "devicevendor"}
    if "custominfo" in row:
        row["custominfo"] = {
            k: v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in row["custominfo"].items()
        }
    return row
