"""Nodes: what an agent registered, and whether it is there."""

from typing import ClassVar

import msgspec

from hami.domain.cluster import Delivery, Source, Visible
from hami.domain.device import Device


class NodeRegistered(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The full device set of one vendor on this node; replaces that vendor's previous set.

    `source` says who registers: the node's agent, or the scheduler for a plugin that announces them by annotation; `unread` is
    what of that announcement could not be read and was left out.

    A device that was unhealthy stays so: registering again clears no fault, only `DeviceHealthChanged` does.
    """

    TYPE: ClassVar[str] = "hami.node.registered"
    SCHEMA: ClassVar[int] = 1

    vendor: str
    devices: tuple[Device, ...]
    node_uid: str = ""
    boot_id: str = ""
    delivery: Delivery = Delivery.IDENTITY
    agent_version: str = ""
    incarnation: str = ""
    """The log incarnation that the agent last saw."""
    visible: Visible = Visible.UUID
    source: Source = Source.AGENT
    unread: tuple[str, ...] = ()


class NodeLost(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The node's lease expired (or another reason, in words)."""

    TYPE: ClassVar[str] = "hami.node.lost"
    SCHEMA: ClassVar[int] = 1

    reason: str = "lease expired"


class NodeBack(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The node's lease is alive again after NodeLost."""

    TYPE: ClassVar[str] = "hami.node.back"
    SCHEMA: ClassVar[int] = 1


class NodeRemoved(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The Kubernetes Node object is gone; its devices go with it. `node_uid` is the uid that went."""

    TYPE: ClassVar[str] = "hami.node.removed"
    SCHEMA: ClassVar[int] = 1

    node_uid: str = ""
