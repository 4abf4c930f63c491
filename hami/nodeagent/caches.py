"""Folders into which the interception library of each container writes its usage, one for each Allocate."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

PREFIX: Final = "allocate-"
GRACE_S: Final = 600


class CacheFolders:
    """`<hook>/vgpu/containers/allocate-<n>`. Numbers are never used twice while a folder of that number exists."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def next_number(self) -> int:
        numbers = [int(path.name.removeprefix(PREFIX)) for path in self._folders()]
        return max(numbers, default=0) + 1

    def make(self, number: int) -> str:
        """The new folder's path; empty when it cannot be made (the container then runs without usage figures)."""
        folder = self._root / f"{PREFIX}{number}"
        try:
            folder.mkdir(parents=True, exist_ok=False)
            folder.chmod(0o777)  # any user of the container writes here
        except OSError:
            return ""
        return str(folder)

    def sweep(self, used: Collection[str]) -> int:
        """Remove folders that no container holds and that are past the time in which one may still come to hold them."""
        removed = 0
        for folder in self._folders():
            if str(folder) not in used and time.time() - _made_at(folder) > GRACE_S:
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed

    def _folders(self) -> list[Path]:
        """None where the folder is missing or cannot be read: usage figures are not worth a failure."""
        try:
            found = list(self._root.iterdir())
        except OSError:
            return []
        return [path for path in found if path.name.startswith(PREFIX) and path.name[len(PREFIX) :].isdecimal()]


def _made_at(folder: Path) -> float:
    """Now, for one that somebody else has just removed."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return time.time()
