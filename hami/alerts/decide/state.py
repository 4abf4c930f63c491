"""What the rules remember of the log. It follows from the log alone, and is what a checkpoint of this room holds.

What is known against a device outlives its registration, as in the cluster fold: it comes back with the device. Dicts of
`AlertState` are owned and changed in place, every value in them is frozen.
"""

from typing import Final

import msgspec

from hami.alerts.decide.notice import Notice
from hami.domain.device import Health
from hami.events.envelope import START, Position


class DeviceMark(msgspec.Struct, frozen=True):
    """What is known against one device. `absent`: its node registered without it, so nobody need hear of it now."""

    health: Health = Health.HEALTHY
    reason: str = ""
    cordoned: str = ""
    """By whom and why, in words; empty = it is not."""
    absent: bool = False

    @property
    def clean(self) -> bool:
        return self.health is Health.HEALTHY and not self.cordoned


CLEAN: Final = DeviceMark()


class NodeMark(msgspec.Struct, frozen=True):
    """`lost` says why, empty = it is there. `registered` is vendor -> its devices. `gone`: the Node object was removed."""

    uid: str = ""
    lost: str = ""
    gone: bool = False
    registered: dict[str, tuple[str, ...]] = {}
    devices: dict[str, DeviceMark] = {}


class AlertState(msgspec.Struct, kw_only=True):
    """`previous` is the position before `position`, so that a reader can ask the log whether it still stands.

    `seen` is producer -> (epoch, seq) last looked at. `pods` is reservation -> namespace/name while it lives. `firing` holds
    the notice that began each condition that lasts now, by `Notice.about`.
    """

    position: Position = START
    previous: Position = START
    seen: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    nodes: dict[str, NodeMark] = msgspec.field(default_factory=dict)
    pods: dict[str, str] = msgspec.field(default_factory=dict)
    firing: dict[str, Notice] = msgspec.field(default_factory=dict)
    announce: bool = False
    """Not from the log: what fires at this position was not told to everybody yet (see boot.py)."""
