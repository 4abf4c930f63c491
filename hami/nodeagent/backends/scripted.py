"""Simulated devices told by files, so that another process can act on them: the demo's and docker compose's agents.

`<file>` holds `{"devices": [...]}` in domain terms; lines appended to `<file>.faults` act at once, one JSON object each:
`{"uuid": "GPU-a", "xid": 79}`, `{"uuid": "GPU-a", "lose": true}` or `{"uuid": "GPU-a", "restore": true}`. What is cut by MIG
is kept in `<file>.mig`, as a real card keeps it over the agent's restarts.
"""

from pathlib import Path
from typing import Final

import anyio
import msgspec

from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.nodeagent.backends.simulated import SimulatedBackend
from hami.nodeagent.backends.simulated_mig import SimulatedMig
from hami.telemetry import get_logger

log = get_logger("simulated")

POLL_S: Final = 0.1


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: tuple[Device, ...]


class Act(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uuid: str
    xid: int | None = None
    lose: bool = False
    restore: bool = False
    hold: str = ""
    """A step of cutting that does not return from now on (see SimulatedMig.hold)."""


def load_script(path: Path) -> tuple[Device, ...]:
    """Raises InvalidInput where the file is missing or malformed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script).devices
    except OSError as error:
        raise InvalidInput("agent.simulated_devices", str(path), error.strerror or "cannot be read") from error
    except msgspec.DecodeError as error:
        raise InvalidInput("agent.simulated_devices", str(path), str(error)) from error


class ScriptedBackend(SimulatedBackend):
    """A simulated backend and the file it listens to: `follow` runs beside the agent."""

    def __init__(self, path: Path) -> None:
        super().__init__(load_script(path), mig=SimulatedMig(file=path.with_name(path.name + ".mig")))
        self._faults = path.with_name(path.name + ".faults")

    async def follow(self) -> None:
        """For ever. Lines that were there at the start are history. The file is read when its size has changed: a look at that
        costs next to nothing, and there are ten a second.
        """
        file = anyio.Path(self._faults)
        size = _size(self._faults)
        done = (await file.read_text()).count("\n") if size else 0
        while True:
            await anyio.sleep(POLL_S)
            if _size(self._faults) == size:
                continue
            size = _size(self._faults)
            text = await file.read_text() if size else ""
            whole = text.count("\n")
            for line in text.splitlines()[done:whole]:
                self._act(line)
            done = whole

    def _act(self, line: str) -> None:
        try:
            act = msgspec.json.decode(line, type=Act)
        except msgspec.DecodeError as error:
            log.warning("line not understood", line=line[:200], error=str(error))
            return
        if act.hold:
            self.mig.hold(act.hold)
            log.info("a step hangs from now on", step=act.hold)
        elif act.lose:
            self.lose(act.uuid)
        elif act.restore:
            self.restore(act.uuid)
        elif act.xid is not None:
            self.strike(act.uuid, act.xid)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
