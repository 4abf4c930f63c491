"""All nodes as flat numpy planes (cards x nodes, padded), fed by changed nodes, read by every decision.

Nodes lie along the long axis, so that a sum over a node's cards adds whole lines. A node's place on it is its row number;
cards keep registration order. Every change stamps its row, so that whoever cached a verdict knows which rows to look at
again. One thread owns the planes; a snapshot given to `place` must be of the same log position.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import DeviceState, Health
from hami.domain.reasons import NodeReason
from hami.scheduler.decide.refusals import node_refusal
from hami.scheduler.decide.score import node_score
from hami.vendors.constraints import Wishes
from hami.vendors.vendor import Vendor

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

REFUSALS: Final[tuple[NodeReason | None, ...]] = (None, NodeReason.UNREGISTERED, NodeReason.QUARANTINED, NodeReason.LOST)
_FIRST_ROWS: Final = 64
_FIRST_COLUMNS: Final = 8


class View(NamedTuple):
    """Planes of some nodes, cards x nodes. `kind` interns (model, mode), `vendor` is -1 where a node has no card.

    `ready` = healthy and not cordoned.
    """

    vendor: Numbers
    kind: Numbers
    used: Numbers
    free_slots: Numbers
    memory: Numbers
    free_memory: Numbers
    cores: Numbers
    free_cores: Numbers
    numa: Numbers
    position: Numbers
    healthy: Bools
    cordoned: Bools
    mig: Bools
    ready: Bools


_NUMBERS: Final = 10
_FLAGS: Final = 4
_MOST: Final = 2**31 - 1
"""Planes hold 32 bits; a request is never larger, so a larger card is as good as one of this size."""


class Entry:
    """What is known of one request shape: on which rows it may fit, why not on others, and as of which change."""

    __slots__ = ("mask", "reason_clock", "reasons", "seen")

    def __init__(self) -> None:
        self.mask: Bools = np.zeros(0, np.bool_)
        self.seen = -1
        self.reasons: npt.NDArray[np.object_] = np.empty(0, np.object_)
        self.reason_clock: Ints = np.empty(0, np.int64)


class Planes:
    """`put` every new or changed node, `remove` what is gone."""

    def __init__(self, vendors: Sequence[Vendor]) -> None:
        self.vendors: Final = tuple(vendors)
        self.words: Final = {each.word: code for code, each in enumerate(vendors)}
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.kinds: dict[tuple[str, str], int] = {("", ""): 0}
        self.uuids: dict[str, list[tuple[int, int]]] = {}
        self.clock = 0
        self.entries: Final[OrderedDict[Hashable, Entry]] = OrderedDict()
        self._free: list[int] = []
        self._row_uuids: dict[int, tuple[str, ...]] = {}
        self._ranked = True
        self._asked: tuple[tuple[str, ...], int] = ((), -1)
        self._asked_rows: Ints = np.zeros(0, np.int64)
        self._asked_mask: Bools = np.zeros(0, np.bool_)
        self._membership = 0
        self._allocate(_FIRST_ROWS, _FIRST_COLUMNS)

    def _allocate(self, rows: int, columns: int) -> None:
        self._numbers = np.zeros((_NUMBERS, columns, rows), np.int32)
        self._flags = np.zeros((_FLAGS, columns, rows), np.bool_)
        self._numbers[0] = -1
        self.view = View(*self._numbers, *self._flags)
        self.score: npt.NDArray[np.float32] = np.zeros(rows, np.float32)
        self.refusal: npt.NDArray[np.int8] = np.ones(rows, np.int8)
        self.stamp: Ints = np.zeros(rows, np.int64)
        self.rank: Ints = np.zeros(rows, np.int64)

    def _grow(self, rows: int, columns: int) -> None:
        numbers, flags, before = self._numbers, self._flags, len(self.score)
        lines: tuple[npt.NDArray[Any], ...] = (self.score, self.refusal, self.stamp, self.rank)
        old_columns = numbers.shape[1]
        self._allocate(max(rows, before), max(columns, old_columns))
        self._numbers[:, :old_columns, :before] = numbers
        self._flags[:, :old_columns, :before] = flags
        grown: tuple[npt.NDArray[Any], ...] = (self.score, self.refusal, self.stamp, self.rank)
        for line, old in zip(grown, lines, strict=True):
            line[:before] = old

    @property
    def columns(self) -> int:
        return self._numbers.shape[1]

    def sync(self, snapshot: ClusterSnapshot, changed: Iterable[str] | None = None) -> None:
        """Bring the named nodes (all, when None) to what the snapshot says."""
        names = (
            list(snapshot.nodes) + [name for name in self.rows if name not in snapshot.nodes] if changed is None else changed
        )
        for name in names:
            node = snapshot.nodes.get(name)
            if node is None:
                self.remove(name)
            else:
                self.put(node)

    def put(self, node: NodeState) -> None:
        row = self.rows.get(node.name)
        if row is None:
            row = self._row_for(node.name)
        if len(node.devices) > self.columns:
            self._grow(len(self.score), max(len(node.devices), 2 * self.columns))
        self._fill(row, node)
        self.score[row] = node_score(node.devices)
        self.refusal[row] = REFUSALS.index(node_refusal(node))
        self._touch(row)

    def remove(self, name: str) -> None:
        row = self.rows.pop(name, None)
        if row is None:
            return
        self._forget_uuids(row)
        self._numbers[0, :, row] = -1
        self.refusal[row] = 1
        self.names[row] = ""
        self._free.append(row)
        self._membership += 1
        self._ranked = False
        self._touch(row)

    def _row_for(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
            self.names[row] = name
        else:
            row = len(self.names)
            self.names.append(name)
            if row >= len(self.score):
                self._grow(2 * len(self.score), self.columns)
        self.rows[name] = row
        self._membership += 1
        self._ranked = False
        return row

    def _fill(self, row: int, node: NodeState) -> None:
        count = len(node.devices)
        self._numbers[0, :, row] = -1
        if count:
            cards = np.array([self._card(each) for each in node.devices], np.int64)
            self._numbers[:, :count, row] = np.clip(cards, -_MOST, _MOST).T
            flags = [(s.health is Health.HEALTHY, s.cordoned, s.device.mode == "mig", s.schedulable) for s in node.devices]
            self._flags[:, :count, row] = np.array(flags, np.bool_).T
        uuids = tuple([each.device.uuid for each in node.devices])
        if self._row_uuids.get(row) != uuids:
            self._forget_uuids(row)
            for number, uuid in enumerate(uuids):
                self.uuids.setdefault(uuid, []).append((number, row))
            self._row_uuids[row] = uuids

    def _card(self, state: DeviceState) -> tuple[int, ...]:
        device, used = state.device, state.used
        return (
            self.words.get(device.vendor, -1),
            self.kinds.setdefault((device.model, device.mode), len(self.kinds)),
            used.slots,
            device.slots - used.slots,
            device.memory,
            device.memory - used.memory,
            device.cores,
            device.cores - used.cores,
            device.numa,
            device.index,
        )

    def _forget_uuids(self, row: int) -> None:
        for uuid in self._row_uuids.pop(row, ()):
            places = [place for place in self.uuids.get(uuid, ()) if place[1] != row]
            if places:
                self.uuids[uuid] = places
            else:
                self.uuids.pop(uuid, None)

    def _touch(self, row: int) -> None:
        self.clock += 1
        self.stamp[row] = self.clock

    def at(self, rows: Ints | None) -> View:
        """The planes of these rows; of all rows in use when None."""
        if rows is None:
            used = len(self.names)
            return View._make(plane[:, :used] for plane in self.view)
        return View._make(plane[:, rows] for plane in self.view)

    def rows_of(self, names: Sequence[str]) -> Ints:
        """Row of every name, -1 for one unknown. The last list asked for is remembered."""
        asked = tuple(names)
        if self._asked[1] != self._membership or self._asked[0] != asked:
            get = self.rows.get
            self._asked_rows = np.fromiter((get(name, -1) for name in asked), np.int64, len(asked))
            self._asked_mask = np.zeros(len(self.names), np.bool_)
            self._asked_mask[self._asked_rows[self._asked_rows >= 0]] = True
            self._asked = (asked, self._membership)
        return self._asked_rows

    def mask_of(self, names: Sequence[str]) -> Bools:
        """The rows of these names, as a mask over all rows; not to be written to."""
        self.rows_of(names)
        return self._asked_mask

    def ranks(self) -> Ints:
        """Place of every row in the order of names: what decides between equal nodes."""
        if not self._ranked:
            for place, name in enumerate(sorted(self.rows)):
                self.rank[self.rows[name]] = place
            self._ranked = True
        return self.rank

    def kinds_that_fit(self, wishes: Wishes) -> Bools:
        """By interned (model, mode)."""
        return np.fromiter((wishes.type_fits(model, mode) for model, mode in self.kinds), np.bool_, len(self.kinds))
