"""The device manager's books: who offers what, who holds what, what is free. No I/O but the checkpoint file.

Rules as recorded: containers in spec order, init containers first; a finished init container's devices are used again by later
containers of the pod, a sidecar's never; a container that has devices keeps them over every restart.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


class Refused(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The pod is not admitted; the text is the kubelet's."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one container holds of one resource, and the plugin's answer as it came."""

    uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: bytes


class Shelf(msgspec.Struct):
    """One resource: device id -> healthy, and the topology answer is left out. `present`: a plugin is connected."""

    devices: dict[str, bool] = msgspec.field(default_factory=dict)
    present: bool = False

    @property
    def healthy(self) -> list[str]:
        return sorted(each for each, good in self.devices.items() if good and self.present)


class DeviceBooks:
    """All shelves and holdings of a node, and their checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.shelves: dict[str, Shelf] = {}
        self.holdings: dict[tuple[str, str, str], Holding] = {}

    def load(self) -> None:
        """After a restart: holdings as they were, resources known but empty until their plugin is back."""
        self.shelves, self.holdings = {}, {}
        if not self._checkpoint.exists():
            return
        data = json.loads(self._checkpoint.read_text())["Data"]
        for entry in data["PodDeviceEntries"] or ():
            holding = Holding(
                uid=entry["PodUID"],
                container=entry["ContainerName"],
                resource=entry["ResourceName"],
                ids=tuple(each for ids in entry["DeviceIDs"].values() for each in ids),
                answer=base64.b64decode(entry["AllocResp"]),
            )
            self.holdings[holding.uid, holding.container, holding.resource] = holding
        self.shelves = {resource: Shelf() for resource in data["RegisteredDevices"] or {}}

    def save(self) -> None:
        entries = [
            {
                "PodUID": each.uid,
                "ContainerName": each.container,
                "ResourceName": each.resource,
                "DeviceIDs": {"-1": list(each.ids)},
                "AllocResp": base64.b64encode(each.answer).decode(),
            }
            for each in self.holdings.values()
        ]
        registered = {resource: shelf.healthy for resource, shelf in self.shelves.items()}
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
        document = {"Data": data, "Checksum": zlib.crc32(json.dumps(data, sort_keys=True).encode())}
        beside = self._checkpoint.with_name(f".{self._checkpoint.name}")
        beside.write_text(json.dumps(document))
        beside.replace(self._checkpoint)

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Resource -> (capacity, allocatable). A plugin that is away leaves capacity standing and nothing allocatable."""
        return {resource: (len(shelf.devices), len(shelf.healthy)) for resource, shelf in self.shelves.items()}

    def held_by(self, uid: str, container: str) -> tuple[Holding, ...]:
        return tuple(each for (owner, name, _), each in self.holdings.items() if (owner, name) == (uid, container))

    def free(self, active: frozenset[str]) -> None:
        """Pods that are not active hold nothing."""
        gone = [key for key in self.holdings if key[0] not in active]
        for key in gone:
            del self.holdings[key]
        if gone:
            self.save()

    def choose(self, resource: str, count: int, reusable: set[str]) -> tuple[list[str], list[str], int]:
        """(ids used again, ids to choose from, how many of those are needed). Raises Refused."""
        shelf = self.shelves[resource]
        if not shelf.healthy:
            raise Refused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        again = sorted(reusable)[:count]
        needed = count - len(again)
        taken = {each for holding in self.holdings.values() if holding.resource == resource for each in holding.ids}
        available = [each for each in shelf.healthy if each not in taken]
        if len(available) < needed:
            raise Refused(
                f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(available)}"
            )
        return again, available, needed


def containers_in_order(pod: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], bool]]:
    """(container, whether it is a plain init container), in the order of allocation."""
    spec = pod["spec"]
    init = [(each, each.get("restartPolicy") != "Always") for each in spec.get("initContainers") or ()]
    return [*init, *((each, False) for each in spec.get("containers") or ())]


def asked(container: Mapping[str, Any], known: Mapping[str, Shelf]) -> dict[str, int]:
    """Device-plugin resources a container asks for. One that no plugin ever registered is nobody's business."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: int(value) for name, value in limits.items() if name in known and int(value) > 0}
