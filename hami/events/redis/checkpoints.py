"""Saved fold states on Redis: the newest and the one before."""

from collections.abc import Sequence

import msgspec

from hami.events.envelope import Position
from hami.events.redis.client import Client


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
