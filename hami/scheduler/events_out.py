"""Kubernetes Events about pods, in HAMi's reasons. For people: best effort, never in the way of an answer.

The same sentence about the same pod is sent once; a bounded queue is drained at an even pace of `RATE` a second, so that a
burst of decisions is not slowed by the telling of it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
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
_ROOM_FOR_NAMES: Final = 800
"""Bytes; the API takes 1024 for the whole sentence."""

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
        self._say(about, "FilteringFailed", none_left(nodes), warning=True)

    def filtering_reasons(self, about: About, nodes_by_word: Mapping[str, Sequence[str]]) -> None:
        """One for each word: on which nodes cards failed for it."""
        for word, nodes in nodes_by_word.items():
            self._say(about, "FilteringFailed", left_out_for(word, nodes), warning=True, part=word)

    def filtering_error(self, about: About, message: str) -> None:
        self._say(about, "FilteringFailed", message, warning=True)

    def filtering_succeeded(self, about: About, ranked: Sequence[tuple[str, float]], *, fitting: int, nodes: int) -> None:
        """`ranked`: the chosen node last, before it those that came next; of many nodes only these."""
        winner, _ = ranked[-1]
        scores = ",".join(f"{name}:{score:.2f}" for name, score in ranked)
        left_out = "...," if fitting > len(ranked) else ""
        message = f"find fit node({winner}), {nodes - fitting} nodes not fit, {fitting} nodes fit({left_out}{scores})"
        self._say(about, "FilteringSucceed", message)

    def binding_failed(self, about: About, message: str) -> None:
        self._say(about, "BindingFailed", message, warning=True)

    def binding_succeeded(self, about: About, node: str) -> None:
        self._say(about, "BindingSucceed", f"Successfully binding node [{node}] to {about.namespace}/{about.name}")

    def _say(self, about: About, reason: str, message: str, *, warning: bool = False, part: str = "") -> None:
        """`part` tells apart what is said of one pod under one reason."""
        key = f"{about.uid} {reason} {part}"
        if not self._once.news(key, message):
            return
        if not self._queued(Saying(about, reason, message, warning)):
            self._once.forget(key)
            self._metrics.k8s_events_dropped.inc()

    def _queued(self, saying: Saying) -> bool:
        if not self._bucket.take(self._steady()):
            return False
        try:
            self._send.send_nowait(saying)
        except anyio.WouldBlock:
            return False
        return True

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


def none_left(nodes: int) -> str:
    return f"no available node, {nodes} nodes do not meet"


def left_out_for(word: str, nodes: Sequence[str]) -> str:
    return f"{len(nodes)} nodes {word}({_listed(nodes)})"


def _listed(names: Sequence[str]) -> str:
    """Names up to what an Event can hold."""
    room, shown = _ROOM_FOR_NAMES, 0
    while shown < len(names) and room >= len(names[shown]):
        room -= len(names[shown]) + 1
        shown += 1
    more = f",... {len(names) - shown} more" if shown < len(names) else ""
    return ",".join(names[:shown]) + more
