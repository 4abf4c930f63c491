"""Command line options made from a table of settings: one option a field, its help the field's own description."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click
import msgspec

Command = Callable[..., Any]


def described(kind: type[msgspec.Struct]) -> list[tuple[str, str, object, str, str]]:
    """(name, type word, default, description, rule) of every field, in order."""
    rows = []
    for field in msgspec.json.schema_components([kind])[1][kind.__name__]["properties"].items():
        name, schema = field
        rows.append((name, _type_word(schema), schema.get("default"), str(schema.get("description", "")), _rule(schema)))
    return rows


def _type_word(schema: Mapping[str, Any]) -> str:
    return {"integer": "integer", "number": "number", "boolean": "true or false", "string": "text"}[schema["type"]]


def _rule(schema: Mapping[str, Any]) -> str:
    """What a value must satisfy, in words a reader of the reference page needs; empty = anything."""
    words = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
    rules = [f"{word} {schema[key]:g}" for key, word in words.items() if key in schema]
    if "pattern" in schema:
        rules.append("one of " + schema["pattern"].strip("^$()").replace("|", ", "))
    return ", ".join(rules)


def setting_options(
    kind: type[msgspec.Struct],
    *,
    prefix: str = "",
    leave_out: tuple[str, ...] = (),
    spellings: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Callable[[Command], Command]:
    """Decorator: an option for every field of a table, unset unless given, so that file and environment keep their say.

    The verb receives them as keyword arguments named `<prefix><field>`. `spellings` are further names of an option; one that
    is true or false may stand without a value.
    """

    def decorate(function: Command) -> Command:
        for name, word, default, description, rule in reversed(described(kind)):
            if name in leave_out:
                continue
            flag = f"--{prefix}{name}".replace("_", "-")
            shown = "" if default in {"", None} else f" Default: {shown_default(default)}."
            note = f" ({rule})" if rule else ""
            bare: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if word == "true or false" else {}
            names = (flag, *spellings.get(name, ()), f"{prefix}{name}")
            function = click.option(*names, default=None, help=f"{description}{note}.{shown}", **bare)(function)
        return function

    return decorate


def flags_of(given: Mapping[str, object], *, prefix: str = "", among: type[msgspec.Struct]) -> dict[str, object]:
    """The values of one table's options, names without the prefix."""
    names = {field.name for field in msgspec.structs.fields(among)}
    return {
        name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix) and name[len(prefix) :] in names
    }


def shown_default(default: object) -> str:
    """A default as a person writes it."""
    return str(default).lower() if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else str(default)
