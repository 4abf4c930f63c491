"""Sinks from settings. Whatever cannot work is refused here, before anything runs."""

import re
import sys
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from hami.alerts.sinks.alertmanager import Alertmanager
from hami.alerts.sinks.base import Sink
from hami.alerts.sinks.lines import Lines
from hami.alerts.sinks.webhook import Webhook
from hami.config import AlertsSettings, without_password
from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs

_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN: Final = frozenset({"alertname", "severity", "node", "device", "pod", "event"})


def sinks_of(settings: AlertsSettings, http: aiohttp.ClientSession, clock: Callable[[], EpochMs]) -> tuple[Sink, ...]:
    """Raises InvalidInput."""
    labels = labels_of(settings.labels)
    urls = settings.alertmanager_url.split()
    sinks: list[Sink] = []
    for number, url in enumerate(urls, start=1):
        _check_url("alerts.alertmanager_url", url)
        name = "alertmanager" if len(urls) == 1 else f"alertmanager-{number}"
        times = {"resend_s": settings.resend_s, "once_s": settings.once_s}
        sinks.append(Alertmanager(http, url, name=name, labels=labels, clock=clock, **times))
    if settings.webhook_url:
        _check_url("alerts.webhook_url", settings.webhook_url)
        token = settings.webhook_token_file
        sinks.append(Webhook(http, settings.webhook_url, name="webhook", labels=labels, token_file=token))
    if settings.log:
        sinks.append(Lines(sys.stdout, name="log", labels=labels))
    if not sinks:
        raise InvalidInput("alerts", "no sink", "set alertmanager_url, webhook_url or log")
    return tuple(sinks)


def labels_of(text: str) -> dict[str, str]:
    """`cluster=east,team=ml`. Raises InvalidInput."""
    found: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or _LABEL.fullmatch(name) is None:
            raise InvalidInput("alerts.labels", part, "needs name=value, the name of letters, digits and _")
        if name in _OWN:
            raise InvalidInput("alerts.labels", part, f"{name} is a label of the notices themselves")
        found[name] = value
    return found


def _check_url(field: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(field, without_password(url), "must be http:// or https:// with a host")
