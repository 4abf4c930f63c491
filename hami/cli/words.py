"""An event in one line for people, and as one JSON object for programs."""

from typing import Any

import msgspec

from hami.cli.when import shown
from hami.events.log import Record, Undecodable, Unknown
from hami.projections.folds.words import words_of


def for_people(record: Record) -> str:
    """One line: place, time, type, node, and what happened."""
    envelope, when = record.envelope, shown(record.position.recorded_ms)
    place = f"{record.position.g:>6}  {when}  {envelope.type.removeprefix('hami.'):<22}  {envelope.node or '-':<16}"
    return f"{place}  {' '.join(words_of(record.event).split())}".rstrip()


def as_json(record: Record) -> dict[str, Any]:
    """The whole record: where it stands, its envelope, its data as written."""
    envelope = msgspec.structs.asdict(record.envelope)
    data = envelope.pop("data")
    document: dict[str, Any] = {
        "g": record.position.g,
        "entry": record.position.entry,
        "recorded_at": shown(record.position.recorded_ms),
        **envelope,
        "occurred_at": shown(record.envelope.occurred_ms) if record.envelope.occurred_ms else None,
        "versions": dict(record.versions),
        "data": data,
    }
    if isinstance(record.event, Unknown):
        document["unreadable"] = "unknown type or newer schema"
    if isinstance(record.event, Undecodable):
        document["unreadable"] = record.event.error
    return document
