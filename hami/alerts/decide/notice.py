"""The alerts there are, and what is said of one. Names are for ever: somebody's routes and silences hold them."""

from enum import StrEnum
from typing import Final, Self

import msgspec

from hami.domain.units import EpochMs

LONGEST: Final = 1000
"""Characters of a description: an error text from a node may be of any length."""


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Alert(StrEnum):
    """Every alert: its name, how bad it is, whether it lasts (fires, then is resolved) or happened once, and what it says."""

    severity: Severity
    lasting: bool
    summary: str

    def __new__(cls, name: str, severity: Severity, lasting: bool, summary: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.severity, member.lasting, member.summary = severity, lasting, summary
        return member

    DEVICE_UNHEALTHY = ("HamiDeviceUnhealthy", Severity.CRITICAL, True, "A device is unhealthy: no new pod gets it.")
    DEVICE_SUSPECT = ("HamiDeviceSuspect", Severity.WARNING, True, "A device is suspect: no new pod gets it for now.")
    DEVICE_UNKNOWN = ("HamiDeviceUnknown", Severity.WARNING, True, "Nobody knows how a device is: no new pod gets it.")
    DEVICE_CORDONED = ("HamiDeviceCordoned", Severity.INFO, True, "An operator keeps new pods off a device.")
    NODE_LOST = ("HamiNodeLost", Severity.CRITICAL, True, "A node's agent no longer renews its lease.")
    SEVERAL_NODES_LOST = ("HamiSeveralNodesLost", Severity.CRITICAL, True, "Several nodes are lost at the same time.")

    DEVICE_FAULT = ("HamiDeviceFault", Severity.WARNING, False, "A device reported a fault; each repeat counts.")
    DEVICE_GONE = ("HamiDeviceGone", Severity.WARNING, False, "A node no longer has a device that it had registered.")
    SERVED_OTHERWISE = (
        "HamiServedOtherwise",
        Severity.CRITICAL,
        False,
        "A container was served something else than was reserved for it.",
    )
    ALLOCATION_FAILED = ("HamiAllocationFailed", Severity.WARNING, False, "A pod could not be bound or given its devices.")
    MIG_FAILED = ("HamiMigFailed", Severity.WARNING, False, "A MIG instance could not be made.")
    LOCK_WAITED = ("HamiLockWaitTimedOut", Severity.INFO, False, "A bind waited in vain for its node's lock.")
    INPUT_REJECTED = ("HamiInputRejected", Severity.WARNING, False, "An annotation, a quota or a setting was left out.")
    EVENTS_LOST = ("HamiEventsLost", Severity.CRITICAL, False, "Events of a producer are missing from the log for good.")
    EVENT_UNREADABLE = ("HamiEventUnreadable", Severity.CRITICAL, False, "An event cannot be read; its node is quarantined.")
    LOG_TRUNCATED = ("HamiLogTruncated", Severity.CRITICAL, False, "Entries of the log are gone that somebody still wanted.")


class Status(StrEnum):
    """FIRING and RESOLVED come in turn, for alerts that last. ONCE: it happened."""

    FIRING = "firing"
    RESOLVED = "resolved"
    ONCE = "once"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell. `event` is the id of the event that it follows from.

    Times are the store's. `node`, `device` and `pod` are empty where they say nothing.
    """

    alert: Alert
    status: Status
    event: str
    started_ms: EpochMs
    ended_ms: EpochMs = EpochMs(0)
    node: str = ""
    device: str = ""
    pod: str = ""
    description: str = ""

    @property
    def key(self) -> str:
        """The same for the same notice, whoever sends it again and when: what a receiver drops duplicates by."""
        return f"{self.event}:{self.alert.value}:{self.device or self.pod or self.node}"

    @property
    def about(self) -> str:
        """The condition itself: one that lasts has the same in all its notices."""
        return f"{self.alert.value}|{self.node}|{self.device}"

    @property
    def labels(self) -> dict[str, str]:
        found = {"node": self.node, "device": self.device, "pod": self.pod}
        return {name: value for name, value in found.items() if value}
