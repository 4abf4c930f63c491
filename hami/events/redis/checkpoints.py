"""Saved fold states on Redis: the newest and the one before."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from hami.events.envelope import START, Position
from hami.events.redis.client import Client, text
from hami.events.retention import Kept

_SCAN_COUNT: Final = 1000


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    position: Position
    incarnation: str
    schema: str
    state: bytes


class RedisCheckpoints:
    """Implements hami.events.log.Checkpoints. A value that cannot be read counts as absent: the log rebuilds it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _keys(self, fold: str) -> tuple[str, str]:
        return self._client.keys.checkpoint(fold), self._client.keys.checkpoint_before(fold)

    async def save(self, fold: str, position: Position, incarnation: str, schema: str, state: bytes) -> None:
        value = msgspec.msgpack.encode(_Saved(position, incarnation, schema, state))
        await self._client.bulk.call("FCALL", "hami_checkpoint", 2, *self._keys(fold), value)

    async def load(self, fold: str) -> Sequence[tuple[Position, str, str, bytes]]:
        found = []
        for value in await self._client.bulk.call("MGET", *self._keys(fold)):
            if value is None:
                continue
            try:
                saved = msgspec.msgpack.decode(value, type=_Saved)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue
            found.append((saved.position, saved.incarnation, saved.schema, saved.state))
        return tuple(found)


async def kept_checkpoints(client: Client) -> Sequence[Kept]:
    """Of every fold, in both places. One that cannot be read (a newer version's, perhaps) is taken to need everything."""
    found: list[Kept] = []
    for prefix in (client.keys.checkpoint(""), client.keys.checkpoint_before("")):
        async for key in _keys_under(client, prefix):
            value = await client.bulk.call("GET", key)
            if value is not None:
                found.append(_kept(key.removeprefix(prefix), value))
    return found


def _kept(fold: str, value: bytes) -> Kept:
    try:
        saved = msgspec.msgpack.decode(value, type=_Saved)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return Kept(fold=fold, position=START)
    return Kept(fold=fold, position=saved.position, incarnation=saved.incarnation)


async def _keys_under(client: Client, prefix: str) -> AsyncIterator[str]:
    """A scan may show a key twice: that does no harm here."""
    at = "0"
    while True:
        cursor, keys = await client.command.call("SCAN", at, "MATCH", f"{prefix}*", "COUNT", _SCAN_COUNT)
        for key in keys:
            yield text(key)
        at = text(cursor)
        if at == "0":
            return
