"""One sink's own queue, so that a sink that is away holds up nobody else.

queue -> deliver --taken--> settled
             |--away--> the same again, later and later, for as long as it takes
             '--refused--> again, DELIVERIES times in all --> dead letters, settled
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import anyio

from hami.alerts.decide.notice import Notice
from hami.alerts.decide.wire import encode_notice
from hami.alerts.ledger import Ledger, Receipt
from hami.alerts.metrics import Metrics
from hami.alerts.sinks.base import Answer, Away, Refused, Sink, Taken
from hami.events.backoff import Backoff
from hami.events.group import Group
from hami.telemetry import get_logger

DELIVERIES: Final = 5
"""So often a sink may refuse a notice before it is given up."""

_log = get_logger("alerts")


class Errand(NamedTuple):
    receipt: Receipt
    notice: Notice


class Courier:
    """`firing` gives what fires now, for sinks that want to be told again."""

    def __init__(
        self,
        sink: Sink,
        ledger: Ledger,
        group: Group,
        metrics: Metrics,
        *,
        firing: Callable[[], Sequence[Notice]],
        retry_most_s: float,
    ) -> None:
        self.sink, self._ledger, self._group, self._metrics = sink, ledger, group, metrics
        self._firing = firing
        self._retry = Backoff(least_s=min(0.5, retry_most_s), most_s=retry_most_s)
        self._queue: deque[Errand] = deque()
        self._came = anyio.Event()
        self._trouble = ""
        self._told_at = -float("inf")
        metrics.waiting.labels(sink.name).set(0)

    def put(self, errand: Errand) -> None:
        self._queue.append(errand)
        self._metrics.waiting.labels(self.sink.name).set(len(self._queue))
        self._came.set()

    async def run(self) -> None:
        while True:
            if self._queue:
                await self._deliver(self._queue[0])
                self._queue.popleft()
                self._metrics.waiting.labels(self.sink.name).set(len(self._queue))
            elif await self._rest():
                await self._refresh()

    async def _rest(self) -> bool:
        """Until there is something to do. True: the receiver is to be told again what fires."""
        self._came = anyio.Event()
        every = self.sink.refresh_s
        due = self._told_at + every if every else float("inf")
        with anyio.move_on_after(due - anyio.current_time()):
            await self._came.wait()
            return False
        return True

    async def _refresh(self) -> None:
        """What fires was told already, so that a failure here loses nothing: the next round is another try."""
        self._told_at = anyio.current_time()
        firing = self._firing()
        if firing:
            self._note(await self.sink.refresh(firing))

    async def _deliver(self, errand: Errand) -> None:
        refusals = 0
        while True:
            answer = await self.sink.deliver(errand.notice)
            self._note(answer)
            if isinstance(answer, Taken):
                self._metrics.sent.labels(errand.notice.alert.value, self.sink.name).inc()
                break
            refusals += isinstance(answer, Refused)
            if isinstance(answer, Refused) and refusals >= DELIVERIES:
                await self._bury(errand, answer.why)
                break
            await self._retry.wait()
        self._retry.reset()
        self._ledger.settle(errand.receipt)

    async def _bury(self, errand: Errand, why: str) -> None:
        notice = errand.notice
        entry = errand.receipt.entry or notice.event
        await self._group.bury(entry, node=notice.node, to=self.sink.name, raw=encode_notice(notice), why=why)
        self._metrics.dead.labels(self.sink.name).inc()
        _log.error("notice given up", sink=self.sink.name, alert=notice.alert.value, key=notice.key, why=why)

    def _note(self, answer: Answer) -> None:
        """Counts every failure, logs each kind of trouble once."""
        match answer:
            case Taken():
                trouble = ""
            case Away(why=why):
                self._metrics.failures.labels(self.sink.name, "away").inc()
                trouble = why
            case Refused(why=why):
                self._metrics.failures.labels(self.sink.name, "refused").inc()
                trouble = why
        if trouble and trouble != self._trouble:
            _log.warning("sink does not take notices", sink=self.sink.name, why=trouble)
        if self._trouble and not trouble:
            _log.info("sink takes notices again", sink=self.sink.name)
        self._trouble = trouble
