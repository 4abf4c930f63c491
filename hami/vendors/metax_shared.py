"""MetaX sGPU: cards shared by memory and cores, under a policy (QoS) that all shares of a card have in common.

Pods can have a class. Online ones hold memory and no cores, and fit where a pod of a class runs; offline ones fit beside
offline ones alone. Neither comes to a card on which only pods without a class run, and no such pod comes to theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from hami.domain.device import Device, Health
from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Node, Pod
from hami.domain.units import CorePercent, MiB, Slots
from hami.vendors import quantities
from hami.vendors.config import MetaxConfig
from hami.vendors.registers import members_of
from hami.vendors.requests import asks
from hami.vendors.vendor import (
    AnnotationKeys,
    Changes,
    Check,
    Refused,
    ResourceNames,
    Score,
    Select,
    Size,
    Vendor,
    Writing,
)

CLASS: Final = "metax-tech.com/sgpu-app-class"
QOS: Final = "metax-tech.com/sgpu-qos-policy"
LINKED: Final = "metax-tech.com/sgpu-topology-aware"
ONLINE: Final = "online"
OFFLINE: Final = "offline"
SHARING: Final = "QosPolicy"
"""Attribute of a card: by which policy its plugin shares it now, empty = any."""
ZONE: Final = "LinkZone"
"""Attribute of a card: cards of one zone are linked, 0 or less = to none."""
_POLICIES: Final = ("best-effort", "fixed-share", "burst-share")
_WHOLE: Final = 100
_GIB: Final = 1024
_MEMBERS: Final = {
    "uuid": str, "bdf": str, "model": str, "totaldevcount": int, "totalcompute": int, "totalvram": int,
    "availabledevcount": int, "availablecompute": int, "availablevram": int, "numa": int, "healthy": bool,
    "qospolicy": str, "linkzone": int,
}  # fmt: skip


def vendor(config: MetaxConfig) -> Vendor:
    return Vendor(
        word="Metax-SGPU",
        about=__doc__ or "",
        resources=ResourceNames(count=config.shares, memory=config.memory, cores=config.cores),
        keys=AnnotationKeys(
            allocated="hami.io/metax-sgpu-devices-allocated",
            to_allocate="hami.io/metax-sgpu-devices-to-allocate",
            register="metax-tech.com/node-gpu-devices",
            lock="hami.io/mutex.lock",
            use_uuid="metax-tech.com/use-gpuuuid",
            nouse_uuid="metax-tech.com/nouse-gpuuuid",
        ),
        memory_factor=_GIB,
        default_cores=CorePercent(_WHOLE),
        limits_only=True,
        percent_beside_memory=0,
        checks=(
            Check.TYPE,
            Check.UNHEALTHY,
            Check.CORDON,
            Check.APP_CLASS,
            Check.QOS,
            Check.UUID,
            Check.SLOTS,
            Check.MUTEX,
            Check.MEMORY,
            Check.CORES,
            Check.EXCLUSIVE,
            Check.EXHAUSTED,
        ),
        size=Size.CLASSED,
        select=Select.CLASS_AND_ZONES,
        score=Score.CLASS_AND_ZONES,
        pod_keys=(CLASS, QOS, LINKED),
        link_zones=config.link_zones,
        spares=spares,
        note=note,
        admit=admit,
        discover=discover,
        annotate=annotate,
        differs=("B7", "tie", "qos"),
    )


def admit(container: Container, pod: Pod, vendor: Vendor) -> Changes | Refused:
    """A pod with a class gets one card a container; any but an online one is shared by a policy."""
    if not asks(container, vendor):
        return Changes()
    asked = container.limit(vendor.resources.count) or 0
    notes = pod.metadata.notes
    if CLASS in notes:
        if notes[CLASS] not in {ONLINE, OFFLINE}:
            return Refused(f"{CLASS} must be set one of [{ONLINE}, {OFFLINE}]")
        if quantities.as_integer(asked) != 1:
            return Refused("app-class pod must request single device")
        if notes[CLASS] == ONLINE:
            return Changes(claims=True)
    if QOS not in notes:
        return Changes(claims=True, notes={QOS: _POLICIES[0]})
    if notes[QOS] not in _POLICIES:
        return Refused(f"{QOS} must be set one of [{', '.join(_POLICIES)}]")
    return Changes(claims=True)


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    key = vendor.keys.register
    text = node.metadata.notes.get(key)
    if text is None:
        return ()
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(key, text, str(error)) from None
    if not isinstance(raw, list) or not raw:
        raise InvalidInput(key, text, "must be a JSON array of devices, and not an empty one")
    return tuple(_device(members_of(each, _MEMBERS, f"{key}, device {n}"), n, vendor) for n, each in enumerate(raw))


def _device(said: Mapping[str, Any], number: int, vendor: Vendor) -> Device:
    return Device(
        uuid=said.get("uuid", ""),
        vendor=vendor.word,
        model=vendor.word,
        memory=MiB(said.get("totalvram", 0)),
        cores=CorePercent(said.get("totalcompute", 0)),
        slots=Slots(said.get("totaldevcount", 0)),
        index=number,
        numa=said.get("numa", 0),
        health=Health.HEALTHY if said.get("healthy", False) else Health.UNHEALTHY,
        attributes={
            "Model": said.get("model", ""),
            SHARING: said.get("qospolicy", ""),
            ZONE: str(said.get("linkzone", 0)),
        },
    )


def spares(annotations: Mapping[str, str]) -> frozenset[Check]:
    """Online pods: they hold no cores, and no policy of sharing binds them."""
    return _ONLINE_SPARED if annotations.get(CLASS) == ONLINE else frozenset()


def note(annotations: Mapping[str, str], cores: int | None) -> str:
    """`class:policy`. Online pods set no policy, whole cards have none, and what others placed the plugin itself knows.

    Words that admission lets nobody write are left out, however they got there.
    """
    found = annotations.get(CLASS, "")
    if found not in {ONLINE, OFFLINE}:
        found = ""
    policy = "" if cores == _WHOLE else annotations.get(QOS, "")
    if cores is None or found == ONLINE or policy not in {"", *_POLICIES}:
        return found
    return f"{found}:{policy}"


def classes(notes: Sequence[str]) -> tuple[int, int]:
    """How many online and how many offline pods these notes are of."""
    found = [each.partition(":")[0] for each in notes]
    return found.count(ONLINE), found.count(OFFLINE)


def sharing(device: Device, notes: Sequence[str]) -> str:
    """By which policy a card is shared: the plugin follows the last pod that set one, and may not have caught up yet."""
    for each in reversed(notes):
        _, told, policy = each.partition(":")
        if told:
            return policy
    return device.attributes.get(SHARING, "")


def zone(device: Device) -> int:
    try:
        return int(device.attributes.get(ZONE, "0"))
    except ValueError:
        return 0


def annotate(writing: Writing, _vendor: Vendor) -> Mapping[str, str]:
    """For the plugin: every container's shares, amounts of nought left out."""
    listed = [
        [
            {"uuid": share.uuid}
            | ({"compute": share.cores} if share.cores else {})
            | ({"vRam": share.memory} if share.memory else {})
            for share in container.shares
        ]
        for container in writing.containers
    ]
    return {
        "metax-tech.com/gpu-devices-allocated": msgspec.json.encode(listed).decode(),
        "metax-tech.com/predicate-time": str(writing.now_s * 10**9),
    }


_ONLINE_SPARED: Final = frozenset({Check.QOS, Check.CORES, Check.EXCLUSIVE, Check.EXHAUSTED})
