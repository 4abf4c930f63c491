"""Dead letters: what a consumer gave up, kept with the reason, for an operator to look at and to send round again."""

from collections.abc import Sequence
from typing import Final

from hami.events.group import DeadLetter
from hami.events.redis.client import Client, text
from hami.events.redis.inbox import BELL_LENGTH, DEAD_GROUP

DEAD_LENGTH: Final = 10_000
"""About so many are kept for each group; the server function that buries inbox entries keeps as many."""


async def dead_letters(client: Client, *, only: str = "", group: str = "") -> Sequence[DeadLetter]:
    """Of every group unless one is named, oldest first; `only` is the id of one."""
    groups = [group] if group else await _groups(client)
    found: list[DeadLetter] = []
    for name in groups:
        reply = await client.bulk.call("XRANGE", client.keys.dead(name), only or "-", only or "+")
        found += [letter_of(name, text(entry), fields) for entry, fields in reply]
    return sorted(found, key=lambda each: each.buried_ms)


async def _groups(client: Client) -> list[str]:
    prefix, cursor, names = client.keys.dead(""), "0", set()
    while True:
        reply, found = await client.bulk.call("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000)
        names |= {text(key)[len(prefix) :] for key in found}
        cursor = text(reply)
        if cursor == "0":
            return sorted(names)


def letter_of(group: str, identity: str, fields: Sequence[bytes]) -> DeadLetter:
    found = {text(fields[at]): fields[at + 1] for at in range(0, len(fields) - 1, 2)}
    return DeadLetter(
        id=identity,
        group=group,
        node=text(found.get("node", b"")),
        entry=text(found.get("entry", b"")),
        why=text(found.get("why", b"")),
        raw=found.get("d", b""),
        to=text(found.get("to", b"")),
    )


async def replay(client: Client, letter: DeadLetter) -> str:
    """Put it back to where its consumer finds it, then forget it here: twice there is a duplicate, gone from both is a loss.

    Answers where it is now, in words.
    """
    call, keys = client.command.call, client.keys
    if letter.group == DEAD_GROUP:
        where = f"in the inbox of {letter.node}"
        await call("XADD", keys.inbox(letter.node), "*", "d", letter.raw)
        await call("XADD", keys.bell, "MAXLEN", "~", BELL_LENGTH, "*", "node", letter.node)
    else:
        where = f"on its way to {letter.to}"
        fields = ("entry", letter.entry, "node", letter.node, "to", letter.to, "d", letter.raw, "why", letter.why)
        await call("XADD", keys.back(letter.group), "*", *fields)
    await call("XDEL", keys.dead(letter.group), letter.id)
    return where
