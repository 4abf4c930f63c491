"""How a process of the control plane writes: one producer, one epoch, one append at a time, each event once.

An append whose outcome is unknown is sent again with the same envelopes: the log answers Duplicate when the first had landed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import anyio

from hami.domain.errors import Conflict, Fenced, GapFound, HamiError, StaleFence, StoreUnavailable
from hami.domain.units import EpochMs
from hami.events.catalog.journal import GapAccepted
from hami.events.catalog.union import FEED_EVENTS, entities_of
from hami.events.codec import seal
from hami.events.envelope import Envelope, Position, entry_before
from hami.events.log import Appended, Draft, Duplicate, Fence, Log, Record


def wall_clock() -> EpochMs:
    return EpochMs(time.time_ns() // 1_000_000)


class EventWriter:
    """One for each process. `start` before the first append; `producer` must be this process's own name.

    Two processes under one name fence each other: the later epoch wins, the earlier one gets Fenced and must end.
    """

    def __init__(
        self,
        log: Log,
        producer: str,
        *,
        retry_for_s: float = 5.0,
        retry_every_s: float = 0.1,
        clock: Callable[[], EpochMs] = wall_clock,
    ) -> None:
        self._log, self.producer = log, producer
        self._retry_for_s, self._retry_every_s, self._clock = retry_for_s, retry_every_s, clock
        self._lock = anyio.Lock(fast_acquire=True)
        self._epoch, self._seq, self._chain = 0, 0, ""
        self._unsettled = False

    @property
    def epoch(self) -> int:
        """0 before `start`."""
        return self._epoch

    async def start(self) -> int:
        """Take the next epoch. Raises StoreUnavailable, StoreUnsafe."""
        async with self._lock:
            await self._new_epoch()
            return self._epoch

    async def _new_epoch(self) -> None:
        last, _, _ = await self._log.last_of(self.producer)
        self._epoch, self._seq, self._chain, self._unsettled = max(last, self._epoch) + 1, 0, "", False

    async def append(
        self, drafts: Sequence[Draft], *, expected: Mapping[str, int] = MappingProxyType({}), fence: Fence | None = None
    ) -> Appended:
        """All drafts in one step, under expected versions and a lock where named.

        Raises Conflict and StaleFence (nothing was written, and what follows is not disturbed), Fenced, StoreUnsafe, and
        StoreUnavailable when the outcome is still unknown at the deadline: the drafts may or may not be in the log then.
        """
        if not self._epoch:
            raise HamiError("EventWriter.append before start")
        async with self._lock:
            if self._unsettled:
                await self._new_epoch()
            try:
                return await self._write(drafts, expected, fence)
            except GapFound as gap:
                await self._accept_gap(gap)
                if expected:
                    # The store went back in time: versions that still match may be those of another past.
                    raise Conflict({}) from gap
                return await self._write(drafts, expected, fence)

    async def _accept_gap(self, gap: GapFound) -> None:
        """The store lost events that it had acknowledged (a failover does that): say so, and go on in a new epoch."""
        lost = GapAccepted(
            producer=self.producer,
            epoch=self._epoch,
            first_seq=gap.last_seq + 1 if gap.last_epoch == self._epoch else 1,
            last_seq=self._seq,
            why="the store no longer holds them",
        )
        await self._new_epoch()
        await self._write([Draft(event=lost)], {}, None)

    async def _write(self, drafts: Sequence[Draft], expected: Mapping[str, int], fence: Fence | None) -> Appended:
        envelopes = self._sealed(drafts)
        self._unsettled = True
        try:
            answer = await self._send(drafts, envelopes, expected, fence)
        except (Conflict, StaleFence, GapFound):
            self._unsettled = False
            raise
        self._seq, self._chain, self._unsettled = envelopes[-1].seq, envelopes[-1].chain, False
        return answer

    def _sealed(self, drafts: Sequence[Draft]) -> list[Envelope]:
        envelopes: list[Envelope] = []
        chain, now = self._chain, self._clock()
        for seq, draft in enumerate(drafts, start=self._seq + 1):
            envelope = seal(draft, producer=self.producer, epoch=self._epoch, seq=seq, occurred_ms=now, chain=chain)
            chain = envelope.chain
            envelopes.append(envelope)
        return envelopes

    async def _send(
        self, drafts: Sequence[Draft], envelopes: Sequence[Envelope], expected: Mapping[str, int], fence: Fence | None
    ) -> Appended:
        entities = [entities_of(draft.event, draft.node) for draft in drafts]
        feeds = [isinstance(draft.event, FEED_EVENTS) for draft in drafts]
        give_up = anyio.current_time() + self._retry_for_s
        while True:
            try:
                answer = await self._log.append(envelopes, entities, expected=expected, fence=fence, feeds=feeds)
                if isinstance(answer, Appended):
                    return answer
                return await self._earlier_try(envelopes, answer)
            except StoreUnavailable:
                if anyio.current_time() >= give_up:
                    raise
                await anyio.sleep(self._retry_every_s)

    async def _earlier_try(self, envelopes: Sequence[Envelope], duplicate: Duplicate) -> Appended:
        """A duplicate is our own earlier try, or another process that writes under our name: look which."""
        last = envelopes[-1]
        records = await self._log.read(Position(0, entry_before(duplicate.entry)), limit=1) if duplicate.entry else ()
        if not records or (records[0].envelope.id, records[0].envelope.chain) != (last.id, last.chain):
            raise Fenced(f"another process writes as {self.producer} in epoch {self._epoch}")
        return await self._positions(envelopes, records[0])

    async def _positions(self, envelopes: Sequence[Envelope], last: Record) -> Appended:
        """A batch is written in one step, so its entries stand one after another, ending with `last`."""
        count = len(envelopes)
        if count == 1:
            return Appended((last.position,), last.versions)
        back = 1
        before = await self._log.at_or_before(EpochMs(last.position.recorded_ms - back))
        while last.position.g - before.g < count:
            # Redis 7.0 looks at the clock for each entry of one step: a step may lie in several milliseconds.
            back *= 10
            before = await self._log.at_or_before(EpochMs(max(0, last.position.recorded_ms - back)))
        records = await self._log.read(before, limit=last.position.g - before.g)
        mine = records[-count:]
        versions = {entity: version for record in mine for entity, version in record.versions.items()}
        return Appended(tuple(record.position for record in mine), versions)
