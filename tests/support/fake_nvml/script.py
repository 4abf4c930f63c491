"""Builds the scripted NVML library and writes its scripts."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml.c"

XID, ECC_DOUBLE_BIT, RETIREMENT_FAILURE, POISON_FATAL, UNAVAILABLE, ACTION = 0x8, 0x2, 0x800, 0x2000, 0x4000, 0x8000
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 4, 15, 16, 999

NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 6, 19, 23
A100 = """\
0 19 1 7 14 9728 1 0,1,2,3,4,5,6 1g.10gb
1 14 2 3 28 19968 2 0,2,4 2g.20gb
2 9 3 2 42 40192 4 0,4 3g.40gb
3 5 4 1 56 40192 4 0 4g.40gb
4 0 7 1 98 81152 8 0 7g.80gb
7 20 1 1 14 9728 1 0,1,2,3,4,5,6 1g.10gb+me
"""
"""Slot, id, slices, how many, processors, memory, size, places, name: as the cards list them."""


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

    def mig(self, *cards: int) -> None:
        """These cards are in MIG mode; all of them can be cut as an A100 of 80 GB."""
        (self.folder / "mig").write_text("".join(f"{card} 1 1\n" for card in cards))
        (self.folder / "profiles").write_text(A100)

    def needs_reset(self, card: int) -> None:
        self._add("reset", f"{card}")

    def cut(self, card: int, instance: int, profile: int, start: int, size: int, *, slices: Sequence[int] = ()) -> None:
        """An instance made by hand, with a compute instance for each number of slices."""
        self._add("cuts", f"G {card} {instance} {profile} {start} {size}")
        for number, each in enumerate(slices):
            self._add("cuts", f"C {card} {instance} {number} {each}")

    def busy(self, uuid: str) -> None:
        self._add("busy", uuid)

    def types(self, card: int, mask: int) -> None:
        self._add("types", f"{card} {mask}")

    def event(self, card: int, kind: int, data: int = 0, instance: tuple[int, int] | None = None) -> None:
        self._add("events", f"{card} {kind} {data}" + (f" {instance[0]} {instance[1]}" if instance else ""))

    def wait_error(self, code: int) -> None:
        self._add("events", f"error {code}")

    def _add(self, name: str, line: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(line + "\n")
