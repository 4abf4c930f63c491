"""Where the NVML library lies: under the driver's root when that is mounted elsewhere, else where the linker looks."""

import ctypes
from pathlib import Path
from typing import Final

from hami.domain.errors import DeviceUnavailable

SONAME: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)


def find_library(driver_root: str) -> Path | None:
    """The library under a driver root; None means: leave it to the linker."""
    if driver_root in {"", "/"}:
        return None
    for folder in FOLDERS:
        candidate = Path(driver_root) / folder / SONAME
        if candidate.exists():
            return candidate.resolve()
    return None


def preload(driver_root: str) -> None:
    """Load the library found there now, so that a later load by its name finds this one (same SONAME)."""
    found = find_library(driver_root)
    if found is None:
        return
    try:
        ctypes.CDLL(str(found))
    except OSError as error:
        raise DeviceUnavailable(f"{found}: {error}") from None
