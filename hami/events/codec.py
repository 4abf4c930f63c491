"""Bytes <-> events, in two stages: the envelope first, the payload by its (type, schema). Pure.

An unknown type or a newer schema is `Unknown`; a known one that cannot be read is `Undecodable`. Neither raises: one bad entry
must not stop a reader. A malformed envelope raises InvalidInput.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs
from hami.events.catalog.union import BY_TYPE, EVENT_TYPES, Event
from hami.events.envelope import Envelope, Position, chain_of, event_id
from hami.events.log import Draft, Record, Undecodable, Unknown
from hami.events.upcast import UPCASTERS

_encoder = msgspec.json.Encoder()
_envelope_decoder = msgspec.json.Decoder(Envelope)
_UNREADABLE: Final = (msgspec.DecodeError, msgspec.ValidationError, RecursionError)
"""Nesting too deep to be read is the sender's doing, as broken JSON is."""

_newest: Final[Mapping[str, type[Event]]] = {each.TYPE: each for each in EVENT_TYPES}
_decoders: Final[Mapping[tuple[str, int], Callable[[msgspec.Raw], Event]]] = {
    key: msgspec.json.Decoder(kind).decode for key, kind in BY_TYPE.items()
}


def encode_envelope(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def decode_envelope(raw: bytes) -> Envelope:
    try:
        return _envelope_decoder.decode(raw)
    except _UNREADABLE as error:
        shown = raw[:200].decode("utf-8", "replace")
        raise InvalidInput("envelope", shown, str(error)) from error


def decode_event(envelope: Envelope) -> Event | Unknown | Undecodable:
    decode = _decoders.get((envelope.type, envelope.schema))
    if decode is None:
        return _decode_old(envelope)
    try:
        return decode(envelope.data)
    except _UNREADABLE as error:
        return Undecodable(envelope.type, str(error))


def _decode_old(envelope: Envelope) -> Event | Unknown | Undecodable:
    newest = _newest.get(envelope.type)
    if newest is None or envelope.schema > newest.SCHEMA:
        return Unknown(envelope.type, envelope.schema)
    try:
        payload: dict[str, Any] = msgspec.json.decode(envelope.data)
        for schema in range(envelope.schema, newest.SCHEMA):
            payload = UPCASTERS[envelope.type, schema](payload)
        return msgspec.convert(payload, newest)
    except (*_UNREADABLE, KeyError, TypeError) as error:
        return Undecodable(envelope.type, str(error))


_NO_VERSIONS: Final[Mapping[str, int]] = MappingProxyType({})
_MALFORMED: Final = Envelope(id="", type="", producer="", epoch=0, seq=0, data=msgspec.Raw(b"null"))


def decode_record(entry: str, g: int, raw: bytes, versions: str) -> Record:
    """A log entry from its fields. Never raises for what stands in the log: a malformed envelope becomes Undecodable."""
    position = Position(g, entry)
    try:
        envelope = _envelope_decoder.decode(raw)
    except _UNREADABLE as error:
        return Record(position=position, envelope=_MALFORMED, event=Undecodable("", str(error)))
    decode = _decoders.get((envelope.type, envelope.schema))
    if decode is None:
        event = _decode_old(envelope)
    else:
        try:
            event = decode(envelope.data)
        except _UNREADABLE as error:
            event = Undecodable(envelope.type, str(error))
    if not versions:
        return Record(position=position, envelope=envelope, event=event, versions=_NO_VERSIONS)
    moved: dict[str, int] = {}
    try:
        for pair in versions.split(" "):
            entity, _, version = pair.rpartition("=")
            moved[entity] = int(version)
    except ValueError as error:
        event = Undecodable(envelope.type, f"versions {versions!r}: {error}")
    return Record(position=position, envelope=envelope, event=event, versions=moved)


def check_entities(entities: Sequence[Sequence[str]]) -> None:
    """An entry holds `name=version` pairs, separated by spaces. Raises InvalidInput for a name that would not read back."""
    for names in entities:
        for name in names:
            if " " in name:
                raise InvalidInput("entity", name, "must not contain a space")


def seal(draft: Draft, *, producer: str, epoch: int, seq: int, occurred_ms: EpochMs, chain: str = "") -> Envelope:
    """Put an event into its envelope; `chain` is the producer's previous chain value."""
    identity = event_id(producer, epoch, seq)
    data = _encoder.encode(draft.event)
    return Envelope(
        id=identity,
        type=draft.event.TYPE,
        schema=draft.event.SCHEMA,
        producer=producer,
        epoch=epoch,
        seq=seq,
        data=msgspec.Raw(data),
        node=draft.node,
        subject=draft.subject,
        occurred_ms=occurred_ms,
        correlation=draft.correlation,
        causation=draft.causation,
        chain=chain_of(chain, identity, data),
    )
