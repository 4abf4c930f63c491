"""Leases on Redis: a key with a TTL for each name."""

from collections.abc import Mapping, Sequence

from hami.events.redis.client import Client, text


class RedisLeases:
    """Implements hami.events.lease.Leases. `keep` needs no function, so that an agent's user needs only SET."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def keep(self, name: str, value: str, *, ttl_ms: int) -> None:
        await self._client.command.call("SET", self._client.keys.lease(name), value, "PX", ttl_ms)

    async def alive(self, names: Sequence[str]) -> Mapping[str, str | None]:
        if not names:
            return {}
        values = await self._client.bulk.call("MGET", *(self._client.keys.lease(name) for name in names))
        return {name: None if value is None else text(value) for name, value in zip(names, values, strict=True)}
