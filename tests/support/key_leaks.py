"""No key without a row in keys.py, none of another type, none that should expire and does not."""

from fnmatch import fnmatchcase

from hami.events.redis.client import Client, text
from hami.events.redis.keys import KeyKind


def row_of(table: tuple[KeyKind, ...], key: str) -> KeyKind | None:
    """The row whose pattern matches; the longest pattern wins, as it says most."""
    found = [row for row in table if fnmatchcase(key, row.pattern)]
    return max(found, key=lambda row: len(row.pattern), default=None)


async def unlisted_keys(client: Client) -> list[str]:
    """What is wrong with the keys of this store, in words; empty = nothing."""
    table, wrong = client.keys.table(), []
    for raw in await client.command.call("KEYS", "*"):
        key = text(raw)
        row = row_of(table, key)
        kind = text(await client.command.call("TYPE", raw))
        ttl = int(await client.command.call("PTTL", raw))
        if ttl == -2:
            continue
        if row is None:
            wrong.append(f"{key}: not listed in keys.py")
        elif kind != row.type:
            wrong.append(f"{key}: is a {kind}, keys.py says {row.type}")
        elif row.ttl and ttl == -1:
            wrong.append(f"{key}: has no TTL, keys.py says that it must expire")
        elif not row.ttl and ttl != -1:
            wrong.append(f"{key}: expires, keys.py says that it must not")
    return wrong
