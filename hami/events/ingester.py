"""From the nodes' inboxes into the log. Any number of replicas may run: an event appended twice is a duplicate.

What an agent sends is input from outside. It keeps its own producer, epoch and seq in the log, so that the log is idempotent
and gapless for each agent; a payload that may not enter is replaced, in its very place, by InputRejected.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from hami.domain.errors import Fenced, GapFound, InvalidInput, StoreUnavailable
from hami.events.catalog.handshake import HandshakeRequested
from hami.events.catalog.journal import GapAccepted, InputRejected
from hami.events.catalog.plausible import objection
from hami.events.catalog.union import Event, entities_of, may_agent_write
from hami.events.codec import decode_envelope, decode_event
from hami.events.envelope import Envelope, agent_name, event_id
from hami.events.log import Draft, Duplicate, Inboxes, Log, Undecodable, Unknown
from hami.events.writer import EventWriter

PAGE: Final = 100
ASK_AGAIN_MS: Final = 10_000
LONGEST: Final = 2**20
"""Bytes of one event. A registration of 128 cards with all their pair scores stays below."""

_MOST: Final = 2**53 - 1
"""The server's Lua counts in doubles."""


class Ingested(msgspec.Struct, kw_only=True):
    """What one look into one inbox did."""

    node: str
    appended: int = 0
    duplicates: int = 0
    fenced: int = 0
    gaps: int = 0
    rejected: int = 0
    buried: int = 0


class _Accepted(msgspec.Struct, frozen=True):
    envelope: Envelope
    entities: tuple[str, ...]


