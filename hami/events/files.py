"""Files that outlive the process and must never be half there."""

import os
from pathlib import Path


def replace_file(path: Path, raw: bytes) -> None:
    """The old content stands until the new one is whole and on disk. Raises OSError."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
