"""The gate: while an operator changes MIG, the agent lets go of the cards. What cannot be seen meanwhile is on record.

A file closes it, its absence opens it again: any tool of any container can say so, and it outlives a restart of the agent.
`<file>.clear` answers that the library is closed; a change of mode would fail while somebody listens to the card.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio

from hami.domain.units import EpochMs
from hami.events.catalog.device import HealthWatchPaused, HealthWatchResumed
from hami.nodeagent.ports import Publisher
from hami.nodeagent.state import StateFile
from hami.telemetry import get_logger

log = get_logger("gate")

HOLDER: Final = "mig-apply"


class Gate:
    """`file` closes it. What was begun is remembered, so that a killed agent still says for how long nobody looked."""

    def __init__(
        self, file: Path, memory: StateFile, publisher: Publisher, *, clock: Callable[[], EpochMs], poll_s: float = 0.25
    ) -> None:
        self._file, self._memory, self._publisher = file, memory, publisher
        self._clock, self._poll_s = clock, poll_s
        self.answer = file.with_name(file.name + ".clear")

    @property
    def closed(self) -> bool:
        return self._file.exists()

    @property
    def blind(self) -> bool:
        """From closing until somebody has looked again."""
        return self._memory.state.paused_ms > 0

    async def until(self, *, closed: bool) -> None:
        while self.closed is not closed:  # noqa: ASYNC110 - a file is what is waited for
            await anyio.sleep(self._poll_s)

    def shut(self) -> None:
        """Call it when nothing asks the cards any more, and before the library is closed."""
        if not self.blind:
            self._memory.state.paused_ms = self._clock()
            self._memory.save()
            self._publisher.publish(HealthWatchPaused(holder=HOLDER))
        log.warning("gate closed: faults cannot be seen, nothing is registered", file=str(self._file))

    def clear(self) -> None:
        """The library is closed: the operator may go on."""
        try:
            self.answer.touch()
        except OSError as error:
            log.warning("gate cannot answer", file=str(self.answer), error=error.strerror)

    def reopened(self) -> None:
        """Every card has been looked at and asked."""
        self.answer.unlink(missing_ok=True)
        if self.blind:
            blind_ms = max(0, self._clock() - self._memory.state.paused_ms)
            self._memory.state.paused_ms = EpochMs(0)
            self._memory.save()
            self._publisher.publish(HealthWatchResumed(holder=HOLDER, blind_ms=blind_ms))
            log.warning("gate open again", blind_ms=blind_ms)
