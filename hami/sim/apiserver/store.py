"""Objects in memory: one global revision, one ordered shelf per resource, and a ring of changes that watches read.

A stored object is never changed in place: a write puts a new dict in its stead, so readers, snapshots and the ring
share objects freely and nothing is copied per request.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import anyio
import msgspec

from hami.sim.apiserver.errors import Obj

Key = tuple[str, str]
ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
_encode = msgspec.json.Encoder().encode


class Stored:
    """One version of one object, with its JSON made once, on first use."""

    __slots__ = ("_json", "obj", "revision")

    def __init__(self, obj: Obj, revision: int) -> None:
        self.obj, self.revision = obj, revision
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        if self._json is None:
            self._json = _encode(self.obj)
        return self._json

    @property
    def key(self) -> Key:
        return key_of(self.obj)


class Change:
    """An entry of the ring; `before` is what a selector needs to see an object enter or leave."""

    __slots__ = ("after", "before", "revision", "type")

    def __init__(self, type_: ChangeType, revision: int, after: Stored, before: Stored | None) -> None:
        self.type, self.revision, self.after, self.before = type_, revision, after, before


def key_of(obj: Obj) -> Key:
    meta = obj["metadata"]
    return (meta.get("namespace") or "", meta["name"])


class Shelf:
    """All objects of one resource."""

    def __init__(self, ring_size: int) -> None:
        self.items: dict[Key, Stored] = {}
        self.by_node: dict[str, dict[Key, Stored]] = {}
        self.ring: deque[Change] = deque(maxlen=ring_size)
        self.first = 0
        """Position of the ring's oldest entry since the beginning of time."""
        self.lost_up_to = 0
        """The highest revision whose change has left the ring: a watch from before it cannot be served."""
        self.changed = anyio.Event()
        self._sorted: list[Stored] | None = None

    def in_order(self) -> list[Stored]:
        if self._sorted is None:
            self._sorted = [stored for _, stored in sorted(self.items.items())]
        return self._sorted

    @property
    def end(self) -> int:
        return self.first + len(self.ring)

    def position_after(self, revision: int) -> int:
        """Where a watch from this revision starts to read."""
        position = self.end
        for change in reversed(self.ring):
            if change.revision <= revision:
                break
            position -= 1
        return position

    def read_from(self, position: int) -> Iterator[Change]:
        for index in range(position - self.first, len(self.ring)):
            yield self.ring[index]

    def put(self, type_: ChangeType, stored: Stored, before: Stored | None) -> None:
        key = stored.key
        if type_ == "DELETED":
            del self.items[key]
        else:
            self.items[key] = stored
        self._sorted = None
        self._index(key, stored, before, deleted=type_ == "DELETED")
        self._remember(Change(type_, stored.revision, stored, before))

    def load(self, stored: Stored) -> None:
        """Put an object on the shelf as if it had always been there: no change is recorded."""
        before = self.items.get(stored.key)
        self.items[stored.key] = stored
        self._sorted = None
        self._index(stored.key, stored, before, deleted=False)

    def _index(self, key: Key, stored: Stored, before: Stored | None, *, deleted: bool) -> None:
        if before is not None and (node := _node_of(before.obj)):
            self.by_node.get(node, {}).pop(key, None)
        if not deleted and (node := _node_of(stored.obj)):
            self.by_node.setdefault(node, {})[key] = stored

    def _remember(self, change: Change) -> None:
        if len(self.ring) == self.ring.maxlen:
            self.lost_up_to = self.ring[0].revision if self.ring else change.revision
            self.first += 1
        self.ring.append(change)
        self.wake()

    def forget(self) -> None:
        """Drop every remembered change, as compaction and a restart do."""
        if self.ring:
            self.lost_up_to = self.ring[-1].revision
            self.first += len(self.ring)
            self.ring.clear()

    def wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


def _node_of(obj: Obj) -> str:
    spec = obj.get("spec")
    return (spec.get("nodeName") or "") if isinstance(spec, dict) else ""


class Store:
    """Every shelf under one revision counter. The caller serialises writes by not awaiting between check and write."""

    def __init__(self, *, ring_size: int = 10_000, snapshots: int = 64) -> None:
        self.revision = 1
        self._ring_size = ring_size
        self._shelves: dict[str, Shelf] = {}
        self._snapshots: OrderedDict[tuple[object, ...], list[Stored]] = OrderedDict()
        self._most_snapshots = snapshots

    def shelf(self, storage: str) -> Shelf:
        found = self._shelves.get(storage)
        if found is None:
            found = self._shelves[storage] = Shelf(self._ring_size)
        return found

    def get(self, storage: str, namespace: str, name: str) -> Stored | None:
        return self.shelf(storage).items.get((namespace, name))

    def create(self, storage: str, obj: Obj) -> Stored:
        stored = self._stamp(obj)
        self.shelf(storage).put("ADDED", stored, None)
        return stored

    def replace(self, storage: str, before: Stored, obj: Obj) -> Stored:
        stored = self._stamp(obj)
        self.shelf(storage).put("MODIFIED", stored, before)
        return stored

    def remove(self, storage: str, before: Stored) -> Stored:
        stored = self._stamp(before.obj)
        self.shelf(storage).put("DELETED", stored, before)
        return stored

    def load(self, storage: str, objects: Iterable[Obj]) -> None:
        """Fill a shelf at once, without a change per object: for seeding thousands."""
        shelf = self.shelf(storage)
        for obj in objects:
            shelf.load(self._stamp(obj))
        shelf.lost_up_to = self.revision

    def _stamp(self, obj: Obj) -> Stored:
        self.revision += 1
        meta = {**obj["metadata"], "resourceVersion": str(self.revision)}
        return Stored({**obj, "metadata": meta}, self.revision)

    def snapshot(self, key: tuple[object, ...], make: Callable[[], list[Stored]]) -> list[Stored]:
        """The rest of a paged list stays as it was when its first page was read, for as long as it is remembered."""
        found = self._snapshots.get(key)
        if found is None:
            found = self._snapshots[key] = make()
            while len(self._snapshots) > self._most_snapshots:
                self._snapshots.popitem(last=False)
        return found

    def remembered(self, key: tuple[object, ...]) -> list[Stored] | None:
        return self._snapshots.get(key)

    def compact(self) -> None:
        """Forget old revisions: open continue tokens and watches from the past answer 410 from here on."""
        self._snapshots.clear()
        for shelf in self._shelves.values():
            shelf.forget()
