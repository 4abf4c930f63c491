"""What a plugin that speaks HAMi's annotations has said, as events; and the texts it waits for.

    node      register annotation or capacity  ->  NodeRegistered, InputRejected, DeviceHealthChanged
    node      its lock, taken away by the plugin -.
    pod       bind-phase, to-allocate             +->  AllocationPrepared, AllocationFailed
    pod       the kubelet's status               -'

Whoever may write a pod may write its bind-phase, so where a vendor has a node lock only the lock, or the kubelet, says that a
pod is served; bind-phase then says how it went.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from hami.domain.allocation import Allocation, ContainerShares, PodOwner, shares_of
from hami.domain.cluster import ClusterSnapshot, Foreign, NodeState, Source
from hami.domain.device import Device, DeviceState, Health
from hami.domain.digest import device_set_digest
from hami.domain.pod import Node, Quantity
from hami.events.catalog.allocation import AllocationFailed, AllocationPrepared
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.handshake import HandshakeExpired, HandshakeReported
from hami.events.catalog.journal import InputRejected
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event
from hami.scheduler.decide.reconcile import PodFacts
from hami.vendors.announced import Announced, Unread, announced, announces
from hami.vendors.quantities import as_integer
from hami.vendors.vendor import Vendor

ACTOR: Final = "annotation"
"""Who decided, in events about what a plugin announces."""

SILENT: Final = "its device plugin no longer reports"
SAYS_SO: Final = "its device plugin says so"
PLUGIN_FAILED: Final = "the device plugin could not serve the pod"
TOO_LATE: Final = "the device plugin did not serve the pod in time"

REQUESTING: Final = "Requesting"
DELETED: Final = "Deleted"
SUCCESS, FAILED = "success", "failed"
"""Values of bind-phase that a plugin writes."""

_STAMP: Final = "%Y-%m-%d %H:%M:%S"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor on one Node object. `handshake` is None where the annotation is absent."""

    devices: tuple[Device, ...] = ()
    unread: tuple[Unread, ...] = ()
    handshake: str | None = None
    allocatable: int = 0
    capacity: int = 0
    announced: bool = True
    unreadable: bool = False
    """Nothing of its announcement could be read."""


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A Node object as far as the door reads it: `vendors` by word, `locks` by annotation key."""

    name: str
    uid: str
    version: str
    vendors: Mapping[str, Seen] = {}
    locks: Mapping[str, str] = {}


def look_at(node: Node, vendors: Sequence[Vendor], known: NodeState | None) -> NodeSeen | None:
    """None where nothing comes through the door: no vendor announces itself, or only those that the node's agent registers."""
    found: dict[str, Seen] = {}
    own = known.own if known is not None and known.uid in {"", node.metadata.uid} else ()
    foreign = [each.vendor for each in known.foreign] if known is not None else []
    for vendor in vendors:
        word = vendor.word
        if word in own:
            continue
        said = announces(node, vendor)
        if said or word in foreign:
            found[word] = _seen(node, vendor, said=said)
    if not found:
        return None
    notes, meta = node.metadata.notes, node.metadata
    keys = {each.keys.lock for each in vendors if each.word in found and each.keys.lock}
    locks = {key: notes[key] for key in sorted(keys) if notes.get(key)}
    return NodeSeen(name=meta.name, uid=meta.uid, version=meta.resource_version, vendors=found, locks=locks)


def _seen(node: Node, vendor: Vendor, *, said: bool) -> Seen:
    whole = announced(node, vendor)
    what = _without_mig(whole, vendor)
    handshake = node.metadata.notes.get(vendor.keys.handshake) if vendor.keys.handshake else None
    complaint = _complaint(vendor.keys.handshake, handshake)
    count, status = vendor.resources.count, node.status
    return Seen(
        devices=what.devices,
        unread=(*what.unread, *complaint),
        handshake=handshake,
        allocatable=_amount(status.allocatable if status is not None else None, count),
        capacity=_amount(status.capacity if status is not None else None, count),
        announced=said,
        unreadable=bool(whole.unread) and not whole.devices,
    )


