"""What the agent remembers over restarts, in one file: open faults, what it told, whom it served."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs
from hami.events.files import replace_file
from hami.nodeagent.decide.faults import CardHealth
from hami.nodeagent.decide.mig import Owned
from hami.telemetry import get_logger

log = get_logger("state")

FILE: Final = "agent-state.json"
COPY: Final = "agent-state.copy"
"""The same once more: written after the first, read where the first cannot be."""


class Anchor(msgspec.Struct, frozen=True):
    """What the wall said when this boot's time was first looked at: wall time is `offset_ms` and the time since the boot."""

    boot_id: str
    offset_ms: int


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

    `lost` says why what was known of the cards is not known any more, `young` that nothing was ever remembered here (a first
    start, or a folder that was lost): both hold until the log has said what it has against the cards.
    """

    cards: dict[str, CardHealth] = msgspec.field(default_factory=dict)
    seen: tuple[Device, ...] = ()
    told: tuple[Device, ...] = ()
    served: dict[str, ServedContainer] = msgspec.field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    mig: tuple[Owned, ...] = ()
    paused_ms: EpochMs = EpochMs(0)
    lost: str = ""
    young: bool = False
    anchor: Anchor | None = None
    node_uid: str = ""


def read_state(folder: Path) -> AgentState | None:
    """For looking only, as a start of the agent would find it; None when there is none. Raises InvalidInput when neither of the
    two files can be read.
    """
    try:
        return _read(folder / FILE) or _read(folder / COPY)
    except InvalidInput:
        copy = _read(folder / COPY)
        if copy is None:
            raise
        return copy


def damage(folder: Path) -> str:
    """What is wrong with the first file, or with its copy; empty when nothing is."""
    for name in (FILE, COPY):
        try:
            _read(folder / name)
        except InvalidInput as error:
            return f"{name}: {error.why}"
    return ""


def _read(path: Path) -> AgentState | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=AgentState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput("agent state", str(path), str(error)) from error


class StateFile:
    """Loads once, saves whole, twice over. A restart must not launder a fault: what cannot be read is set aside and said aloud,
    the copy stands in for it, and without a readable copy nothing is known of the cards until the log has told.

    A folder that cannot be used at the start is a wrong setting. A save that fails later (a full disk) stops nobody: the
    kubelet must still be served. `trouble` says why, and `retry` saves again.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._copy = folder / FILE, folder / COPY
        self.state = AgentState()
        self.trouble = ""
        self.dirty = False
        """Something was to be saved since the last writing began."""
        self.save_later: Callable[[], None] | None = None
        """Set by whoever does the writing beside the event loop; without one, `save` writes at once."""

    def load(self) -> AgentState:
        """Raises InvalidInput when the folder cannot be made or the file cannot be opened."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._path.read_bytes()
        except OSError as error:
            raise self._unusable(error) from error
        broken: list[str] = []
        for path in (self._path, self._copy):
            try:
                found = _read(path)
            except InvalidInput as error:
                broken.append(self._set_aside(path, error))
                continue
            if found is not None:
                self.state = found
                return self.state
        self.state = AgentState(young=True)
        if broken:
            self.state.lost = f"what was known of it is lost: {broken[0]} could not be read"
            self.save()  # the file is gone now: the next start must not take this node for a new one
        return self.state

    def _set_aside(self, path: Path, error: InvalidInput) -> str:
        aside = path.with_suffix(".broken" if path == self._path else ".copy-broken")
        path.replace(aside)
        log.warning("state unreadable", file=path.name, kept_as=aside.name, error=error.why)
        return path.name

    def save(self) -> None:
        """The state as it is now goes to disk, or soon will."""
        self.dirty = True
        if self.save_later is None:
            self.write(self.encoded())
        else:
            self.save_later()

    def encoded(self) -> bytes:
        """What `write` is to write. On the event loop: the state changes there."""
        self.dirty = False
        return msgspec.json.encode(self.state)

    def write(self, raw: bytes) -> None:
        """Atomic, each file by itself: the old one stands until the new one is whole. In any thread, one call at a time."""
        try:
            for path in (self._path, self._copy):
                replace_file(path, raw)
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
