"""Bytes <-> events, in two stages: the envelope first, the payload by its (type, schema). Pure.

An unknown type or a newer schema is `Unknown`; a known one that cannot be read is `Undecodable`. Neither raises: one bad entry
must not stop a reader. A malformed envelope raises InvalidInput.
"""

from collections.abc import Callable, Mapping, Sequence
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


class Place(msgspec.Struct, frozen=True, gc=False):
    """Field `p` of an entry: the counter of the log, and the version of each entity that the entry moved."""

    g: int
    v: dict[str, int]


_decode_place = msgspec.json.Decoder(Place).decode
_decode_envelope = _envelope_decoder.decode
_MALFORMED: Final = Envelope(id="", type="", producer="", epoch=0, seq=0, data=msgspec.Raw(b"null"))


def encode_place(place: Place) -> bytes:
    return _encoder.encode(place)


def decode_record(entry: str, raw: bytes, where: bytes) -> Record:
    """A log entry from its fields `d` and `p`. What a producer wrote never raises: a malformed envelope becomes Undecodable.

    Without its place an entry cannot be in the log: raises InvalidInput then.
    """
    try:
        place = _decode_place(where)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("p", where[:200].decode("utf-8", "replace"), f"entry {entry} of the log: {error}") from error
    position = Position(place.g, entry)
    try:
        envelope = _decode_envelope(raw)
    except _UNREADABLE as error:
        return Record(position, _MALFORMED, Undecodable("", str(error)), place.v)
    return Record(position, envelope, decode_event(envelope), place.v)


def check_entities(entities: Sequence[Sequence[str]]) -> None:
    """Names stand in JSON as they are, without escapes. Raises InvalidInput for one that would not read back."""
    for names in entities:
        for name in names:
            if '"' in name or "\\" in name or not name.isprintable():
                raise InvalidInput("entity", name, "must hold no quote, backslash or control character")
            if "/" not in name or name.startswith("producer/"):
                raise InvalidInput("entity", name, "must be <kind>/<name>, and producer/ is taken")


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
