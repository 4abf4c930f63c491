"""All nodes as flat numpy planes (cards x nodes, padded), fed by changed nodes, read by every decision.

Nodes lie along the long axis, so that a sum over a node's cards adds whole lines. A node's place on it is its row number;
cards keep registration order. Every change stamps its row, so that whoever cached a verdict knows which rows to look at
again. One thread owns the planes; a snapshot given to `place` must be of the same log position.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import DeviceState, Health
from hami.domain.reasons import NodeReason
from hami.scheduler.decide.refusals import node_refusal
from hami.scheduler.decide.score import node_score, scores_of
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
_SUMMED: Final = [2, 3, 6, 7, 4, 5]
"""Used and free slots, all and free cores, all and free memory: a node's score is made of them."""

_FEW: Final = 3
"""Changed cards of a node up to which they are written one by one."""

_MANY: Final = 8
"""Nodes from which writing them in one pass is cheaper."""

_label: Final[Callable[[DeviceState], tuple[str, str, str]]] = attrgetter("device.vendor", "device.model", "device.mode")
_given: Final[Callable[[DeviceState], tuple[int, ...]]] = attrgetter(
    *("used.slots", "used.memory", "used.cores"),
    *("device.slots", "device.memory", "device.cores"),
    *("device.numa", "device.index", "cordoned"),
)
_MOST: Final = 2**31 - 1
"""Planes hold 32 bits; a request is never larger, so a larger card is as good as one of this size."""