def _without_mig(what: Announced, vendor: Vendor) -> Announced:
    """A MIG instance is made before its pod is bound, and its name given to the container: no such plugin can do that."""
    mig = [each for each in what.devices if each.mode == "mig"] if vendor.identity else []
    if not mig:
        return what
    why = "is in MIG mode: that needs hami's own agent on the node"
    unread = tuple(Unread(vendor.keys.register, each.uuid, why) for each in mig)
    return Announced(tuple(each for each in what.devices if each not in mig), (*what.unread, *unread))


def _amount(amounts: Mapping[str, Quantity] | None, resource: str) -> int:
    return max(as_integer((amounts or {}).get(resource, 0)) or 0, 0)


def _complaint(key: str, handshake: str | None) -> tuple[Unread, ...]:
    if handshake is None or REQUESTING not in handshake:
        return ()
    try:
        datetime.strptime(handshake.partition("_")[2], _STAMP)  # noqa: DTZ007 - whether it is a time at all
    except ValueError:
        return (Unread(key, handshake[:200], "holds no time after Requesting_"),)
    return ()


def is_report(handshake: str | None) -> bool:
    """Whether this value is a plugin's word, not a question or a farewell."""
    return bool(handshake) and REQUESTING not in (handshake or "") and not (handshake or "").startswith(DELETED)


def wants_answer(handshake: str | None) -> bool:
    return REQUESTING not in (handshake or "")


def requesting(now_ms: int) -> str:
    """The question as HAMi's scheduler asks it, by the store's clock."""
    return f"{REQUESTING}_{datetime.fromtimestamp(now_ms / 1000, UTC).strftime(_STAMP)}"


def registration(node: NodeState | None, seen: NodeSeen, word: str, *, silent: bool | None) -> list[Event]:
    """What the log lacks of one vendor; nothing of what the node's agent registers.

    `silent`: its plugin is gone; None = as the log has it.
    """
    if node is not None and node.uid and node.uid != seen.uid:
        node = None
    if node is not None and word in node.own:
        return []
    what = seen.vendors[word]
    known = next((each for each in node.foreign if each.vendor == word), None) if node is not None else None
    now = {each.device.uuid: each for each in node.devices if each.device.vendor == word} if node is not None else {}
    if silent is None:
        silent = is_silent(node, word)
    devices = what.devices
    if what.unreadable:
        # An announcement that cannot be read takes nothing back.
        devices = tuple(each.device for each in now.values())
    wanted = {each.uuid: replace(each, health=_health(each, silent=silent)) for each in devices}
    if known is None and not wanted and not what.unread:
        return []
    if known is None or _is_other(known, now, wanted, what.unread):
        return _register(seen, word, tuple(wanted.values()), known)
    return _healths(word, now, wanted)


def is_silent(node: NodeState | None, word: str) -> bool:
    """Whether the log has it that this vendor's plugin is gone: no plugin announces UNKNOWN."""
    if node is None:
        return False
    return any(each.device.vendor == word and each.health is Health.UNKNOWN for each in node.devices)


def _health(device: Device, *, silent: bool) -> Health:
    if silent and device.health in {Health.HEALTHY, Health.UNKNOWN}:
        return Health.UNKNOWN
    return Health.HEALTHY if device.health is Health.UNKNOWN else device.health


def _is_other(known: Foreign, now: Mapping[str, DeviceState], wanted: Mapping[str, Device], unread: Sequence[Unread]) -> bool:
    """The order of an announcement means nothing: plugins write it as it comes."""
    had = {uuid: replace(each.device, health=Health.HEALTHY) for uuid, each in now.items()}
    have = {uuid: replace(each, health=Health.HEALTHY) for uuid, each in wanted.items()}
    return had != have or known.unread != tuple(map(str, unread))


def _register(seen: NodeSeen, word: str, devices: tuple[Device, ...], known: Foreign | None) -> list[Event]:
    unread = seen.vendors[word].unread
    told = known.unread if known is not None else ()
    source = f"node {seen.name}"
    return [
        NodeRegistered(vendor=word, devices=devices, node_uid=seen.uid, source=Source.DOOR, unread=tuple(map(str, unread))),
        *(
            InputRejected(source=source, field=each.field, value=each.value, why=each.why)
            for each in unread
            if str(each) not in told
        ),
    ]


def _healths(word: str, now: Mapping[str, DeviceState], wanted: Mapping[str, Device]) -> list[Event]:
    changes = [
        DeviceHealthChanged(device=uuid, was=now[uuid].health, now=each.health, reason=_why(each.health), actor=ACTOR)
        for uuid, each in wanted.items()
        if now[uuid].health is not each.health
    ]
    first: list[Event] = []
    if any(each.now is Health.UNKNOWN for each in changes):
        first.append(HandshakeExpired(nonce="", vendor=word))
    elif any(each.was is Health.UNKNOWN for each in changes):
        first.append(HandshakeReported(nonce="", vendor=word, digest=device_set_digest(wanted.values())))
    return [*first, *changes]


def _why(health: Health) -> str:
    return SILENT if health is Health.UNKNOWN else SAYS_SO


# --- serving a pod ---


def lock_keys(held: Allocation, node: NodeState | None, vendors: Sequence[Vendor]) -> dict[str, Vendor]:
    """The node annotations that the plugins of this allocation expect while they serve it, each with a vendor that has it."""
    if node is None or not node.foreign:
        return {}
    words = {share.vendor for share in shares_of(held.reservation.containers)}
    return {each.keys.lock: each for each in vendors if each.keys.lock and each.word in words and node.is_foreign(each.word)}


def lock_text(vendor: Vendor, now_ms: int, owner: PodOwner) -> str:
    time = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{time},{owner.namespace},{owner.name}" if vendor.keys.lock_names_pod else time


def lock_owner(text: str) -> tuple[str, str] | None:
    """Namespace and name of the pod that a lock names; None for one that names nobody."""
    parts = text.split(",")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[1] and parts[2] else None


def is_served_through_door(held: Allocation, node: NodeState | None) -> bool:
    if node is None or not node.foreign:
        return False
    return any(node.is_foreign(share.vendor) for share in shares_of(held.reservation.containers))


def served(held: Allocation, node: NodeState, pod: PodFacts, *, locked: bool, released: bool) -> list[Event]:
    """What its plugins have done for a bound pod. `locked`: some of them expect a lock; `released`: that lock is gone again."""
    owner = held.reservation.owner
    if locked and released and not pod.admitted and pod.bind_phase == FAILED:
        return [AllocationFailed(reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace, reason=PLUGIN_FAILED)]
    whole = pod.admitted or (released if locked else pod.bind_phase == SUCCESS)
    return [
        AllocationPrepared(reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace, container=each.name)
        for position, each in enumerate(held.reservation.containers)
        if _waits(each, held, node) and (whole or (not locked and pod.waiting is not None and position not in pod.waiting))
    ]


def _waits(container: ContainerShares, held: Allocation, node: NodeState) -> bool:
    if container.name in held.prepared:
        return False
    return any(node.is_foreign(share.vendor) for share in container.shares)


def said_served(pod: PodFacts) -> bool:
    """Whether a pod's own annotations say so: not to be relied on, save where the alternative is to give it up."""
    return pod.admitted or pod.bind_phase == SUCCESS or pod.waiting == ()


def waiting_for_plugin(snapshot: ClusterSnapshot, held: Allocation) -> NodeState | None:
    """The node of a bound allocation that its plugins have yet to serve."""
    node = snapshot.nodes.get(held.reservation.node)
    return node if node is not None and is_served_through_door(held, node) else None
