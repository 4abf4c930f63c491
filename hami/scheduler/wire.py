"""What kube-scheduler says to an extender and what it expects back, byte for byte as a real one sends it.

Its types have no JSON tags, so keys are Go field names: `Pod`, `NodeNames`, `PodUID`. A body whose keys differ in case is read
as well (Go does), on a slower path. Whatever cannot be read raises InvalidInput with the field, the value found there and why.
"""

import re
from collections import OrderedDict
from typing import Any, Final, TypeVar

import msgspec

from hami.domain.errors import InvalidInput
from hami.domain.pod import Node, Pod

T = TypeVar("T")

UNREADABLE: Final = (msgspec.DecodeError, msgspec.ValidationError, RecursionError)
"""What decoding raises for a body of any kind: broken JSON, wrong types, nesting without end."""

SHOWN: Final = 120
"""Characters of a malformed body that an error shows."""


class NodeList(msgspec.Struct, frozen=True):
    """Only in a dry run (`nodeCacheCapable: false`): whole Node objects. Kept raw, so that they can be answered unchanged."""

    items: list[msgspec.Raw] = []


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """Filter and prioritize. `node_names` stays raw: thousands of names come again and again in the same bytes."""

    pod: Pod | None = None
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class FilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    nodes: NodeList | None = None
    node_names: tuple[str, ...] | list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename="pascal"):
    """`score` from 0 to 10."""

    host: str
    score: int


class BindingArgs(msgspec.Struct, frozen=True):
    pod_name: str = msgspec.field(name="PodName", default="")
    pod_namespace: str = msgspec.field(name="PodNamespace", default="")
    pod_uid: str = msgspec.field(name="PodUID", default="")
    node: str = msgspec.field(name="Node", default="")


class BindingResult(msgspec.Struct, frozen=True, rename="pascal"):
    error: str = ""


class MetaPod(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True):
    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct, frozen=True):
    pods: list[Pod] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, frozen=True):
    """One of the two maps is null, by the scheduler's cache mode."""

    pod: Pod | None = msgspec.field(name="Pod", default=None)
    victims: dict[str, Victims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta_victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class PreemptionResult(msgspec.Struct, frozen=True):
    meta_victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default_factory=dict)


_args: Final = msgspec.json.Decoder(ExtenderArgs)
_binding: Final = msgspec.json.Decoder(BindingArgs)
_preemption: Final = msgspec.json.Decoder(PreemptionArgs)
_names: Final = msgspec.json.Decoder(tuple[str, ...] | None)
_node: Final = msgspec.json.Decoder(Node)
_encoder: Final = msgspec.json.Encoder()


def decode_args(body: bytes) -> ExtenderArgs:
    """Raises InvalidInput; a missing Pod is one, in HAMi's words."""
    args = _read(_args, body)
    if args.pod is None:
        args = _read(_args, _go_keys(body, ("Pod", "Nodes", "NodeNames")))
    if args.pod is None:
        raise InvalidInput("Pod", None, "extender args missing pod")
    return args


def decode_binding(body: bytes) -> BindingArgs:
    args = _read(_binding, body)
    if not args.pod_name:
        args = _read(_binding, _go_keys(body, ("PodName", "PodNamespace", "PodUID", "Node")))
    for field, value in (("PodName", args.pod_name), ("PodNamespace", args.pod_namespace), ("PodUID", args.pod_uid)):
        if not value:
            raise InvalidInput(field, value, "must not be empty")
    if not args.node:
        raise InvalidInput("Node", args.node, "must not be empty")
    return args


def decode_preemption(body: bytes) -> PreemptionArgs:
    args = _read(_preemption, body)
    if args.pod is None:
        raise InvalidInput("Pod", None, "extender args missing pod")
    return args


def decode_node(raw: msgspec.Raw, place: str) -> Node:
    try:
        return _node.decode(raw)
    except UNREADABLE as error:
        raise invalid(bytes(raw), error, place) from error


class NodeNames:
    """Raw lists of names to tuples; the last few lists are remembered by their bytes (a scheduler repeats itself)."""

    def __init__(self, keep: int = 8) -> None:
        self._keep = keep
        self._known: OrderedDict[bytes, tuple[str, ...] | None] = OrderedDict()

    def decode(self, raw: msgspec.Raw) -> tuple[str, ...] | None:
        """None for a missing or null list. The same bytes give the same tuple object."""
        key = bytes(raw)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        try:
            names = _names.decode(key)
        except UNREADABLE as error:
            raise invalid(key, error, "NodeNames") from error
        self._known[key] = names
        if len(self._known) > self._keep:
            self._known.popitem(last=False)
        return names


def encode(answer: Any) -> bytes:
    return _encoder.encode(answer)


def _read(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise invalid(body, error) from error


def _go_keys(body: bytes, names: tuple[str, ...]) -> bytes:
    """The body with its top-level keys spelt as Go's fields are, whatever their case."""
    by_lower = {name.lower(): name for name in names}
    fields = _read(_raw_fields, body)
    return _encoder.encode({by_lower.get(key.lower(), key): value for key, value in fields.items()})


_raw_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def invalid(body: bytes, error: Exception, root: str = "") -> InvalidInput:
    """An error of msgspec's as one that names the field and shows what stands there."""
    why, _, where = str(error).partition(" - at `")
    path = where.removesuffix("`").removeprefix("$").removeprefix(".") if where else ""
    field = (f"{root}{'.' if path and not path.startswith('[') else ''}{path}" if root else path) or "body"
    return InvalidInput(field, _value_at(body, path), why)


def _value_at(body: bytes, path: str) -> object:
    """What stands at a path; the start of the body where the path or the JSON leads nowhere."""
    start = body[:SHOWN].decode("utf-8", "replace")
    if not path:
        return start if len(body) <= SHOWN else f"{start}... ({len(body)} bytes)"
    try:
        here: Any = msgspec.json.decode(body)
        for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            here = here[int(index)] if index else here[key]
    except (*UNREADABLE, KeyError, IndexError, TypeError):
        return start
    return here
