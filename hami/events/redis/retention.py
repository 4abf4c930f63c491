"""Keeping and trimming the log on Redis. Only this module trims the log, and never by length."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hami.domain.errors import StoreUnsafe
from hami.events.envelope import START
from hami.events.redis.checkpoints import kept_checkpoints
from hami.events.redis.client import Arg, Client, text
from hami.events.retention import AT_ONCE, GroupProgress, Kept, RawEntry

_PODS_AT_ONCE: Final = 500


class RedisRetention:
    """Implements hami.events.retention.Retention."""

    def __init__(self, client: Client, *, incarnation: str) -> None:
        self._client, self._incarnation = client, incarnation
        self._keys = client.keys

    async def entries(self, after: str, *, limit: int = AT_ONCE) -> Sequence[RawEntry]:
        reply = await self._client.bulk.call("XRANGE", self._keys.log, f"({after}", "+", "COUNT", limit)
        return [RawEntry(entry.decode(), fields[1], fields[3]) for entry, fields in reply]

    async def groups(self) -> Sequence[GroupProgress]:
        call, found = self._client.command.call, []
        for row in await call("XINFO", "GROUPS", self._keys.log):
            fields = _fields(row)
            name, pending = text(fields["name"]), ""
            if int(fields["pending"]):
                pending = text((await call("XPENDING", self._keys.log, fields["name"]))[1])
            found.append(GroupProgress(name=name, last=text(fields["last-delivered-id"]), pending=pending))
        return found

    async def checkpoints(self) -> Sequence[Kept]:
        return await kept_checkpoints(self._client)

    async def trim(self, before: str, *, most: int = AT_ONCE) -> int:
        """XTRIM has no exact limit of its own: the step's end is looked up first."""
        if before == START.entry:
            return 0
        reply = await self._client.bulk.call("XRANGE", self._keys.log, "-", f"({before}", "COUNT", most)
        if not reply:
            return 0
        ms, _, n = text(reply[-1][0]).partition("-")
        return int(await self._client.command.call("XTRIM", self._keys.log, "MINID", f"{ms}-{int(n) + 1}"))

    async def forget(self, versions: Mapping[str, int]) -> int:
        gone = 0
        for some in _chunks([*versions.items()]):
            args: list[Arg] = [self._incarnation]
            for entity, version in some:
                args += (entity, version)
            match await self._client.fcall("hami_forget", [self._keys.heads], args):
                case [b"FORGOTTEN", count]:
                    gone += int(count)
                case [b"UNSAFE", found]:
                    raise StoreUnsafe(f"the store is another one now: incarnation {text(found) or 'none'}")
                case reply:
                    raise StoreUnsafe(f"hami_forget answered {reply!r}: another library under our name?")
        return gone

    async def notes(self) -> Mapping[str, str]:
        return {
            name: text(value) for name, value in _fields(await self._client.command.call("HGETALL", self._keys.archive)).items()
        }

    async def note(self, changes: Mapping[str, str]) -> None:
        flat = [part for name, value in changes.items() if value for part in (name, value)]
        gone = [name for name, value in changes.items() if not value]
        if flat:
            await self._client.command.call("HSET", self._keys.archive, *flat)
        if gone:
            await self._client.command.call("HDEL", self._keys.archive, *gone)


def _chunks(items: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    for start in range(0, len(items), _PODS_AT_ONCE):
        yield items[start : start + _PODS_AT_ONCE]


def _fields(row: Sequence[Any]) -> dict[str, Any]:
    return {text(row[at]): row[at + 1] for at in range(0, len(row) - 1, 2)}
