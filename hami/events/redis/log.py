"""The log on Redis: appends through the function library, replay over raw replies, a tail that notices a silent server."""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from hami.domain.errors import (
    Conflict,
    Fenced,
    GapFound,
    HistoryChanged,
    HistoryTrimmed,
    StaleFence,
    StoreUnavailable,
    StoreUnsafe,
)
from hami.domain.units import EpochMs
from hami.events.backoff import Backoff
from hami.events.codec import check_entities, decode_record, encode_envelope
from hami.events.envelope import START, Envelope, Position
from hami.events.log import Appended, Duplicate, Fence, Record
from hami.events.redis.client import Arg, Client, text

BATCH = 1000
"""Records for each read: fewer cost round trips, more block the server for milliseconds."""

RECONNECT_MOST_S = 0.5
"""Longest pause of a follower between two tries. Well below what a decision waits for its own event to come round: the store
answers writers again as soon as it is back, and a follower still pausing then would fail them."""

DURABLE_WITHIN_MS = 1000
"""Longest wait for the append-only file; `everysec` takes about 50 ms. Then the outcome counts as unknown."""


class _Done(msgspec.Struct, frozen=True, gc=False):
    """What `hami_append` answers when it wrote."""

    g: int
    ids: tuple[str, ...]
    moved: tuple[dict[str, int], ...]


_decode_done: Final = msgspec.json.Decoder(_Done).decode


