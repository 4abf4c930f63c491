"""Notices as bytes: for dead letters, and as the JSON that webhooks and logs get. Pure."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from hami.alerts.decide.notice import Notice, Status
from hami.domain.errors import InvalidInput

VERSION = 1
"""Of the document; fields are only ever added."""


def encode_notice(notice: Notice) -> bytes:
    return msgspec.json.encode(notice)


def decode_notice(raw: bytes) -> Notice:
    """Raises InvalidInput."""
    try:
        return msgspec.json.decode(raw, type=Notice)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("notice", raw[:200].decode("utf-8", "replace"), str(error)) from error


def document(notice: Notice, labels: dict[str, str]) -> dict[str, Any]:
    """What a webhook gets. `labels` are the operator's own; the notice's win."""
    return {
        "version": VERSION,
        "key": notice.key,
        "alert": notice.alert.value,
        "severity": notice.alert.severity.value,
        "status": notice.status.value,
        "summary": notice.alert.summary,
        "description": notice.description,
        "event": notice.event,
        "started_at": rfc3339(notice.started_ms),
        "ended_at": rfc3339(notice.ended_ms) if notice.status is Status.RESOLVED else None,
        "labels": {**labels, **notice.labels},
    }


def rfc3339(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
