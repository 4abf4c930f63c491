"""A node's feed on Redis, read by its agent."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from hami.domain.errors import InvalidInput, StoreUnavailable
from hami.events.backoff import Backoff
from hami.events.codec import decode_envelope
from hami.events.envelope import Envelope
from hami.events.redis.client import Client, text

BATCH: Final = 100


class RedisFeed:
    """Implements hami.events.log.NodeFeed. Entries that hold no envelope are skipped."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._key = client, client.keys.feed(node)

    async def tail(self, after: str) -> AsyncIterator[Sequence[tuple[str, Envelope]]]:
        at, backoff = after, Backoff(most_s=30.0)
        block = max(1, int(self._client.block_s * 1000))
        while True:
            try:
                reply = await self._client.blocking.call("XREAD", "COUNT", BATCH, "BLOCK", block, "STREAMS", self._key, at)
            except StoreUnavailable:
                await backoff.wait()
                continue
            backoff.reset()
            entries = reply[0][1] if reply else ()
            if entries:
                at = text(entries[-1][0])
            yield [(text(entry), envelope) for entry, fields in entries if (envelope := _read(fields)) is not None]


def _read(fields: Sequence[bytes]) -> Envelope | None:
    try:
        return decode_envelope(fields[1])
    except InvalidInput:
        return None
