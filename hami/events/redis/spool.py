"""The agent's spool in a Redis of its own on the node: survives the agent's restart, and long outages of the central store.

Continuity is proved by the server's run id: a sidecar that restarted may have lost its last second, so that a number could be
given twice. Then a new epoch begins; what is still there goes out first, under its old numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from hami.domain.units import EpochMs
from hami.events.codec import decode_envelope, encode_envelope
from hami.events.envelope import Envelope
from hami.events.outbox import KEEP_COUNT, KEEP_MS, SpoolState
from hami.events.redis.client import Arg, Client, text
from hami.events.redis.keys import OutboxKeys

LIMIT: Final = 200_000
"""Entries: about 64 MB, what the sidecar is given."""

_NONE: Final = "0-0"


class SidecarSpool:
    """Implements hami.events.outbox.Spool. One agent writes it."""

    def __init__(self, client: Client, *, limit: int = LIMIT, keep_ms: int = KEEP_MS, keep_count: int = KEEP_COUNT) -> None:
        self._wire, self._limit, self._keep_ms, self._keep_count = client.command, limit, keep_ms, keep_count
        self._acknowledged = _NONE
        self._entries: dict[tuple[int, int], str] = {}

    async def open(self, new_epoch: Callable[[], int]) -> SpoolState:
        run_id = _run_id(text(await self._wire.call("INFO", "server")))
        flat = await self._wire.call("HGETALL", OutboxKeys.state)
        found = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
        self._acknowledged = found.get("acknowledged", _NONE)
        if found.get("run_id") == run_id:
            return SpoolState(int(found["epoch"]), int(found["seq"]), found["chain"])
        state = SpoolState(max(new_epoch(), int(found.get("epoch", "0")) + 1))
        await self._wire.call("HSET", OutboxKeys.state, "run_id", run_id, *_fields(state))
        return state

    async def add(self, envelopes: Sequence[Envelope]) -> bool:
        if int(await self._wire.call("XLEN", OutboxKeys.entries)) + len(envelopes) > self._limit:
            return False
        last = envelopes[-1]
        state = SpoolState(last.epoch, last.seq, last.chain)
        await self._atomic(
            [
                *(("XADD", OutboxKeys.entries, "*", "d", encode_envelope(envelope)) for envelope in envelopes),
                ("HSET", OutboxKeys.state, *_fields(state)),
            ]
        )
        return True

    async def waiting(self, limit: int) -> Sequence[Envelope]:
        reply = await self._wire.call("XRANGE", OutboxKeys.entries, f"({self._acknowledged}", "+", "COUNT", limit)
        return self._read(reply)

    async def acknowledge(self, last: Envelope, now: EpochMs) -> None:
        entry = self._entries[last.epoch, last.seq]
        await self._wire.call("HSET", OutboxKeys.state, "acknowledged", entry)
        self._acknowledged = entry
        oldest = min(_order(entry), (now - self._keep_ms, 0))
        await self._wire.call("XTRIM", OutboxKeys.entries, "MINID", f"{max(oldest[0], 0)}-{oldest[1]}")
        await self._keep_few(entry)

    async def _keep_few(self, entry: str) -> None:
        if int(await self._wire.call("XLEN", OutboxKeys.entries)) <= 2 * self._keep_count:
            return
        reply = await self._wire.call("XREVRANGE", OutboxKeys.entries, entry, "-", "COUNT", self._keep_count)
        await self._wire.call("XTRIM", OutboxKeys.entries, "MINID", reply[-1][0])

    async def kept(self) -> Sequence[Envelope]:
        return self._read(await self._wire.call("XRANGE", OutboxKeys.entries, "-", "+"))

    async def rewind(self, first: Envelope) -> None:
        before = await self._wire.call(
            "XREVRANGE", OutboxKeys.entries, f"({self._entries[first.epoch, first.seq]}", "-", "COUNT", 1
        )
        entry = text(before[0][0]) if before else _NONE
        await self._wire.call("HSET", OutboxKeys.state, "acknowledged", entry)
        self._acknowledged = entry

    async def clear(self) -> None:
        await self._atomic([("DEL", OutboxKeys.entries), ("HSET", OutboxKeys.state, "acknowledged", _NONE)])
        self._acknowledged = _NONE

    async def _atomic(self, commands: Sequence[tuple[Arg, ...]]) -> None:
        await self._wire.pipeline([("MULTI",), *commands, ("EXEC",)])

    def _read(self, reply: Sequence[tuple[bytes, Sequence[bytes]]]) -> Sequence[Envelope]:
        found = [(text(entry), decode_envelope(fields[1])) for entry, fields in reply]
        self._entries = {(envelope.epoch, envelope.seq): entry for entry, envelope in found}
        return [envelope for _, envelope in found]


def _fields(state: SpoolState) -> tuple[Arg, ...]:
    return ("epoch", state.epoch, "seq", state.seq, "chain", state.chain)


def _order(entry: str) -> tuple[int, int]:
    ms, _, n = entry.partition("-")
    return int(ms), int(n)


def _run_id(info: str) -> str:
    rows: dict[str, Any] = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    return str(rows.get("run_id", ""))
