"""decide for CDI: the specifications that tell a container runtime what a named device means on this node. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from hami.domain.device import Device
from hami.nodeagent.decide.listing import CONTROL_NODES, IMEX_FOLDER, ListSettings, card_of

VERSION: Final = "0.5.0"
EXTRA_NODES: Final[Mapping[str, tuple[str, ...]]] = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs",),
    "mofed": ("/dev/infiniband/",),
}
"""What each extra brings: device nodes whose path begins so."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What lies on this machine: device nodes, and the driver's files as the host names them."""

    nodes: frozenset[str] = frozenset()
    libraries: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


def specifications(devices: Sequence[Device], settings: ListSettings, found: Found, *, hook: str) -> dict[str, dict[str, Any]]:
    """File name -> document, for each kind that has a device. A card without a known node of its own is left out."""
    gpus = [card_of(device, by_index=settings.by_index) for device in devices]
    present = [card for card in gpus if card.nodes and found.nodes.issuperset(card.nodes)]
    kinds: dict[str, list[dict[str, Any]]] = {
        "gpu": [_device(card.name, card.nodes, settings) for card in present],
        "imex-channel": [
            _device(str(channel), (f"{IMEX_FOLDER}/channel{channel}",), settings)
            for channel in settings.imex
            if f"{IMEX_FOLDER}/channel{channel}" in found.nodes
        ],
    }
    for extra in settings.extras:
        nodes = sorted(node for node in found.nodes if node.startswith(EXTRA_NODES[extra]))
        kinds[extra] = [_device("all", nodes, settings)] if nodes else []
    if len(kinds["gpu"]) > 1:
        nodes = [*dict.fromkeys(node for card in present for node in card.nodes)]
        kinds["gpu"].append(_device("all", nodes, settings))
    vendor = settings.cdi_vendor
    return {
        f"{vendor}-{kind}.json": {
            "cdiVersion": VERSION,
            "kind": f"{vendor}/{kind}",
            "devices": entries,
            "containerEdits": _common(settings, found, hook) if kind == "gpu" else {},
        }
        for kind, entries in kinds.items()
        if entries
    }


def _device(name: str, nodes: Sequence[str], settings: ListSettings) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [_node(node, settings) for node in nodes]}}


def _node(path: str, settings: ListSettings) -> dict[str, Any]:
    root = settings.dev_root.rstrip("/")
    return {"path": path, "hostPath": f"{root}{path}", "permissions": "rw"} if root else {"path": path, "permissions": "rw"}


def _common(settings: ListSettings, found: Found, hook: str) -> dict[str, Any]:
    """What every container with a card gets: control nodes, the driver's files, a linker cache that knows them.

    The variable is voided, so that an older hook of the runtime does not bring devices in a second time.
    """
    folders = [*dict.fromkeys(_inside(library, settings).rpartition("/")[0] for library in found.libraries)]
    edits: dict[str, Any] = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [_node(node, settings) for node in CONTROL_NODES if node in found.nodes],
        "mounts": [
            {
                "hostPath": path,
                "containerPath": _inside(path, settings),
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
            for path in (*found.libraries, *found.programs)
        ],
    }
    if folders and hook:
        folder_flags = [part for folder in folders for part in ("--folder", folder)]
        name = hook.rpartition("/")[2]
        verb = ["hook"] if name == "nvidia-ctk" else []
        arguments = [name, *verb, "update-ldcache", *folder_flags]
        edits["hooks"] = [{"hookName": "createContainer", "path": hook, "args": arguments}]
    return edits


def _inside(path: str, settings: ListSettings) -> str:
    """The driver's files keep their place, without the host's driver root in front."""
    root = settings.driver_root.rstrip("/")
    return path.removeprefix(root) if root else path