def _table(lines: Iterable[tuple[int, ...]], count: int, width: int) -> Ints:
    """Lines as an array: numpy takes numbers from an iterator twice as fast as from a list of tuples."""
    return np.fromiter(chain.from_iterable(lines), np.int64, count * width).reshape(count, width)


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
        self._uuids: dict[str, list[tuple[int, int]]] | None = None
        self.clock = 0
        self.entries: Final[OrderedDict[Hashable, Entry]] = OrderedDict()
        self._free: list[int] = []
        self._written: dict[int, tuple[DeviceState, ...]] = {}
        self._kind_codes: dict[tuple[str, str, str], tuple[int, int, int]] = {}
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
        there: list[NodeState] = []
        for name in names:
            node = snapshot.nodes.get(name)
            if node is None:
                self.remove(name)
            else:
                there.append(node)
        if len(there) > _MANY:
            self._write(there)
        else:
            for node in there:
                self.put(node)

    def put(self, node: NodeState) -> None:
        """One node. A card whose state is the very object that was written before is passed over: mostly all but one are."""
        row = self.rows.get(node.name)
        before = () if row is None else self._written.get(row, ())
        if row is None or len(before) != len(node.devices):
            self._write([node])
            return
        changed = [number for number, each in enumerate(node.devices) if each is not before[number]]
        if len(changed) > _FEW:
            self._write([node])
            return
        for number in changed:
            line = self._line(node.devices[number])
            self._numbers[:, number, row] = line[:_NUMBERS]
            self._flags[:, number, row] = line[_NUMBERS:]
        if changed:
            self.score[row] = node_score(node.devices)
        self._finish(row, node)

    def _write(self, nodes: Sequence[NodeState]) -> None:
        """All of them in one pass: numpy's price for a call is paid once, not for every node."""
        rows = [self._row_for(node.name) for node in nodes]
        most = max([len(node.devices) for node in nodes], default=0)
        if most > self.columns:
            self._grow(len(self.score), max(most, 2 * self.columns))
        where = np.array(rows, np.int64)
        self._numbers[0, :, where] = -1
        self.score[where] = self._fill(nodes, where)
        for row, node in zip(rows, nodes, strict=True):
            self._finish(row, node)

    def _finish(self, row: int, node: NodeState) -> None:
        """What goes by the node, not by its cards."""
        before = self._written.get(row, ())
        self._written[row] = node.devices
        if len(before) != len(node.devices) or any(
            a is not b and a.device.uuid != b.device.uuid for a, b in zip(before, node.devices, strict=True)
        ):
            self._uuids = None
        self.refusal[row] = REFUSALS.index(node_refusal(node))
        self._touch(row)

    def remove(self, name: str) -> None:
        row = self.rows.pop(name, None)
        if row is None:
            return
        if self._written.pop(row, ()):
            self._uuids = None
        self._numbers[0, :, row] = -1
        self.refusal[row] = 1
        self.names[row] = ""
        self._free.append(row)
        self._membership += 1
        self._ranked = False
        self._touch(row)

    def _row_for(self, name: str) -> int:
        known = self.rows.get(name)
        if known is not None:
            return known
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

    def _fill(self, nodes: Sequence[NodeState], rows: Ints) -> npt.NDArray[np.float32]:
        """Write every card's line; the nodes' scores come from the same numbers."""
        cards = [each for node in nodes for each in node.devices]
        if not cards:
            return np.zeros(len(nodes), np.float32)
        lines = self._lines(cards)
        counts = np.array([len(node.devices) for node in nodes], np.int64)
        first = np.cumsum(counts) - counts
        column, row = np.arange(len(cards)) - np.repeat(first, counts), np.repeat(rows, counts)
        self._numbers[:, column, row] = np.clip(lines[:, :_NUMBERS], -_MOST, _MOST).T
        self._flags[:, column, row] = lines[:, _NUMBERS:].T
        sums = np.zeros((len(cards) + 1, len(_SUMMED)), np.int64)
        np.cumsum(lines[:, _SUMMED], axis=0, out=sums[1:])
        return scores_of(sums[first + counts] - sums[first])

    def _lines(self, cards: Sequence[DeviceState]) -> Ints:
        """A line a card: the numbers and flags of View, in its order."""
        kinds = self._kind_codes
        words = _table([kinds.get(label) or self._kind_code(label) for label in map(_label, cards)], len(cards), 3)
        given = _table(map(_given, cards), len(cards), 9)
        healthy = np.array([each.health is Health.HEALTHY for each in cards], np.bool_)
        lines = np.empty((len(cards), _NUMBERS + _FLAGS), np.int64)
        lines[:, :2] = words[:, :2]
        used, whole = given[:, :3], given[:, 3:6]
        lines[:, 2], lines[:, 3] = used[:, 0], whole[:, 0] - used[:, 0]
        lines[:, 4], lines[:, 5] = whole[:, 1], whole[:, 1] - used[:, 1]
        lines[:, 6], lines[:, 7] = whole[:, 2], whole[:, 2] - used[:, 2]
        lines[:, 8:10] = given[:, 6:8]
        lines[:, 10], lines[:, 11], lines[:, 12] = healthy, given[:, 8], words[:, 2]
        lines[:, 13] = healthy & (given[:, 8] == 0)
        return lines

    def _line(self, state: DeviceState) -> tuple[int, ...]:
        """One card's line, clipped."""
        label = _label(state)
        vendor, kind, mig = self._kind_codes.get(label) or self._kind_code(label)
        used, device, healthy = state.used, state.device, state.health is Health.HEALTHY
        amounts = (used.slots, device.slots - used.slots, device.memory, device.memory - used.memory)
        numbers: tuple[int, ...] = (*amounts, device.cores, device.cores - used.cores, device.numa, device.index)
        if max(numbers) > _MOST or min(numbers) < -_MOST:
            numbers = tuple([min(max(each, -_MOST), _MOST) for each in numbers])
        return vendor, kind, *numbers, healthy, state.cordoned, mig, healthy and not state.cordoned

    def _kind_code(self, label: tuple[str, str, str]) -> tuple[int, int, int]:
        vendor, model, mode = label
        kind = self.kinds.setdefault((model, mode), len(self.kinds))
        code = self.words.get(vendor, -1), kind, int(mode == "mig")
        self._kind_codes[label] = code
        return code

    @property
    def uuids(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """Where a card of this uuid lies, as (column, row). Few pods name cards, so the index is made when one does."""
        if self._uuids is None:
            found: dict[str, list[tuple[int, int]]] = {}
            for row, devices in self._written.items():
                for number, each in enumerate(devices):
                    found.setdefault(each.device.uuid, []).append((number, row))
            self._uuids = found
        return self._uuids

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
