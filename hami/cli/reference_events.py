"""The reference page of events: every type, and every record and word inside them."""

import inspect
import types
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from hami.cli.markdown import table_of
from hami.cli.options import shown_default
from hami.events.catalog.union import AGENT_EVENTS, EVENT_TYPES, FEED_EVENTS

_WORDS: Final = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def event_lines() -> Iterator[str]:
    yield "Every event there is. The envelope around them is described in [the events page](../events.md)."
    yield "*agent*: a node's agent may write it into its inbox. *feed*: `append` copies it into the node's feed."
    yield "`MiB`, `CorePercent` (percent of one card), `Slots` and `EpochMs` (milliseconds since 1970) are whole numbers."
    yield ""
    for kind in EVENT_TYPES:
        marks = [name for name, kinds in (("agent", AGENT_EVENTS), ("feed", FEED_EVENTS)) if kind in kinds]
        yield from _struct(kind, kind.TYPE, f"Schema {kind.SCHEMA}." + (f" *{', '.join(marks)}*." if marks else ""))
    inner = _inside(EVENT_TYPES)
    yield "# Records inside events"
    yield ""
    for kind in inner:
        if issubclass(kind, msgspec.Struct):
            yield from _struct(kind, kind.__name__, "")
    yield "# Words inside events"
    yield ""
    rows = [(kind.__name__, ", ".join(f"`{each.value}`" for each in kind)) for kind in inner if issubclass(kind, Enum)]
    yield from table_of(("Word list", "Values"), rows)


def _struct(kind: type[msgspec.Struct], title: str, lead: str) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    text = f"{lead} {_own_doc(kind)}".strip()
    if text:
        yield text
        yield ""
    hints = get_type_hints(kind)
    rows = [(f"`{each.name}`", _type_text(hints[each.name]), _default_text(each)) for each in msgspec.structs.fields(kind)]
    if rows:
        yield from table_of(("Field", "Type", "Default"), rows)


def _own_doc(kind: type) -> str:
    own = kind.__dict__.get("__doc__")
    return " ".join(inspect.cleandoc(own).split()) if own else ""


def _inside(kinds: Sequence[type[msgspec.Struct]]) -> list[type]:
    """Structs and enums that fields refer to, in the order they are met."""
    found: dict[type, None] = {}
    queue: list[type[msgspec.Struct]] = list(kinds)
    while queue:
        for annotation in _annotations(queue.pop(0)):
            for part in _parts(annotation):
                if part not in found and issubclass(part, (msgspec.Struct, Enum)):
                    found[part] = None
                    if issubclass(part, msgspec.Struct):
                        queue.append(part)
    return [*found]


def _annotations(kind: type[msgspec.Struct]) -> list[Any]:
    hints = get_type_hints(kind)
    return [hints[field.name] for field in msgspec.structs.fields(kind)]


def _parts(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _type_text(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        return " or ".join("none" if each is type(None) else _type_text(each) for each in arguments)
    if origin in {tuple, frozenset}:
        return f"list of {_type_text(arguments[0])}"
    if origin is dict:
        return f"map of {_type_text(arguments[0])} to {_type_text(arguments[1])}"
    return str(getattr(annotation, "__name__", annotation))


def _default_text(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    if field.default is msgspec.NODEFAULT:
        return "required"
    if field.default in ((), "", None) or isinstance(field.default, msgspec.Struct):
        return "empty"
    return shown_default(field.default)
