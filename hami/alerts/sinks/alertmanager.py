"""Prometheus Alertmanager, API v2.

It knows an alert by its labels and forgets one that it is not told of again, so what fires is sent again and again, each time
with an end a few rounds ahead: should nobody send any more, it ends by itself. An alert that happened once gets its event's id
as a label, so that each counts, and an end of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from hami.alerts.decide.notice import Notice, Status
from hami.alerts.decide.wire import rfc3339
from hami.alerts.sinks.base import Answer, Taken
from hami.alerts.sinks.http import post
from hami.domain.units import EpochMs

PATH: Final = "/api/v2/alerts"
ROUNDS: Final = 4
"""So many missed rounds end an alert over there; Prometheus does the same."""

AT_ONCE: Final = 500


class Alertmanager:
    """Implements hami.alerts.sinks.base.Sink. `once_s` is how long an alert that happened once stays active there."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        name: str,
        labels: Mapping[str, str],
        resend_s: float,
        once_s: float,
        clock: Callable[[], EpochMs],
    ) -> None:
        self._http, self._url, self.name, self._labels = http, url.rstrip("/") + PATH, name, dict(labels)
        self.refresh_s, self._once_s, self._clock = resend_s, once_s, clock

    async def deliver(self, notice: Notice) -> Answer:
        return await self._send([notice])

    async def refresh(self, firing: Sequence[Notice]) -> Answer:
        for at in range(0, len(firing), AT_ONCE):
            answer = await self._send(firing[at : at + AT_ONCE])
            if not isinstance(answer, Taken):
                return answer
        return Taken()

    async def _send(self, notices: Sequence[Notice]) -> Answer:
        now = self._clock()
        body = msgspec.json.encode([self._alert(notice, now) for notice in notices])
        return await post(self._http, self._url, body, {})

    def _alert(self, notice: Notice, now: EpochMs) -> dict[str, Any]:
        own = {"alertname": notice.alert.value, "severity": notice.alert.severity.value}
        once = {"event": notice.event} if notice.status is Status.ONCE else {}
        annotations = {"summary": notice.alert.summary, "description": notice.description, "event": notice.event}
        return {
            "labels": {**self._labels, **notice.labels, **own, **once},
            "annotations": annotations,
            "startsAt": rfc3339(notice.started_ms),
            "endsAt": rfc3339(self._end(notice, now)),
        }

    def _end(self, notice: Notice, now: EpochMs) -> int:
        match notice.status:
            case Status.RESOLVED:
                return max(notice.ended_ms, notice.started_ms + 1)
            case Status.ONCE:
                return round(now + self._once_s * 1000)
            case Status.FIRING:
                return round(now + ROUNDS * self.refresh_s * 1000)
