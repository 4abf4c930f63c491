"""Builds the scripted NVML library and writes its scripts."""

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml.c"

XID, ECC_DOUBLE_BIT, RETIREMENT_FAILURE, POISON_FATAL, UNAVAILABLE, ACTION = 0x8, 0x2, 0x800, 0x2000, 0x4000, 0x8000
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 4, 15, 16, 999


def compiler() -> list[str]:
    """The machine's own, else the one that comes as a wheel (slow at its first use)."""
    found = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    return [found] if found else [sys.executable, "-m", "ziglang", "cc"]


def build(root: Path) -> Path:
    """A driver root with the library where a real one has it."""
    folder = root / "usr/lib64"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*compiler(), *flags, "-o", str(library), str(SOURCE)], check=True)
    return root


class NvmlScript:
    """The files that the library reads (see the head of fake_nvml.c)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "events").touch()

    def cards(self, *uuids: str, memory: int = 81920, name: str = "A100-SXM4-80GB") -> None:
        lines = [f"{uuid} {memory} {at} {at % 2} 00000000:{16 + at:02X}:00.0 {name}\n" for at, uuid in enumerate(uuids)]
        (self.folder / "devices").write_text("".join(lines))

    def fail(self, function: str, card: int | str, code: int) -> None:
        self._add("fail", f"{function} {card} {code}")

    def mend(self) -> None:
        (self.folder / "fail").unlink(missing_ok=True)

    def field(self, card: int, field: int, value: int) -> None:
        self._add("fields", f"{card} {field} {value}")

    def remap(self, card: int, *, rows: int = 0, pending: int = 0, failure: int = 0) -> None:
        self._add("remap", f"{card} 0 {rows} {pending} {failure}")

    def ecc(self, card: int, uncorrected: int) -> None:
        self._add("ecc", f"{card} {uncorrected}")

    def retired(self, card: int, pages: int, *, pending: int = 0) -> None:
        self._add("retired", f"{card} {pages} {pending}")

    def sram(self, card: int, *, exceeded: int) -> None:
        self._add("sram", f"{card} {exceeded}")

    def unrepairable(self, card: int, flag: int) -> None:
        self._add("repair", f"{card} {flag}")

    def topology(self, one: int, other: int, level: int) -> None:
        self._add("topology", f"{one} {other} {level}")

    def link(self, card: int, link: int, remote: str, *, switch: bool = False) -> None:
        self._add("links", f"{card} {link} {remote} {2 if switch else 0}")

    def types(self, card: int, mask: int) -> None:
        self._add("types", f"{card} {mask}")

    def event(self, card: int, kind: int, data: int = 0, instance: tuple[int, int] | None = None) -> None:
        self._add("events", f"{card} {kind} {data}" + (f" {instance[0]} {instance[1]}" if instance else ""))

    def wait_error(self, code: int) -> None:
        self._add("events", f"error {code}")

    def _add(self, name: str, line: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(line + "\n")
