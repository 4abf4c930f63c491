"""Inboxes on Redis. An agent's user may XADD to its own inbox and to the bell; the control plane does the rest."""

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from hami.domain.errors import StoreUnavailable
from hami.events.backoff import Backoff
from hami.events.codec import encode_envelope
from hami.events.envelope import Envelope
from hami.events.redis.client import Arg, Client, text

BELL_LENGTH: Final = 1000
"""Rings kept; losing one costs at most a sweep interval."""

SWEEP_S: Final = 30.0
DEAD_GROUP: Final = "ingest"

_NODE: Final = re.compile(r"[!-~]{1,253}")
"""What can be a node at all. Any agent may ring the bell; a ring for something else would have no inbox."""


class RedisInbox:
    """Implements hami.events.log.Inbox for one node. Sends each batch in one round trip."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node = client, node

    async def put(self, envelopes: Sequence[Envelope]) -> None:
        inbox, keys = self._client.keys.inbox(self._node), self._client.keys
        commands: list[tuple[Arg, ...]] = [("XADD", inbox, "*", "d", encode_envelope(envelope)) for envelope in envelopes]
        await self._client.command.pipeline(commands)
        # The bell is everybody's: one node can spoil it for all. What is in the inbox is found by the next sweep all the same.
        with suppress(StoreUnavailable):
            await self._client.command.call("XADD", keys.bell, "MAXLEN", "~", BELL_LENGTH, "*", "node", self._node)


class RedisInboxes:
    """Implements hami.events.log.Inboxes. Any number of replicas may read at once: appending again is a duplicate."""

    def __init__(self, client: Client, *, sweep_s: float = SWEEP_S) -> None:
        self._client, self._sweep_s = client, sweep_s

    async def rung(self) -> AsyncIterator[Sequence[str]]:
        backoff, at, swept = Backoff(), "", 0.0
        while True:
            try:
                if not at:
                    at = await self._last_ring()
                if time.monotonic() - swept >= self._sweep_s or not swept:
                    swept = time.monotonic()
                    names = await self._all()
                else:
                    at, names = await self._rings(at)
            except StoreUnavailable:
                at, swept = "", 0.0
                await backoff.wait()
                continue
            backoff.reset()
            if names:
                yield names

    async def _last_ring(self) -> str:
        reply = await self._client.command.call("XREVRANGE", self._client.keys.bell, "+", "-", "COUNT", 1)
        return text(reply[0][0]) if reply else "0-0"

    async def _rings(self, at: str) -> tuple[str, Sequence[str]]:
        block = max(1, int(min(self._client.block_s, self._sweep_s) * 1000))
        reply = await self._client.blocking.call(
            "XREAD", "COUNT", BELL_LENGTH, "BLOCK", block, "STREAMS", self._client.keys.bell, at
        )
        if not reply:
            return at, ()
        rings = reply[0][1]
        names = dict.fromkeys(text(fields[1]) for _, fields in rings if len(fields) >= 2)
        return text(rings[-1][0]), [name for name in names if _NODE.fullmatch(name)]

    async def _all(self) -> Sequence[str]:
        prefix, cursor, names = self._client.keys.inbox_prefix, "0", set()
        while True:
            cursor_reply, found = await self._client.bulk.call("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000)
            names |= {name for name in (text(key)[len(prefix) :] for key in found) if _NODE.fullmatch(name)}
            cursor = text(cursor_reply)
            if cursor == "0":
                break
        lengths = await self._client.bulk.pipeline([("XLEN", prefix + name) for name in sorted(names)])
        return [name for name, length in zip(sorted(names), lengths, strict=True) if int(length) > 0]

    async def peek(self, node: str, *, limit: int = 100) -> Sequence[tuple[str, bytes]]:
        reply = await self._client.command.call("XRANGE", self._client.keys.inbox(node), "-", "+", "COUNT", limit)
        return [(text(entry), _envelope_field(fields)) for entry, fields in reply]

    async def drop(self, node: str, through: str) -> None:
        ms, _, n = through.partition("-")
        await self._client.command.call("XTRIM", self._client.keys.inbox(node), "MINID", f"{ms}-{int(n) + 1}")

    async def bury(self, node: str, entry: str, raw: bytes, why: str) -> bool:
        keys = [self._client.keys.inbox(node), self._client.keys.dead(DEAD_GROUP)]
        reply = await self._client.fcall("hami_bury", keys, [entry, node, raw, why])
        return bool(reply[0] == b"BURIED")


def _envelope_field(fields: Sequence[bytes]) -> bytes:
    """The agent writes one field `d`; whatever else stands there cannot be an envelope and is buried as it is."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))
    return found.get(b"d", b" ".join(fields))
