"""Cluster state to bytes and back, the schema that says whether bytes can be read, and a digest to compare states by.

The schema is derived from the structs themselves: change a field anywhere below `Facts` and old checkpoints no longer match,
so that a state is never filled in by guessing. The log is then replayed from further back.
"""

import hashlib
from typing import Any, Final

import msgspec

from hami.domain.errors import InvalidInput
from hami.events.envelope import START
from hami.projections.folds.state import ClusterState, Facts, facts_of, state_of

_encoder: Final = msgspec.msgpack.Encoder()
_sorting_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(Facts)


def encode_state(state: ClusterState) -> bytes:
    """Dicts keep their order: it is part of the state."""
    return _encoder.encode(facts_of(state))


def decode_state(raw: bytes) -> ClusterState:
    """Raises InvalidInput when the bytes are no state of this schema."""
    try:
        return state_of(_decoder.decode(raw))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("checkpoint", raw[:40], str(error)) from error


def digest_of(state: ClusterState) -> str:
    """Equal for equal content in any process; which positions led there does not count."""
    content = msgspec.structs.replace(facts_of(state), position=START, previous=START)
    return hashlib.sha256(_sorting_encoder.encode(content)).hexdigest()


def schema_of(root: type[msgspec.Struct]) -> str:
    """A hash over the fields and defaults of a struct and of every struct and enum it can hold, docstrings left out."""
    bare = _without_prose(msgspec.json.schema(root))
    return hashlib.sha256(msgspec.json.encode(bare, order="deterministic")).hexdigest()[:16]


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_prose(value) for key, value in schema.items() if key != "description"}
    if isinstance(schema, list):
        return [_without_prose(each) for each in schema]
    return schema


SCHEMA: Final = schema_of(Facts)
