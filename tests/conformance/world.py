"""Recorded cases as our own nouns: nodes, running pods and quotas -> ClusterSnapshot."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from hami.domain.allocation import Allocation, ContainerShares, Phase, PodOwner, Reservation, notes_of, shares_of, usage_of
from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, NodeState, QuotaLimit
from hami.domain.device import Device, DeviceState, DeviceUsage, Health, MigSlice
from hami.domain.errors import InvalidInput
from hami.domain.pod import Node, Pod
from hami.domain.request import ContainerKind
from hami.domain.units import EpochMs
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.quota import vendor_usage
from hami.vendors import annotations, nvidia
from hami.vendors.config import DeviceConfig, device_config
from hami.vendors.quantities import as_integer
from hami.vendors.registers import listed
from hami.vendors.registry import vendors_of
from hami.vendors.requests import containers_of
from hami.vendors.vendor import Vendor

DATA = Path(__file__).parent.parent / "data" / "hami-v2.10.0"
CORDON = "hami.io/device-cordon"
NODE_KEY = "hami.io/vgpu-node"

Case = dict[str, Any]


@cache
def _raw_configs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
    return found


@cache
def config_named(name: str) -> DeviceConfig:
    return device_config(_raw_configs()[name])


def vendors_for(case: Case) -> tuple[Vendor, ...]:
    return vendors_of(config_named(case["input"]["config"]))


def flags_for(case: Case) -> SchedulingPolicy:
    flags = case["input"].get("flags") or {}
    return SchedulingPolicy(
        node=flags.get("node_scheduler_policy", "binpack"), device=flags.get("gpu_scheduler_policy", "spread")
    )


def pod_of(raw: object) -> Pod:
    return msgspec.convert(raw, Pod, strict=False)


def cases_in(path: Path) -> list[Case]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def snapshot_of(case: Case, *, dry_run: bool = False) -> ClusterSnapshot:
    given = case["input"]
    vendors = vendors_for(case)
    nodes = {raw["metadata"]["name"]: node_of(raw, vendors) for raw in given.get("nodes") or ()}
    allocations: dict[str, Allocation] = {}
    for raw in () if dry_run else given.get("pods") or ():
        allocation = allocation_of(pod_of(raw), vendors)
        if allocation is not None:
            allocations[allocation.id] = allocation
    quotas = quotas_of(given.get("quotas") or (), vendors)
    return ClusterSnapshot(
        nodes={name: loaded(node, allocations.values()) for name, node in nodes.items()},
        allocations=allocations,
        by_owner={
            each.reservation.owner.uid: each.id for each in allocations.values() if isinstance(each.reservation.owner, PodOwner)
        },
        quotas=quotas,
        quota_used=quota_used(allocations.values(), vendors),
    )


def node_of(raw: Case, vendors: tuple[Vendor, ...]) -> NodeState:
    cordoned = {each.strip() for each in (raw["metadata"].get("annotations") or {}).get(CORDON, "").split(",")} - {""}
    node = msgspec.convert(raw, Node, strict=False)
    states = tuple(
        DeviceState(device=each, health=each.health, cordoned=each.uuid in cordoned)
        for vendor in vendors
        if not asleep(raw, vendor)
        for each in registered(node, vendor)
    )
    return NodeState(name=raw["metadata"]["name"], devices=states)


def registered(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """As in HAMi, where one unreadable device costs all of its vendor (differs: `segments`)."""
    try:
        return (vendor.discover or listed)(node, vendor)
    except InvalidInput:
        return ()


def planned_mig(notes: Mapping[str, str]) -> tuple[annotations.MigEntry, ...]:
    """An unreadable list plans nothing: the cards it was about are then not explained."""
    try:
        return annotations.decode_mig(notes.get(nvidia.KEYS.mig, ""))
    except InvalidInput:
        return ()


def asleep(raw: Case, vendor: Vendor) -> bool:
    """The recordings start with nodes that were asked for a sign of life and advertise no card left out; ours has leases."""
    asked = "Requesting" in (raw["metadata"].get("annotations") or {}).get(vendor.keys.handshake, "")
    allocatable = (raw.get("status") or {}).get("allocatable") or {}
    return asked and not as_integer(allocatable.get(vendor.resources.count, 0))


def allocation_of(pod: Pod, vendors: tuple[Vendor, ...]) -> Allocation | None:
    """A running pod's record, or None where nothing of it counts."""
    notes = pod.metadata.notes
    if NODE_KEY not in notes or pod.finished or pod.metadata.deletion_timestamp:
        return None  # the recordings start with pods already terminating left out; ours counts them (docs/differences.md)
    try:
        held = {vendor.word: annotations.decode_pod(notes.get(vendor.keys.allocated, "")) for vendor in vendors}
    except InvalidInput:
        return None
    mig = planned_mig(notes)
    told = {vendor.word: vendor.note(notes, None) for vendor in vendors if vendor.note is not None}
    spec = [(container.name, kind) for _, kind, container in containers_of(pod)]
    spec += [("", ContainerKind.APP)] * (max(map(len, held.values())) - len(spec))
    containers = tuple(
        ContainerShares(
            name=name,
            kind=kind,
            shares=tuple(
                share
                for word, entries in held.items()
                if i < len(entries)
                for share in annotations.shares_from(
                    entries[i], word, mig if word == nvidia.WORD else (), i, told.get(word, "")
                )
            ),
        )
        for i, (name, kind) in enumerate(spec)
    )
    owner = PodOwner(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name)
    reservation = Reservation(
        id=pod.metadata.uid,
        owner=owner,
        node=notes[NODE_KEY],
        containers=containers,
        scheduler="",
        deadline_ms=EpochMs(0),
        annotations=dict(notes),
    )
    return Allocation(reservation=reservation, phase=Phase.PREPARED)


