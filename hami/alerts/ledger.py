"""What was begun and is not finished: an entry of the log is acknowledged when every sink has settled each of its notices."""

from typing import NamedTuple

import anyio


class Receipt(NamedTuple):
    """What a notice came from: an entry of the log, a dead letter sent round again, or neither (what fired at the start)."""

    entry: str = ""
    letter: str = ""


class Ledger:
    def __init__(self) -> None:
        self._open: dict[Receipt, int] = {}
        self._settled: list[Receipt] = []
        self.changed = anyio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, receipt: Receipt) -> bool:
        return receipt in self._open

    def begin(self, receipt: Receipt, deliveries: int) -> None:
        """So many deliveries are to come for it; none means that it is finished."""
        self._open[receipt] = self._open.get(receipt, 0) + deliveries
        if not self._open[receipt]:
            self._finish(receipt)

    def settle(self, receipt: Receipt) -> None:
        """One delivery is over: taken, or in the dead letters."""
        self._open[receipt] -= 1
        if not self._open[receipt]:
            self._finish(receipt)

    def _finish(self, receipt: Receipt) -> None:
        self._settled.append(receipt)
        self._tell()

    def settled(self) -> tuple[Receipt, ...]:
        """Finished, and not yet known to be so by the store."""
        return tuple(self._settled)

    def close(self, receipts: tuple[Receipt, ...]) -> None:
        """The store knows."""
        for receipt in receipts:
            self._settled.remove(receipt)
            self._open.pop(receipt, None)
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()
