"""Any HTTP receiver: one JSON document a notice, its key in the header `Idempotency-Key`."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import aiohttp
import anyio
import msgspec

from hami.alerts.decide.notice import Notice
from hami.alerts.decide.wire import document
from hami.alerts.sinks.base import Answer, Away, Taken
from hami.alerts.sinks.http import post


class Webhook:
    """Implements hami.alerts.sinks.base.Sink. The token file is read for every notice, as secrets are renewed in place."""

    refresh_s = 0.0

    def __init__(
        self, http: aiohttp.ClientSession, url: str, *, name: str, labels: Mapping[str, str], token_file: str = ""
    ) -> None:
        self._http, self._url, self.name, self._labels, self._token_file = http, url, name, dict(labels), token_file

    async def deliver(self, notice: Notice) -> Answer:
        headers = {"Idempotency-Key": quote(notice.key, safe="/:#.,=@+")}
        if self._token_file:
            try:
                token = (await anyio.Path(self._token_file).read_text()).strip()
            except (OSError, UnicodeDecodeError) as error:
                return Away(f"the token file cannot be read: {error}")
            if not token.isascii() or not token.isprintable():
                return Away("the token file holds something that is no token")
            headers["Authorization"] = f"Bearer {token}"
        return await post(self._http, self._url, msgspec.json.encode(document(notice, self._labels)), headers)

    async def refresh(self, firing: Sequence[Notice]) -> Answer:  # noqa: ARG002 - a webhook remembers what it was told
        return Taken()
