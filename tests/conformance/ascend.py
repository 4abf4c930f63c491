"""Ascend cases: the chip of a restated test, and where hami's answer may differ from the recorded one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hami.domain.cluster import NodeState
from hami.domain.request import PodRequest
from hami.vendors.ascend import SOFT_SPLIT, vendors
from hami.vendors.config import AscendChip, AscendConfig, AscendTemplate
from hami.vendors.vendor import Vendor

Rows = Mapping[str, Sequence[Sequence[tuple[str, str, int, int]]]]
_STABLE_UP_TO = 12
_VISIBLE = "ASCEND_VISIBLE_DEVICES"


def configured(word: str, config: Mapping[str, Any]) -> Vendor:
    chip = AscendChip(
        word=word,
        count=config["count"],
        memory=config["memory"],
        cores=config.get("core") or f"{config['count']}-core",
        allocatable=config["allocatable"],
        capacity=config["capacity"],
        memory_factor=config["memoryFactor"],
        templates=tuple(AscendTemplate(name=name, memory=memory) for name, memory in config["templates"]),
        super_pod=config.get("superPod", False),
    )
    return vendors(AscendConfig(configs=(chip,)))[0]


def with_node(card: Mapping[str, Any], notes: Mapping[str, str]) -> dict[str, Any]:
    """A restated card with what its node says of soft split."""
    said = {SOFT_SPLIT: notes[SOFT_SPLIT]} if SOFT_SPLIT in notes else {}
    return {**card, "info": {**card.get("info", {}), **said}}


def sliced_pair(message: str) -> bool:
    """Refused: a slice of a super pod's card, of which HAMi makes two."""
    return "pair of devices" in message


def one_blind(env: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """HAMi says once for every chip, at random places, that a container sees no card."""
    rest = [each for each in env if not _is_blind(each)]
    return rest + ([{"name": _VISIBLE}] if len(rest) < len(env) else [])


def without_blinds(outcome: dict[str, Any]) -> dict[str, Any]:
    """None left in containers that ask for a card: there HAMi blinds them for the other chips."""
    if "pod" not in outcome:
        return outcome
    found = copy.deepcopy(outcome)
    spec = found["pod"]["spec"]
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        if any(name.startswith("huawei.com/") for name in container["resources"].get("limits", ())):
            env = [each for each in container.pop("env", ()) if not _is_blind(each)]
            container.update({"env": env} if env else {})
    return found


def _is_blind(env: dict[str, Any]) -> bool:
    return env["name"] == _VISIBLE and not env.get("value") and "valueFrom" not in env


def explained(
    request: PodRequest, differing: Mapping[str, NodeState], ours: Mapping[str, Rows], theirs: Mapping[str, Sequence[Rows]]
) -> str:
    """The entry of docs/differences.md that explains every one of these nodes; empty where none does."""
    words = {asked.vendor for container in request.containers for asked in container.requests}

    def others(name: str) -> bool:
        """HAMi takes another chip's cards for the asked one's: its word is the beginning of theirs."""
        devices = [each.device for each in differing[name].devices]
        return any(word != device.vendor and word in device.model for word in words for device in devices)

    def crowded(name: str) -> bool:
        """So many cards that HAMi's sort is not stable; the same were taken, or equal ones."""
        node = differing[name]
        many = len(node.devices) > _STABLE_UP_TO
        return many and any(_alike(ours[name], node) == _alike(each, node) for each in theirs[name])

    return _first(differing, {"V20.2": others, "sort": crowded})


def _first(names: Mapping[str, NodeState], reasons: Mapping[str, Callable[[str], bool]]) -> str:
    return next((entry for entry, holds in reasons.items() if names and all(map(holds, names))), "")


def _alike(rows: Rows, node: NodeState) -> dict[str, list[list[str]]]:
    """What was taken, each card by all that tells it from another but its name and number."""
    known = {
        each.device.uuid: repr((each.used, msgspec.structs.replace(each.device, uuid="", index=0))) for each in node.devices
    }
    return {
        word: [sorted(f"{known[uuid]} {rest}" for uuid, *rest in container) for container in containers]
        for word, containers in rows.items()
    }
