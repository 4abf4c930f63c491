"""A consumer group on Redis. Only plain commands, so that a consumer's user needs no function on the log."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from hami.domain.errors import HistoryChanged, StoreUnavailable
from hami.events.codec import decode_record
from hami.events.envelope import Position
from hami.events.group import DeadLetter, GroupState
from hami.events.log import Record
from hami.events.redis.client import Client, text
from hami.events.redis.dead import DEAD_LENGTH, letter_of

CLAIMED_AT_ONCE: Final = 500


class RedisGroup:
    """Implements hami.events.group.Group."""

    def __init__(self, client: Client, group: str, consumer: str) -> None:
        self._client, self._group, self._consumer = client, group, consumer
        self._log = client.keys.log
        self._dead, self._back = client.keys.dead(group), client.keys.back(group)

    async def state(self) -> GroupState | None:
        try:
            reply = await self._client.command.call("XINFO", "GROUPS", self._log)
        except StoreUnavailable as error:
            if "no such key" in str(error):
                return None
            raise
        for row in reply:
            fields = {text(row[at]): row[at + 1] for at in range(0, len(row) - 1, 2)}
            if text(fields["name"]) == self._group:
                return GroupState(text(fields["last-delivered-id"]), int(fields["pending"]))
        return None

    async def create(self, after: Position) -> bool:
        try:
            await self._client.command.call("XGROUP", "CREATE", self._log, self._group, after.entry)
        except StoreUnavailable as error:
            if "BUSYGROUP" in str(error):
                return False
            raise
        return True

    async def new(self, *, limit: int = 1000) -> Sequence[Record]:
        block = max(1, int(self._client.block_s * 1000))
        place = ("GROUP", self._group, self._consumer, "COUNT", limit, "BLOCK", block, "STREAMS", self._log, ">")
        with self._there():
            reply = await self._client.blocking.call("XREADGROUP", *place)
        return _records(reply[0][1]) if reply else ()

    async def claim(self, *, idle_ms: int) -> Sequence[Record]:
        found: list[Record] = []
        at = "0-0"
        while True:
            place = (self._log, self._group, self._consumer, idle_ms, at, "COUNT", CLAIMED_AT_ONCE)
            with self._there():
                reply = await self._client.bulk.call("XAUTOCLAIM", *place)
            found += _records(reply[1])
            at = text(reply[0])
            if at == "0-0":
                return found

    async def acknowledge(self, entries: Sequence[str]) -> None:
        if entries:
            await self._client.command.call("XACK", self._log, self._group, *entries)

    async def bury(self, entry: str, *, node: str, to: str, raw: bytes, why: str) -> None:
        fields = ("entry", entry, "node", node, "to", to, "d", raw, "why", why)
        await self._client.command.call("XADD", self._dead, "MAXLEN", "~", DEAD_LENGTH, "*", *fields)

    async def returned(self) -> Sequence[DeadLetter]:
        reply = await self._client.command.call("XRANGE", self._back, "-", "+", "COUNT", 100)
        return [letter_of(self._group, text(entry), fields) for entry, fields in reply]

    async def forget(self, letter: str) -> None:
        await self._client.command.call("XDEL", self._back, letter)

    @contextmanager
    def _there(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            if "NOGROUP" in str(error):
                raise HistoryChanged(f"the log has no consumer group {self._group}") from error
            raise


def _records(reply: Sequence[tuple[bytes, Sequence[bytes] | None]]) -> list[Record]:
    """Fields stand as append writes them: d <envelope> p <place>. A trimmed entry has none."""
    return [decode_record(entry.decode(), fields[1], fields[3]) for entry, fields in reply if fields is not None]
