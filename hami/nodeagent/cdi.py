"""CDI specifications on disk: written when what they say changes, each file whole or not at all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.events.files import replace_file
from hami.nodeagent.backends.library import FOLDERS
from hami.nodeagent.decide.cdi import EXTRA_NODES, Found, specifications
from hami.nodeagent.decide.listing import CONTROL_NODES, IMEX_FOLDER, ListSettings
from hami.telemetry import get_logger

log = get_logger("cdi")

PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)


class CdiFiles:
    """`write` after every look at the cards. `here` is where the driver's root lies for us, `kinds` what has a file."""

    def __init__(self, folder: Path, settings: ListSettings, *, here: str, hook: str, dev: Path = Path("/dev")) -> None:
        self._folder, self._settings, self._here, self._hook, self._dev = folder, settings, here, hook, dev
        self._written: dict[str, bytes] = {}
        self.kinds: frozenset[str] = frozenset()

    def write(self, devices: Sequence[Device], driver: str) -> None:
        """A folder that cannot be written is said once a change; containers then fail at their runtime, with the name."""
        wanted = {
            name: msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2)
            for name, document in specifications(devices, self._settings, self._found(driver), hook=self._hook).items()
        }
        prefix = f"{self._settings.cdi_vendor}-"
        self.kinds = frozenset(name.removeprefix(prefix).removesuffix(".json") for name in wanted)
        if wanted == self._written:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, text in wanted.items():
                replace_file(self._folder / name, text)
            for name in set(self._written) - set(wanted):
                (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("CDI specifications not written", folder=str(self._folder), error=error.strerror)
            return
        self._written = wanted
        log.info("CDI specifications written", kinds=sorted(self.kinds))

    def _found(self, driver: str) -> Found:
        root = Path(self._here or "/")
        host = self._settings.driver_root.rstrip("/")
        libraries = sorted(
            path for folder in FOLDERS for path in (root / folder).glob(f"lib*.so.{driver}") if driver and path.is_file()
        )
        programs = [path for name in PROGRAMS if (path := root / "usr/bin" / name).is_file()]
        return Found(
            nodes=self._nodes(),
            libraries=tuple(f"{host}/{path.relative_to(root)}" for path in libraries),
            programs=tuple(f"{host}/{path.relative_to(root)}" for path in programs),
        )

    def _nodes(self) -> frozenset[str]:
        starts = (*CONTROL_NODES, "/dev/nvidia", IMEX_FOLDER, *(each for found in EXTRA_NODES.values() for each in found))
        names = (f"/dev/{path.relative_to(self._dev)}" for path in self._dev.glob("nvidia*"))
        deeper = (
            f"/dev/{path.relative_to(self._dev)}"
            for pattern in ("nvidia-caps/*", "nvidia-caps-imex-channels/*", "infiniband/*", "gdrdrv")
            for path in self._dev.glob(pattern)
        )
        return frozenset(name for name in (*names, *deeper) if name.startswith(starts))