class RedisLog:
    """Implements hami.events.log.Log. `incarnation` pins the life of the store; empty = the one found at first use.

    `durable`: an append is answered only when it is in the server's append-only file (needs WAITAOF: `Startup.waitaof`).
    """

    def __init__(self, client: Client, *, incarnation: str = "", durable: bool = False) -> None:
        self._client, self._durable = client, durable
        self._keys = client.keys
        self._incarnation = incarnation

    async def incarnation(self) -> str:
        """The life of the store that this log speaks to. Raises StoreUnsafe when it is missing or has changed."""
        found = text(await self._client.command.call("HGET", self._keys.heads, "incarnation"))
        self._check_incarnation(found)
        return self._incarnation

    def _check_incarnation(self, found: str) -> None:
        if not found:
            raise StoreUnsafe("the store holds no incarnation (never initialised, or flushed): run `hami init`")
        if self._incarnation and found != self._incarnation:
            raise StoreUnsafe(f"the store is another one now: incarnation {found}, expected {self._incarnation}")
        self._incarnation = found

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate:
        if not self._incarnation:
            await self.incarnation()
        keys, args = self.command_of(envelopes, entities, expected=expected, fence=fence, feeds=feeds)
        if self._durable:
            return await self._append_durably(envelopes[0], keys, args)
        reply = await self._client.fcall("hami_append", keys, args)
        return self._appended(envelopes[0], reply)

    async def _append_durably(self, first: Envelope, keys: list[str], args: list[Arg]) -> Appended | Duplicate:
        """On one connection, as WAITAOF covers the writes of its own connection only."""
        call: tuple[Arg, ...] = ("FCALL", "hami_append", len(keys), *keys, *args)
        reply, waited = await self._client.command.pipeline([call, ("WAITAOF", 1, 0, DURABLE_WITHIN_MS)])
        answer = self._appended(first, reply)
        if int(waited[0]) < 1:
            raise StoreUnavailable(f"append: not in the append-only file within {DURABLE_WITHIN_MS} ms")
        return answer

    def command_of(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> tuple[list[str], list[Arg]]:
        """Keys and arguments of one `hami_append` call, for whoever pipelines several. Call `incarnation` once before."""
        check_entities(entities)
        names, first = self._keys, envelopes[0]
        keys = [names.heads, names.log]
        fenced: tuple[str, int] = ("", 0)
        if fence is not None:
            keys.append(names.lock(fence.lock))
            fenced = (fence.owner, fence.token)
        feed_at: dict[str, int] = {}
        named = {name: place for place, name in enumerate(expected, start=1)}
        rest: list[Arg] = []
        for i, envelope in enumerate(envelopes):
            place = 0
            if feeds and feeds[i] and envelope.node:
                place = feed_at.get(envelope.node, 0)
                if not place:
                    keys.append(names.feed(envelope.node))
                    place = feed_at[envelope.node] = len(keys)
            moves = [named.setdefault(name, len(named) + 1) for name in entities[i]]
            rest += (place, len(moves), *moves, encode_envelope(envelope))
        row, counts = f"producer/{first.producer}", (len(envelopes), len(named), len(expected))
        return keys, [self._incarnation, row, first.epoch, first.seq, *counts, *fenced, *named, *expected.values(), *rest]

    def _appended(self, first: Envelope, reply: bytes | list[Any]) -> Appended | Duplicate:
        if isinstance(reply, bytes):
            done = _decode_done(reply)
            start = done.g - len(done.ids) + 1
            positions = tuple([Position(start + i, entry) for i, entry in enumerate(done.ids)])
            return Appended(
                positions, MappingProxyType({name: version for each in done.moved for name, version in each.items()})
            )
        match reply:
            case [b"DUP", entry]:
                return Duplicate(text(entry))
            case [b"FENCED", epoch]:
                raise Fenced(f"{first.producer}: epoch {first.epoch} is over, the log has seen epoch {int(epoch)}")
            case [b"GAP", epoch, seq, entry]:
                raise GapFound(first.producer, int(epoch), int(seq), text(entry))
            case [b"STALE", holder, token]:
                raise StaleFence(f"the lock is held by {text(holder) or 'nobody'} with token {int(token)}")
            case [b"CONFLICT", *actual]:
                raise Conflict(_pairs(actual))
            case [b"UNSAFE", found]:
                self._check_incarnation(text(found))
                raise StoreUnsafe("the store changed its incarnation during this call")
            case _:
                raise StoreUnsafe(f"hami_append answered {reply!r}: another library under our name?")

    async def read(self, after: Position, *, limit: int = BATCH) -> Sequence[Record]:
        reply = await self._client.bulk.call("XRANGE", self._keys.log, f"({after.entry}", "+", "COUNT", limit)
        records = _records(reply)
        if after == START:
            check_beginning(records)
        return records

    async def tail(self, after: Position) -> AsyncIterator[Sequence[Record]]:
        at, verify, backoff = after, True, Backoff(most_s=RECONNECT_MOST_S)
        while True:
            try:
                if verify:
                    await self._verify(at)
                    verify = False
                batch = await self._next(at)
                if not batch:
                    await self.incarnation()
            except StoreUnavailable:
                verify = True
                await backoff.wait()
                continue
            backoff.reset()
            if batch:
                if at == START:
                    check_beginning(batch)
                _check_contiguous(at, batch)
                at = batch[-1].position
            yield batch

    async def _next(self, at: Position) -> Sequence[Record]:
        block = max(1, int(self._client.block_s * 1000))
        reply = await self._client.blocking.call("XREAD", "COUNT", BATCH, "BLOCK", block, "STREAMS", self._keys.log, at.entry)
        return _records(reply[0][1]) if reply else ()

    async def _verify(self, at: Position) -> None:
        """After every (re)connect: is this still the log in which we stood at `at`? A failover may have lost its tail."""
        await self.incarnation()
        if at == START:
            return
        found, first, g = await self._client.command.pipeline(
            [
                ("XRANGE", self._keys.log, at.entry, at.entry),
                ("XRANGE", self._keys.log, f"({at.entry}", "+", "COUNT", 1),
                ("HGET", self._keys.heads, "g"),
            ]
        )
        if found:
            if _records(found)[0].position == at:
                return
            raise HistoryChanged(f"the log holds another event at {at.entry} than g {at.g}")
        following = _records(first)
        trimmed = (following[0].position.g if following else int(g or 0) + 1) == at.g + 1
        if not trimmed:
            raise HistoryChanged(f"g {at.g} ({at.entry}) is no longer in the log, which does not continue after it")

    async def head(self) -> Position:
        newest, g = await self._client.command.pipeline(
            [("XREVRANGE", self._keys.log, "+", "-", "COUNT", 1), ("HGET", self._keys.heads, "g")]
        )
        if newest:
            return _records(newest)[0].position
        return START if not g else Position(int(g), "0-0")

    async def at_or_before(self, recorded_ms: EpochMs) -> Position:
        reply = await self._client.command.call("XREVRANGE", self._keys.log, str(recorded_ms), "-", "COUNT", 1)
        if reply:
            return _records(reply)[0].position
        await self.read(START, limit=1)
        return START

    async def now(self) -> EpochMs:
        seconds, micros = await self._client.command.call("TIME")
        return EpochMs(int(seconds) * 1000 + int(micros) // 1000)

    async def last_of(self, producer: str) -> tuple[int, int, str]:
        row = text(await self._client.command.call("HGET", self._keys.heads, f"producer/{producer}"))
        if not row:
            return 0, 0, ""
        epoch, seq, entry = row.split(":", 2)
        return int(epoch), int(seq), entry


def check_beginning(batch: Sequence[Record]) -> None:
    """What is read from the very start must be the very first entry. Raises HistoryTrimmed."""
    if batch and batch[0].position.g != 1:
        raise HistoryTrimmed(batch[0].position.g, batch[0].position.entry)


def _check_contiguous(at: Position, batch: Sequence[Record]) -> None:
    first, last = batch[0].position.g, batch[-1].position.g
    if first != at.g + 1 or last != at.g + len(batch):
        raise HistoryChanged(f"after g {at.g} the log goes on with g {first}: entries between are trimmed or lost")


def _records(reply: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[Record]:
    """Fields stand as append writes them: d <envelope> p <place>."""
    return [decode_record(entry.decode(), fields[1], fields[3]) for entry, fields in reply]


def _pairs(flat: Sequence[bytes]) -> dict[str, int]:
    return {text(flat[i]): int(flat[i + 1]) for i in range(0, len(flat), 2)}
