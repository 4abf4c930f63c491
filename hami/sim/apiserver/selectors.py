"""Label and field selectors, parsed once per request into one predicate over objects."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from hami.sim.apiserver.errors import ApiRefusal, Obj
from hami.sim.apiserver.kinds import Resource

Matches = Callable[[Obj], bool]
_Label = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_EQUAL = re.compile(r"\s*([^\s!=,()]+)\s*(==|!=|=)\s*([^\s,()]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")


def everything(_: Obj) -> bool:
    return True


def field_of(obj: Mapping[str, Any], path: str) -> str:
    """The value at a dotted path as selectors see it: text, empty when absent."""
    here: Any = obj
    for step in path.split("."):
        here = here.get(step) if isinstance(here, Mapping) else None
    if isinstance(here, bool):
        return "true" if here else "false"
    return "" if here is None else str(here)


def _split(text: str) -> list[str]:
    """On commas that stand outside brackets."""
    return [each for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def _label_term(term: str) -> _Label:
    if found := _SET.fullmatch(term):
        key, operator, listed = found.groups()
        values = frozenset(each.strip() for each in listed.split(","))
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.fullmatch(term):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.fullmatch(term):
        absent, key = found.groups()
        return (lambda labels: key not in labels) if absent else (lambda labels: key in labels)
    raise ApiRefusal(400, f"unable to parse requirement: found '{term}', expected: ',' or 'end of string'")


def label_predicate(text: str) -> Callable[[Mapping[str, str]], bool]:
    terms = [_label_term(each) for each in _split(text)]
    return lambda labels: all(term(labels) for term in terms)


def field_terms(text: str, allowed: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    """(path, value, equal) for every term; a path that cannot be selected on is refused as the server does."""
    terms: list[tuple[str, str, bool]] = []
    for term in _split(text):
        found = _EQUAL.fullmatch(term)
        if found is None:
            raise ApiRefusal(400, f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = found.groups()
        if path not in allowed:
            raise ApiRefusal(400, f"field label not supported: {path}")
        terms.append((path, value, operator != "!="))
    return terms


def _stored_path(path: str) -> str:
    """Events are selected by `source`, which is kept as `source.component`."""
    return "source.component" if path == "source" else path


def selector(resource: Resource, labels: str, fields: str, namespace: str) -> Matches:
    """One predicate for labels, fields and namespace together."""
    if not (labels or fields or namespace):
        return everything
    wants_labels = label_predicate(labels) if labels else None
    wants_fields = [(_stored_path(path), value, equal) for path, value, equal in field_terms(fields, resource.selectable)]

    def matches(obj: Obj) -> bool:
        meta = obj["metadata"]
        if namespace and meta.get("namespace") != namespace:
            return False
        if wants_labels is not None and not wants_labels(meta.get("labels") or {}):
            return False
        return all((field_of(obj, path) == value) is equal for path, value, equal in wants_fields)

    return matches


def label_selector_object(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A `LabelSelector` object (matchLabels, matchExpressions) against labels; an empty one matches everything."""
    if not selector:
        return True
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(each, labels) for each in selector.get("matchExpressions") or [])


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ApiRefusal(400, f'"{expression["operator"]}" is not a valid label selector operator')
