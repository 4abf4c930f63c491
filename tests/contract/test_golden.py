"""Every event ever released decodes for ever, and today's encoding is what the files say.

A new field with a default changes today's encoding: rename the present file to `<type>.<schema>-<n>.json`, which stays for
ever, and write the new one with `HAMI_TEST_WRITE_GOLDEN=1 pytest tests/contract/test_golden.py`.
"""

import os
from pathlib import Path

import msgspec
import pytest

from hami.events.catalog.union import EVENT_TYPES, Event
from hami.events.codec import decode_envelope, decode_event, encode_envelope
from hami.events.log import Undecodable, Unknown
from tests.support.samples import sample, sample_envelope

GOLDEN = Path(__file__).parent / "golden"


def file_of(kind: type[Event]) -> Path:
    return GOLDEN / f"{kind.TYPE}.{kind.SCHEMA}.json"


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.TYPE)
def test_todays_encoding_is_the_released_one(kind: type[Event]) -> None:
    encoded = encode_envelope(sample_envelope(kind)) + b"\n"
    if os.environ.get("HAMI_TEST_WRITE_GOLDEN"):
        file_of(kind).write_bytes(encoded)
    assert file_of(kind).exists(), f"{kind.TYPE} has no golden file"
    assert file_of(kind).read_bytes() == encoded


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.TYPE)
def test_the_released_value_reads_back_in_full(kind: type[Event]) -> None:
    assert decode_event(decode_envelope(file_of(kind).read_bytes())) == sample(kind)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.name)
def test_everything_ever_released_decodes(path: Path) -> None:
    envelope = decode_envelope(path.read_bytes())
    event = decode_event(envelope)
    assert not isinstance(event, Unknown | Undecodable), event
    assert path.name.startswith(f"{envelope.type}.{envelope.schema}")


def test_there_are_no_two_types_of_one_name() -> None:
    assert len({kind.TYPE for kind in EVENT_TYPES}) == len(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.TYPE)
def test_a_field_of_tomorrow_is_ignored(kind: type[Event]) -> None:
    envelope = decode_envelope(file_of(kind).read_bytes())
    data = msgspec.json.decode(envelope.data) | {"of_tomorrow": 1}
    newer = msgspec.structs.replace(envelope, data=msgspec.Raw(msgspec.json.encode(data)))
    assert decode_event(newer) == sample(kind)
