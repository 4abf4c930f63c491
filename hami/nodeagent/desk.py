"""Between the agent's parts and the outbox: nothing leaves before what was remembered with it is on disk.

The disk may take long (tens of milliseconds for one flush), and the kubelet must not wait for it: whoever changes something
marks the board, remembers and publishes, all at once, and goes on. The desk saves beside the event loop, then passes the events
on in the order in which they came. Several changes that came meanwhile share one save.
"""

from collections import deque

import anyio
import msgspec
from anyio import to_thread

from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.union import Event
from hami.events.outbox import OutboxState
from hami.nodeagent.ports import Publisher
from hami.nodeagent.state import StateFile
from hami.telemetry import get_logger

log = get_logger("desk")


class Desk:
    """Implements Publisher before another one. All parts of one agent publish here, so that their order is one."""

    def __init__(self, memory: StateFile, publisher: Publisher) -> None:
        self._memory, self._publisher = memory, publisher
        self._waiting: deque[tuple[Event, str]] = deque()
        self._wake = anyio.Event()
        self._writing = False
        self._written = anyio.Event()
        memory.save_later = self._changed

    @property
    def state(self) -> OutboxState:
        behind = self._publisher.state
        return behind if not self._waiting else msgspec.structs.replace(behind, idle=False)

    @property
    def empty(self) -> bool:
        """All that was published is passed on, all that was to be saved is saved."""
        return not (self._waiting or self._memory.dirty or self._wake.is_set() or self._writing)

    async def saved(self) -> None:
        """Until all that was to be remembered by now is on disk: for what must not be begun before."""
        while self._memory.dirty or self._writing:
            await self._written.wait()

    def resend(self, epoch: int, seq: int) -> None:
        self._publisher.resend(epoch, seq)

    def publish(self, event: Event, *, subject: str = "") -> None:
        self._waiting.append((event, subject))
        self._wake.set()

    async def run(self) -> None:
        """For ever; what is still here at the end is saved and passed on."""
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                count = len(self._waiting)
                if self._memory.dirty:
                    self._writing = True
                    await to_thread.run_sync(self._memory.write, self._memory.encoded())
                    self._writing = False
                    self._written.set()
                    self._written = anyio.Event()
                self._pass_on(count)
        finally:
            if self._memory.dirty or self._writing:  # cancelled before the thread had it, or while it had something older
                self._memory.write(self._memory.encoded())
            self._pass_on(len(self._waiting))

    def _pass_on(self, count: int) -> None:
        for _ in range(count):
            event, subject = self._waiting.popleft()
            if isinstance(event, DeviceHealthChanged):
                log.warning("health changed", device=event.device, health=event.now.value, reason=event.reason)
            self._publisher.publish(event, subject=subject)

    def _changed(self) -> None:
        self._wake.set()
