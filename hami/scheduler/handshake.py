"""Handshakes: at start and every `handshake_s` each node is asked what it has; no answer within 60 s is on record.

One replica asks. The question and the answer are events; the node reads the question from its feed.
"""

import math
import os
from typing import Final

import anyio

from hami.domain.cluster import Liveness
from hami.domain.units import EpochMs
from hami.events.catalog.handshake import HandshakeExpired, HandshakeReported, HandshakeRequested
from hami.events.log import Draft
from hami.scheduler.core import Core
from hami.scheduler.jobs import OneOf
from hami.telemetry import get_logger

ANSWER_WITHIN_MS: Final = 60_000
_LOOK_EVERY_S: Final = 1.0
_BATCH: Final = 100
_log = get_logger("scheduler.handshake")


class Handshake:
    """Questions that are open, by nonce: which node, until when."""

    def __init__(self, core: Core, job: OneOf) -> None:
        self._core, self._job = core, job
        self._open: dict[str, tuple[str, EpochMs]] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            await self._core.catch_up()
            tasks.start_soon(self._hear_answers)
            await self._ask_and_expire()

    async def _ask_and_expire(self) -> None:
        every = self._core.settings.handshake_s
        next_round, why = anyio.current_time(), "scheduler started"
        while True:
            if anyio.current_time() >= next_round:
                if await self._job.mine():
                    await self.ask_all(why)
                next_round, why = anyio.current_time() + (every or math.inf), "periodic"
            await self.expire()
            await anyio.sleep(min(_LOOK_EVERY_S, every) if every else _LOOK_EVERY_S)

    async def ask_all(self, why: str) -> None:
        deadline = EpochMs(self._core.clock.now() + ANSWER_WITHIN_MS)
        nodes = [node.name for node in self._core.view.snapshot().nodes.values() if node.liveness is Liveness.LIVE]
        for start in range(0, len(nodes), _BATCH):
            drafts = []
            for name in nodes[start : start + _BATCH]:
                nonce = os.urandom(8).hex()
                self._open[nonce] = (name, deadline)
                drafts.append(Draft(event=HandshakeRequested(nonce=nonce, why=why, deadline_ms=deadline), node=name))
            await self._core.loop_writer.append(drafts)

    async def expire(self) -> None:
        """By the store's clock."""
        now = self._core.clock.now()
        late = [(nonce, node) for nonce, (node, deadline) in self._open.items() if deadline < now]
        for nonce, node in late:
            del self._open[nonce]
            _log.warning("node did not answer a handshake", node=node)
            await self._core.loop_writer.append([Draft(event=HandshakeExpired(nonce=nonce), node=node)])

    async def _hear_answers(self) -> None:
        async for batch in self._core.store.log.tail(self._core.view.position):
            for record in batch:
                if isinstance(record.event, HandshakeReported):
                    self._open.pop(record.event.nonce, None)
