"""What comes out of reading and binding: values, so that callers match on them instead of catching."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from hami.kube.kinds import HasMetadata

T = TypeVar("T", bound=HasMetadata)


# --- bind ---


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod is on the node, with our annotations. `earlier`: it already was when we asked."""

    earlier: bool = False


@dataclass(frozen=True, slots=True)
class AlreadyBound:
    """The pod is bound, but not by a write like ours: to this node, with other annotations or instead of ours."""

    node: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The API said no, and the pod is not bound by us."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, and reading the pod back settled nothing: the binding may still land."""

    why: str


BindResult = Bound | AlreadyBound | Refused | Unknown


# --- list ---


@dataclass(frozen=True, slots=True)
class Undecodable:
    """An object that does not fit its struct. It is left out; everything else goes on."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `first` means: forget the pages before (the list was begun anew)."""

    items: tuple[T, ...]
    resource_version: str
    first: bool
    bad: tuple[Undecodable, ...] = ()


# --- watch ---


@dataclass(frozen=True, slots=True)
class Added(Generic[T]):
    object: T


@dataclass(frozen=True, slots=True)
class Modified(Generic[T]):
    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """The object's last state; also what a selector says when an object leaves it."""

    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing changed up to this version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The version asked for is too old: list again."""

    message: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A change whose object could not be decoded. `resource_version` is empty when not even that could be read."""

    name: str
    why: str
    resource_version: str = ""


WatchEvent = Added[T] | Modified[T] | Deleted[T] | Bookmark | Gone | Skipped
