"""One POST, and what its answer means. 408 and 429 mean later, any other 4xx means no, the rest means trouble over there."""

from collections.abc import Mapping
from typing import Final

import aiohttp

from hami.alerts.sinks.base import Answer, Away, Refused, Taken

SHOWN: Final = 200
"""Characters of an answer's body that are worth keeping: the receiver's own reason."""

_LATER: Final = frozenset({408, 429})


async def post(http: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """Redirects are not followed: a POST would become a GET. The URL, which may hold a secret, is in no answer."""
    sent = {"Content-Type": "application/json", **headers}
    try:
        async with http.post(url, data=body, headers=sent, allow_redirects=False) as answer:
            status, said = answer.status, (await answer.content.read(4 * SHOWN)).decode("utf-8", "replace")
    except TimeoutError:
        return Away("no answer in time")
    except (aiohttp.ClientError, OSError) as error:
        return Away(type(error).__name__ if isinstance(error, aiohttp.InvalidURL) else str(error) or type(error).__name__)
    if 200 <= status < 300:
        return Taken()
    why = f"HTTP {status}: {' '.join(said.split())[:SHOWN]}".rstrip(": ")
    return Refused(why) if 400 <= status < 500 and status not in _LATER else Away(why)
