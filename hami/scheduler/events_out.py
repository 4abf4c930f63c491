"""Kubernetes Events about pods, in HAMi's reasons. For people: best effort, never in the way of an answer.

The same sentence about the same pod is sent once; a bounded queue is drained at an even pace of `RATE` a second, so that a
burst of decisions is not slowed by the telling of it.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio
import msgspec

from hami.domain.errors import HamiError
from hami.scheduler.metrics import Metrics
from hami.scheduler.notes import Once, TokenBucket
from hami.telemetry import get_logger

RATE: Final = 20.0
BURST: Final = 100
_ROOM: Final = 1000
_log = get_logger("scheduler.events")


class About(msgspec.Struct, frozen=True):
    """The pod that an Event is about."""

    namespace: str
    name: str
    uid: str


class Saying(msgspec.Struct, frozen=True):
    about: About
    reason: str
    message: str
    warning: bool


class Teller(Protocol):
    """Sends one Event to the API. Raises HamiError."""

    async def __call__(self, saying: Saying, moment: datetime) -> None: ...


class EventsOut:
    def __init__(self, tell: Teller, metrics: Metrics, *, steady: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._metrics, self._steady = tell, metrics, steady
        self._once = Once()
        self._bucket = TokenBucket(RATE, BURST)
        self._send, self._receive = anyio.create_memory_object_stream[Saying](_ROOM)

    def filtering_failed(self, about: About, nodes: int) -> None:
        self._say(about, "FilteringFailed", f"no available node, {nodes} nodes do not meet", warning=True)

    def filtering_error(self, about: About, message: str) -> None:
        self._say(about, "FilteringFailed", message, warning=True)

    def filtering_succeeded(self, about: About, node: str, score: float, *, fitting: int, nodes: int) -> None:
        message = f"find fit node({node}), {nodes - fitting} nodes not fit, {fitting} nodes fit({node}:{score:.2f})"
        self._say(about, "FilteringSucceed", message)

    def binding_failed(self, about: About, message: str) -> None:
        self._say(about, "BindingFailed", message, warning=True)

    def binding_succeeded(self, about: About, node: str) -> None:
        self._say(about, "BindingSucceed", f"Successfully binding node [{node}] to {about.namespace}/{about.name}")

    def _say(self, about: About, reason: str, message: str, *, warning: bool = False) -> None:
        if not self._once.news(f"{about.uid} {reason}", message):
            return
        if not self._bucket.take(self._steady()):
            self._metrics.k8s_events_dropped.inc()
            return
        try:
            self._send.send_nowait(Saying(about, reason, message, warning))
        except anyio.WouldBlock:
            self._metrics.k8s_events_dropped.inc()

    async def run(self) -> None:
        while True:
            saying = await self._receive.receive()
            try:
                await self._tell(saying, datetime.now(UTC))
            except HamiError as error:
                self._metrics.k8s_events_dropped.inc()
                _log.info("Kubernetes Event not sent", reason=saying.reason, pod=saying.about.name, error=str(error))
            await anyio.sleep(1 / RATE)

    def close(self) -> None:
        self._send.close()
        self._receive.close()
