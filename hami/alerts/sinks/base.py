"""What a sink promises. Delivery is at least once: a receiver knows a repeat by `Notice.key`, or by labels."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hami.alerts.decide.notice import Notice


class Taken(msgspec.Struct, frozen=True):
    """The receiver has it."""


class Away(msgspec.Struct, frozen=True):
    """It did not get through, or the receiver has trouble of its own: the same again later."""

    why: str


class Refused(msgspec.Struct, frozen=True):
    """The receiver does not want this notice as it is."""

    why: str


Answer = Taken | Away | Refused


class Sink(Protocol):
    """One receiver. Called for one notice at a time, in the log's order."""

    @property
    def name(self) -> str:
        """A word for metrics, logs and dead letters; no two sinks of a process share one."""
        ...

    @property
    def refresh_s(self) -> float:
        """How often the receiver must be told again what fires; 0 = never."""
        ...

    async def deliver(self, notice: Notice) -> Answer: ...

    async def refresh(self, firing: Sequence[Notice]) -> Answer: ...
