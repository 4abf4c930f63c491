"""decide for device lists: how a container's runtime is told which devices to bring in. Pure.

    envvar             environment, resolved by the pod itself        identity delivery
    volume-mounts      one mount a device, in the answer              ordered delivery
    cdi-annotations    CDI names in the answer's annotations          ordered delivery
    cdi-cri            CDI names in a field of the answer             ordered delivery
    device nodes       in the answer, beside any of the above         ordered delivery

The first is for everybody; the others make the answer to Allocate a container's own.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from hami.domain.cluster import Delivery, Visible
from hami.domain.device import Device
from hami.nodeagent.decide.container import VISIBLE, ContainerEdits, DeviceNode, Mount
from hami.nodeagent.decide.pieces import CAPS, CARD

MOUNTED_LIST: Final = "/var/run/nvidia-container-devices"
CDI_VENDOR: Final = "k8s.device-plugin.nvidia.com"
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
IMEX_FOLDER: Final = "/dev/nvidia-caps-imex-channels"


class ListStrategy(StrEnum):
    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


CDI: Final = frozenset({ListStrategy.CDI_ANNOTATIONS, ListStrategy.CDI_CRI})


class ListSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`by_index` names cards by number instead of uuid. `extras` are what goes along with any device (gdrcopy, gds, mofed)."""

    strategies: tuple[ListStrategy, ...] = (ListStrategy.ENVVAR,)
    by_index: bool = False
    device_nodes: bool = False
    dev_root: str = ""
    driver_root: str = ""
    cdi_prefix: str = "cdi.k8s.io/"
    cdi_vendor: str = CDI_VENDOR
    imex: tuple[int, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def cdi(self) -> bool:
        return bool(CDI.intersection(self.strategies))

    @property
    def delivery(self) -> Delivery:
        """In identity delivery every answer is the same; what names devices needs to know whose it is."""
        if self.strategies == (ListStrategy.ENVVAR,) and not self.device_nodes:
            return Delivery.IDENTITY
        return Delivery.ORDERED

    @property
    def visible(self) -> Visible:
        """What the pod's own environment must say for it. Mounts win: a runtime that reads them may not trust the variable."""
        if ListStrategy.VOLUME_MOUNTS in self.strategies:
            return Visible.MOUNTS
        if ListStrategy.ENVVAR in self.strategies:
            return Visible.INDEX if self.by_index else Visible.UUID
        return Visible.NOTHING


class Card(msgspec.Struct, frozen=True, gc=False):
    """A device as a container is told of it: by `name`, with the node of its own (empty = none known).

    A MIG instance has its card's node, and `caps` that open the instance.
    """

    name: str
    node: str = ""
    caps: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node, *self.caps) if self.node else self.caps


def card_of(device: Device, *, by_index: bool) -> Card:
    """A MIG instance has no index of its own."""
    minor = device.attributes.get("minor", "")
    caps = tuple(each for each in device.attributes.get(CAPS, "").split(",") if each)
    name = str(device.index) if by_index and CARD not in device.attributes else device.uuid
    return Card(name, f"/dev/nvidia{minor}" if minor else "", caps)


def listing_edits(
    cards: Sequence[Card], settings: ListSettings, *, present: frozenset[str], response: str, cdi_extras: Sequence[str] = ()
) -> ContainerEdits:
    """What names the devices, by every strategy that is on. `present` are the device nodes that exist on the host,
    `response` makes the annotation's key unlike any other's, `cdi_extras` are the kinds of extras that have a specification.
    """
    names = [*dict.fromkeys(card.name for card in cards if card.name)]
    envs = _envs(names, settings)
    qualified = _qualified(names, settings, cdi_extras) if settings.cdi else ()
    mounts = _mounts(names, settings) if ListStrategy.VOLUME_MOUNTS in settings.strategies else ()
    nodes = _nodes(cards, settings, present) if settings.device_nodes else ()
    annotated = bool(qualified) and ListStrategy.CDI_ANNOTATIONS in settings.strategies
    return ContainerEdits(
        envs=envs,
        mounts=mounts,
        devices=nodes,
        annotations={f"{settings.cdi_prefix}nvidia-device-plugin_{response}": ",".join(qualified)} if annotated else {},
        cdi_devices=qualified if ListStrategy.CDI_CRI in settings.strategies else (),
    )


def _envs(names: Sequence[str], settings: ListSettings) -> dict[str, str]:
    if settings.cdi and not set(settings.strategies) - CDI:
        return {VISIBLE: "void"}
    envs = {VISIBLE: MOUNTED_LIST if ListStrategy.VOLUME_MOUNTS in settings.strategies else ",".join(names)}
    if settings.imex:
        envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, settings.imex))
    return envs | {f"NVIDIA_{extra.upper()}": "enabled" for extra in settings.extras}


def _qualified(names: Sequence[str], settings: ListSettings, extras: Sequence[str]) -> tuple[str, ...]:
    vendor = settings.cdi_vendor
    return (
        *(f"{vendor}/gpu={name}" for name in names),
        *(f"{vendor}/imex-channel={channel}" for channel in settings.imex),
        *(f"{vendor}/{extra}=all" for extra in extras),
    )


def _mounts(names: Sequence[str], settings: ListSettings) -> tuple[Mount, ...]:
    inside = [*names, *(f"imex/{channel}" for channel in settings.imex)]
    return tuple(Mount(f"{MOUNTED_LIST}/{name}", "/dev/null", read_only=False) for name in inside)


def _nodes(cards: Sequence[Card], settings: ListSettings, present: frozenset[str]) -> tuple[DeviceNode, ...]:
    own = (node for card in cards for node in card.nodes)
    imex = (f"{IMEX_FOLDER}/channel{channel}" for channel in settings.imex)
    wanted = dict.fromkeys((*CONTROL_NODES, *own, *imex))
    return tuple(DeviceNode(path, f"{settings.dev_root.rstrip('/')}{path}") for path in wanted if path in present)
