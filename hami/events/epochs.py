"""An agent's epoch: a counter on its disk that never falls, not even when the disk is lost."""

import time
from pathlib import Path

from hami.domain.errors import StoreUnavailable
from hami.events.files import replace_file


class EpochFile:
    """`next()` is higher than every epoch this node ever had: one more than the file says, and not below the time in seconds,
    which covers a lost file; the file covers a clock that was set back. Raises StoreUnavailable while it cannot be written: an
    epoch that is not on disk could be given out twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def next(self) -> int:
        epoch = max(self._last() + 1, int(time.time()))
        try:
            self._write(epoch)
        except OSError as error:
            raise StoreUnavailable(f"epoch file {self._path}: {error.strerror}") from error
        return epoch

    def _write(self, epoch: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, f"{epoch}\n".encode())

    def _last(self) -> int:
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return 0