class Ingester:
    """`writer` is the control plane's own, for what it has to say about an inbox. `report` hears of every look."""

    def __init__(
        self, log: Log, inboxes: Inboxes, writer: EventWriter, *, report: Callable[[Ingested], None] = lambda _: None
    ) -> None:
        self._log, self._inboxes, self._writer, self._report = log, inboxes, writer, report
        self._asked: dict[str, tuple[int, int, int]] = {}

    async def run(self) -> None:
        """For ever. A store that is away is waited for; one inbox's trouble is not another's. Raises StoreUnsafe, Fenced."""
        async for nodes in self._inboxes.rung():
            for node in nodes:
                try:
                    self._report(await self.ingest(node))
                except StoreUnavailable:
                    continue

    async def ingest(self, node: str) -> Ingested:
        """Empty one inbox, as far as it is filled now. Raises StoreUnavailable: what was not dropped is looked at again."""
        done = Ingested(node=node)
        while page := await self._inboxes.peek(node, limit=PAGE):
            accepted: list[_Accepted] = []
            for entry, raw in page:
                try:
                    envelope = self._checked(node, _opened(raw))
                except InvalidInput as error:
                    await self._bury(done, entry, raw[:LONGEST], error)
                    continue
                accepted.append(await self._admitted(done, entry, raw, envelope))
            for batch in _batches(accepted):
                await self._append(done, batch)
            await self._inboxes.drop(node, page[-1][0])
            if len(page) < PAGE:
                break
        return done

    def _checked(self, node: str, envelope: Envelope) -> Envelope:
        """An envelope of this node's agent, with the node it must have. Raises InvalidInput."""
        if envelope.producer != agent_name(node):
            raise InvalidInput("producer", envelope.producer, f"the inbox of {node} is for {agent_name(node)}")
        if not (1 <= envelope.epoch <= _MOST and 1 <= envelope.seq <= _MOST):
            raise InvalidInput("epoch/seq", f"{envelope.epoch}/{envelope.seq}"[:80], f"both count from 1 to {_MOST}")
        if envelope.id != event_id(envelope.producer, envelope.epoch, envelope.seq):
            raise InvalidInput("id", envelope.id, "must be <producer>/<epoch>/<seq>")
        return envelope if envelope.node == node else msgspec.structs.replace(envelope, node=node)

    async def _admitted(self, done: Ingested, entry: str, raw: bytes, envelope: Envelope) -> _Accepted:
        """The event, or InputRejected in its place, so that what follows is not taken for a gap."""
        own_node = f"node/{done.node}"
        event = decode_event(envelope)
        why = _refusal(event, envelope)
        if why is None and not isinstance(event, Unknown | Undecodable):
            # An agent moves its own node's version only, whatever pod it names.
            return _Accepted(envelope, tuple(each for each in entities_of(event, done.node) if each == own_node))
        done.rejected += 1
        await self._inboxes.bury(done.node, entry, raw, why or "")
        rejected = InputRejected(
            source=f"inbox of {done.node}",
            field="data",
            value=bytes(envelope.data)[:200].decode("utf-8", "replace"),
            why=why or "",
        )
        data = msgspec.Raw(msgspec.json.encode(rejected))
        return _Accepted(msgspec.structs.replace(envelope, type=InputRejected.TYPE, schema=InputRejected.SCHEMA, data=data), ())

    async def _bury(self, done: Ingested, entry: str, raw: bytes, error: InvalidInput) -> None:
        if not await self._inboxes.bury(done.node, entry, raw, str(error)):
            return
        done.buried += 1
        shown = raw[:200].decode("utf-8", "replace")
        event = InputRejected(source=f"inbox of {done.node}", field=error.field, value=shown, why=error.why)
        await self._writer.append([Draft(event=event, subject=done.node)])

    async def _append(self, done: Ingested, batch: Sequence[_Accepted]) -> None:
        left = list(batch)
        while left:
            try:
                answer = await self._log.append([each.envelope for each in left], [each.entities for each in left])
            except Fenced:
                done.fenced += len(left)
                return
            except GapFound as gap:
                first = left[0].envelope
                if gap.last_epoch == first.epoch and gap.last_seq >= first.seq:
                    known = gap.last_seq - first.seq + 1
                    done.duplicates += known
                    left = left[known:]
                    continue
                done.gaps += len(left)
                await self._ask_again(done.node, gap)
                return
            if isinstance(answer, Duplicate):
                done.duplicates += len(left)
            else:
                done.appended += len(left)
            return

    async def _ask_again(self, node: str, gap: GapFound) -> None:
        """Tell the agent through its feed what the log has seen; it keeps what follows for a while, and sends it again."""
        now = await self._log.now()
        epoch, seq, asked = self._asked.get(node, (0, 0, 0))
        if (epoch, seq) == (gap.last_epoch, gap.last_seq) and now - asked < ASK_AGAIN_MS:
            return
        self._asked[node] = (gap.last_epoch, gap.last_seq, now)
        event = HandshakeRequested(
            nonce=f"{self._writer.producer}-{now}", why="gap", seen_epoch=gap.last_epoch, seen_seq=gap.last_seq
        )
        await self._writer.append([Draft(event=event, node=node)])


def _opened(raw: bytes) -> Envelope:
    if len(raw) > LONGEST:
        raise InvalidInput("envelope", raw[:40].decode("utf-8", "replace"), f"{len(raw)} bytes are more than {LONGEST}")
    return decode_envelope(raw)


def _refusal(event: Event | Unknown | Undecodable, envelope: Envelope) -> str | None:
    match event:
        case Unknown(type=name, schema=schema):
            return f"unknown event {name} schema {schema}"
        case Undecodable(error=error):
            return error
        case GapAccepted(producer=producer) if producer != envelope.producer:
            return f"an agent may accept its own gaps only, not those of {producer}"
        case _ if not may_agent_write(event):
            return f"an agent may not write {event.TYPE}"
        case _:
            return objection(event)


def _batches(accepted: Sequence[_Accepted]) -> list[list[_Accepted]]:
    """Runs of one epoch and consecutive seq: each goes in as one append."""
    runs: list[list[_Accepted]] = []
    for each in accepted:
        before = runs[-1][-1].envelope if runs else None
        if before is not None and (before.epoch, before.seq + 1) == (each.envelope.epoch, each.envelope.seq):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs
