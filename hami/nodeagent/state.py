"""What the agent remembers over restarts, in one file: open faults, what it told, whom it served."""

import os
from pathlib import Path
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs
from hami.nodeagent.decide.faults import CardHealth
from hami.nodeagent.decide.mig import Owned
from hami.telemetry import get_logger

log = get_logger("state")

FILE: Final = "agent-state.json"


class ServedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container that has its devices: where its usage is written, and for which reservation."""

    pod_uid: str
    container: str
    reservation: str = ""
    cache_dir: str = ""
    told: bool = True
    """Whether the cluster has heard of it for certain; else it is told again after a restart."""


class AgentState(msgspec.Struct, kw_only=True):
    """`cards` by uuid; `seen` are the cards as the library last described them, `told` the device set of the last
    registration; `served` by `<pod uid>/<container>`; `cleared` the last operators' requests that were answered, by event id;
    `mig` the MIG instances made for reservations, from before they are made; `paused_ms` since when an operator holds the gate.
    """

    cards: dict[str, CardHealth] = msgspec.field(default_factory=dict)
    seen: tuple[Device, ...] = ()
    told: tuple[Device, ...] = ()
    served: dict[str, ServedContainer] = msgspec.field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    mig: tuple[Owned, ...] = ()
    paused_ms: EpochMs = EpochMs(0)


def read_state(folder: Path) -> AgentState | None:
    """For looking only; None when there is none. Raises InvalidInput."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=AgentState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput("agent state", str(folder / FILE), str(error)) from error


class StateFile:
    """Loads once, saves whole. A restart must not launder a fault: what cannot be read is set aside and said aloud.

    A folder that cannot be used at the start is a wrong setting. A save that fails later (a full disk) stops nobody: the
    kubelet must still be served. `trouble` says why, and `retry` saves again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.state = AgentState()
        self.trouble = ""

    def load(self) -> AgentState:
        """Raises InvalidInput when the folder cannot be made or the file cannot be opened."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            raw = self._path.read_bytes()
        except FileNotFoundError as error:
            if self._path.parent.is_dir():
                return self.state
            raise self._unusable(error) from error
        except OSError as error:
            raise self._unusable(error) from error
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
        try:
            with beside.open("wb") as file:
                file.write(msgspec.json.encode(self.state))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            why = f"agent.state_dir {self._path.parent} cannot be written: {error.strerror}"
            if why != self.trouble:
                log.warning("state not saved: a restart now would forget what is known of the cards", error=why)
            self.trouble = why
            return
        self.trouble = ""

    def retry(self) -> None:
        """Save once more if the last save failed."""
        if self.trouble:
            self.save()

    def _unusable(self, error: OSError) -> InvalidInput:
        return InvalidInput("agent.state_dir", str(self._path.parent), error.strerror or "cannot be used")
