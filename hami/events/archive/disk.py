"""The few things that sealing does to a disk, so that a test can stop between any two of them."""

import os
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """Each step is on the disk when it returns."""

    def write(self, path: Path, data: bytes) -> None: ...

    def replace(self, temporary: Path, final: Path) -> None:
        """Give a file its name, whatever had it."""
        ...

    def claim(self, temporary: Path, final: Path) -> None:
        """Give a file a name that nothing has. Raises FileExistsError."""
        ...

    def remove(self, path: Path) -> None: ...


class RealDisk:
    """Implements Disk."""

    def write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, temporary: Path, final: Path) -> None:
        temporary.replace(final)
        _sync(final.parent)

    def claim(self, temporary: Path, final: Path) -> None:
        """A hard link, since renaming would replace. It goes by itself where a file system has none (some network mounts)."""
        try:
            os.link(temporary, final)
        except FileExistsError:
            raise
        except OSError:
            if final.exists():
                raise FileExistsError(final) from None
            temporary.replace(final)
        _sync(final.parent)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
