"""Dead letters of the ingester: inbox entries that could not enter the log, kept with the reason."""

from collections.abc import Sequence

import msgspec

from hami.domain.units import EpochMs
from hami.events.redis.client import Client, text
from hami.events.redis.inbox import BELL_LENGTH, DEAD_GROUP


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """`id` names it here, `entry` is what it was called in the node's inbox, `raw` is what the agent sent."""

    id: str
    node: str
    entry: str
    why: str
    raw: bytes

    @property
    def buried_ms(self) -> EpochMs:
        return EpochMs(int(self.id.partition("-")[0]))


async def dead_letters(client: Client, *, only: str = "") -> Sequence[DeadLetter]:
    """Oldest first; `only` is the id of one."""
    reply = await client.bulk.call("XRANGE", client.keys.dead(DEAD_GROUP), only or "-", only or "+")
    return [_letter(text(entry), fields) for entry, fields in reply]


def _letter(identity: str, fields: Sequence[bytes]) -> DeadLetter:
    found = {text(fields[at]): fields[at + 1] for at in range(0, len(fields) - 1, 2)}
    return DeadLetter(
        id=identity,
        node=text(found.get("node", b"")),
        entry=text(found.get("entry", b"")),
        why=text(found.get("why", b"")),
        raw=found.get("d", b""),
    )


async def replay(client: Client, letter: DeadLetter) -> None:
    """Put it back into its node's inbox, then forget it here: twice in the inbox is a duplicate, gone from both is a loss."""
    await client.command.call("XADD", client.keys.inbox(letter.node), "*", "d", letter.raw)
    await client.command.call("XADD", client.keys.bell, "MAXLEN", "~", BELL_LENGTH, "*", "node", letter.node)
    await client.command.call("XDEL", client.keys.dead(DEAD_GROUP), letter.id)