def loaded(node: NodeState, allocations: Iterable[Allocation]) -> NodeState:
    """The node with what runs on it; a MIG card with an unexplained device, or a whole card with a slice, is not healthy."""
    used: dict[str, DeviceUsage] = {}
    slices: dict[str, list[MigSlice]] = {}
    told: dict[str, list[str]] = {}
    spoiled: set[str] = set()
    modes = {each.device.uuid: each.device.mode for each in node.devices}
    for each in allocations:
        if each.reservation.node != node.name:
            continue
        for uuid, usage in usage_of(each.reservation.containers, init_done=each.init_done).items():
            used[uuid] = used.get(uuid, DeviceUsage()).plus(usage)
        for uuid, note in notes_of(each.reservation.containers, init_done=each.init_done).items():
            told.setdefault(uuid, []).append(note)
        held = [share.uuid for share in shares_of(each.reservation.containers)]
        planned = planned_mig(each.reservation.annotations)
        for entry in planned:
            slices.setdefault(entry.gpu_uuid, []).append(MigSlice(entry.profile, entry.placement, entry.mig_uuid or ""))
            if entry.gpu_uuid not in modes:
                spoiled.update(uuid for uuid, mode in modes.items() if mode == "mig")
            elif modes[entry.gpu_uuid] != "mig":
                spoiled.add(entry.gpu_uuid)
        named = Counter(entry.gpu_uuid for entry in planned)
        spoiled.update(uuid for uuid, times in Counter(held).items() if modes.get(uuid) == "mig" and named[uuid] < times)
    return msgspec.structs.replace(
        node,
        devices=tuple(
            msgspec.structs.replace(
                each,
                used=used.get(each.device.uuid, each.used),
                mig_in_use=tuple(slices.get(each.device.uuid, ())),
                notes=tuple(told.get(each.device.uuid, ())),
                health=Health.UNHEALTHY if each.device.uuid in spoiled else each.health,
            )
            for each in node.devices
        ),
    )


def quotas_of(raws: Any, vendors: tuple[Vendor, ...]) -> dict[str, NamespaceQuota]:
    known = {name for vendor in vendors for name in (vendor.resources.memory, vendor.resources.cores) if name}
    found: dict[str, dict[str, QuotaLimit]] = {}
    for raw in raws:
        for key, value in ((raw.get("spec") or {}).get("hard") or {}).items():
            resource = key.removeprefix("limits.")
            limit = as_integer(value)
            if key.startswith("limits.") and resource in known and limit is not None:
                # the last of several quotas counts in the recordings; ours takes the smallest (docs/differences.md)
                found.setdefault(raw["metadata"]["namespace"], {})[resource] = QuotaLimit(
                    resource, limit, raw["metadata"]["name"]
                )
    return {namespace: NamespaceQuota(tuple(limits.values())) for namespace, limits in found.items()}


def quota_used(allocations: Any, vendors: tuple[Vendor, ...]) -> dict[str, dict[str, tuple[int, int]]]:
    totals: dict[str, dict[str, tuple[int, int]]] = {}
    for each in allocations:
        mine = totals.setdefault(each.reservation.owner.namespace, {})
        for vendor in vendors:
            memory, cores = vendor_usage(each.reservation.containers, vendor.word, init_done=each.init_done)
            before = mine.get(vendor.word, (0, 0))
            mine[vendor.word] = (before[0] + memory, before[1] + cores)
    return totals
