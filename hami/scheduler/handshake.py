"""Handshakes: at start and every `handshake_s` each node is asked what it has; no answer within 60 s is on record.

One replica asks. The question and the answer are events; the node reads the question from its feed. An answer that differs
from what the log knows (another device set, another health) is followed by a request to tell it all again; where that answer
differs too, the next round asks again, not sooner: two versions that encode devices differently must not talk for ever.
"""

import math
import os
from typing import Final

import anyio
import msgspec

from hami.domain.cluster import Liveness, NodeState
from hami.domain.device import Health
from hami.domain.digest import device_set_digest
from hami.domain.units import EpochMs
from hami.events.catalog.handshake import (
    DIGEST,
    FORGOTTEN,
    HandshakeExpired,
    HandshakeReported,
    HandshakeRequested,
    Held,
)
from hami.events.jobs import OneOf
from hami.events.log import Draft, Record
from hami.scheduler.core import CATCH_UP_S, Core
from hami.telemetry import get_logger

ANSWER_WITHIN_MS: Final = 60_000
_LOOK_EVERY_S: Final = 1.0
_BATCH: Final = 100
_log = get_logger("scheduler.handshake")


class Asked(msgspec.Struct, frozen=True):
    """An open question: to which node, until when, and why."""

    node: str
    deadline: EpochMs
    why: str


class Handshake:
    """Questions that are open, by nonce."""

    def __init__(self, core: Core, job: OneOf) -> None:
        self._core, self._job = core, job
        self._open: dict[str, Asked] = {}

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
        known = self._core.view.snapshot().nodes.values()
        nodes = [node.name for node in known if node.liveness is Liveness.LIVE and node.has_agent]
        for start in range(0, len(nodes), _BATCH):
            await self._core.loop_writer.append([self._question(name, why) for name in nodes[start : start + _BATCH]])

    def _question(self, node: str, why: str, devices: tuple[str, ...] = (), *, held: dict[str, Held] | None = None) -> Draft:
        nonce, deadline = os.urandom(8).hex(), EpochMs(self._core.clock.now() + ANSWER_WITHIN_MS)
        self._open[nonce] = Asked(node, deadline, why)
        event = HandshakeRequested(nonce=nonce, why=why, deadline_ms=deadline, devices=devices, held=held)
        return Draft(event=event, node=node)

    async def expire(self) -> None:
        """By the store's clock."""
        now = self._core.clock.now()
        late = [(nonce, asked.node) for nonce, asked in self._open.items() if asked.deadline < now]
        for nonce, node in late:
            del self._open[nonce]
            _log.warning("node did not answer a handshake", node=node)
            await self._core.loop_writer.append([Draft(event=HandshakeExpired(nonce=nonce), node=node)])

    async def _hear_answers(self) -> None:
        async for batch in self._core.store.log.tail(self._core.view.position):
            for record in batch:
                if isinstance(record.event, HandshakeReported):
                    await self._answered(record, record.event)

    async def _answered(self, record: Record, report: HandshakeReported) -> None:
        """1 is it the answer to a question of ours, 2 what does the log know up to here, 3 ask again on a difference."""
        asked = self._open.pop(report.nonce, None)
        if report.forgotten and (asked is None or asked.why != FORGOTTEN):
            await self._remind(record, asked)
            return
        if asked is None or asked.node != record.envelope.node:
            return
        if not await self._core.view.wait_for(record.position, timeout=CATCH_UP_S):
            return
        node = self._core.view.snapshot().nodes.get(asked.node)
        if node is None or not report.digest:
            return
        differs, devices = differences(node, report)
        if not differs and not devices:
            return
        if asked.why == DIGEST:
            _log.warning("node told its devices again and the log still has them differently", node=asked.node)
            return
        _log.info("log and node differ: the node is asked to register again", node=asked.node, health_of=len(devices))
        await self._core.loop_writer.append([self._question(asked.node, DIGEST, devices, held=held_against(node))])

    async def _remind(self, record: Record, asked: Asked | None) -> None:
        """A node that has lost its record hears what the log holds against its cards, all it reported before included."""
        name = record.envelope.node
        if asked is None and not await self._job.mine():
            return
        if not await self._core.view.wait_for(record.position, timeout=CATCH_UP_S):
            return
        node = self._core.view.snapshot().nodes.get(name)
        if node is None:
            return
        _log.warning("node has lost what it knew of its cards: it is told what the log has", node=name)
        await self._core.loop_writer.append([self._question(name, FORGOTTEN, held=held_against(node))])


def held_against(node: NodeState) -> dict[str, Held]:
    """Cards that are not healthy. Unknown is nothing to hold against a card: it is what the node itself said last."""
    bad = {Health.SUSPECT, Health.UNHEALTHY}
    return {each.device.uuid: Held(each.health, each.health_reason) for each in node.devices if each.health in bad}


def differences(node: NodeState, report: HandshakeReported) -> tuple[bool, tuple[str, ...]]:
    """(whether the device sets differ, the cards whose health does). Only the reporter's own vendor is compared.

    A report without a vendor is an older agent's: it says nothing of health.
    """
    words = (
        {report.vendor} if report.vendor else {each.device.vendor for each in node.devices} - {f.vendor for f in node.foreign}
    )
    own = [each for each in node.devices if each.device.vendor in words]
    said = report.health if report.vendor else {each.device.uuid: each.health for each in own}
    devices = tuple(each.device.uuid for each in own if each.health is not said.get(each.device.uuid, Health.HEALTHY))
    return device_set_digest(each.device for each in own) != report.digest, devices
