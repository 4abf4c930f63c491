"""What the agent remembers over restarts, in one file: open faults, what it told, whom it served."""

import os
from pathlib import Path
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.nodeagent.decide.faults import CardHealth
from hami.telemetry import get_logger

log = get_logger("state")

FILE: Final = "agent-state.json"


class ServedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container that has its devices: where its usage is written, and for which reservation."""

    pod_uid: str
    container: str
    reservation: str = ""
    cache_dir: str = ""


class AgentState(msgspec.Struct, kw_only=True):
    """`cards` by uuid; `seen` are the cards as the library last described them, `told` the device set of the last
    registration; `served` by `<pod uid>/<container>`; `cleared` the last operators' requests that were answered, by event id.
    """

    cards: dict[str, CardHealth] = msgspec.field(default_factory=dict)
    seen: tuple[Device, ...] = ()
    told: tuple[Device, ...] = ()
    served: dict[str, ServedContainer] = msgspec.field(default_factory=dict)
    cleared: tuple[str, ...] = ()


class StateFile:
    """Loads once, saves whole. A restart must not launder a fault: what cannot be read is set aside and said aloud."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.state = AgentState()

    def load(self) -> AgentState:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return self.state
        try:
            self.state = msgspec.json.decode(raw, type=AgentState)
        except msgspec.MsgspecError as error:
            aside = self._path.with_suffix(".broken")
            self._path.replace(aside)
            log.warning("state unreadable, starting without it", file=self._path.name, kept_as=aside.name, error=str(error))
        return self.state

    def save(self) -> None:
        """Atomic: the old file stands until the new one is whole."""
        beside = self._path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(self.state))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
