"""A full value of every event, every field set, the same at every run: what the golden files hold."""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from hami.domain.units import EpochMs
from hami.events.catalog.union import Event
from hami.events.codec import seal
from hami.events.envelope import Envelope
from hami.events.log import Draft


def sample(kind: type[Event]) -> Event:
    """Every field filled from its name and type, defaults ignored."""
    return _value(kind, kind.__name__)  # type: ignore[no-any-return]


def sample_envelope(kind: type[Event]) -> Envelope:
    draft = Draft(event=sample(kind), node="node-1", subject="subject-1", correlation="correlation-1", causation="causation-1")
    return seal(draft, producer="producer-1", epoch=2, seq=3, occurred_ms=EpochMs(1_700_000_000_000), chain="previous")


def _value(kind: Any, name: str) -> Any:
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _value(next(each for each in arguments if each is not NoneType), name)
    if origin is tuple:
        return (_value(arguments[0], name),)
    if origin is dict:
        return {f"{name}-key": _value(arguments[1], name)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{field: _value(hints[field], field) for field in kind.__struct_fields__})
    return _plain(kind, name)


def _plain(kind: Any, name: str) -> Any:
    match kind:
        case type() if issubclass(kind, str) and kind is not str:
            return next(iter(kind))  # type: ignore[call-overload]
        case type() if kind is str:
            return f"{name}-1"
        case type() if kind is bool:
            return True
        case type() if kind is int:
            return len(name)
        case type() if kind is float:
            return 0.5
    raise TypeError(f"no sample for {kind!r}")
