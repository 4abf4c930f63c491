"""Many nodes' cards at once, in the order in which the exact fit would walk them, with what is taken on the way."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hami.domain.request import DeviceRequest
from hami.scheduler.decide.cards import Question
from hami.scheduler.decide.planes import Bools, Ints, Planes, View
from hami.scheduler.decide.quota import Budget
from hami.vendors.constraints import Wishes

Floats = npt.NDArray[np.float32]
Memory = Ints | np.int64


class Bench:
    """A copy of some rows' planes, cards x rows. `types` and `named`: per vendor, which cards the pod's wishes admit."""

    def __init__(
        self,
        rows: Ints,
        view: View,
        types: Mapping[str, Bools],
        named: Mapping[str, Bools],
        word_of: Mapping[str, Bools],
        words: Mapping[str, int],
    ) -> None:
        self.rows, self.view, self.types, self.named, self.word_of, self.words = rows, view, types, named, word_of, words

    def only(self, keep: Bools) -> "Bench":
        if keep.all():
            return self
        return Bench(
            self.rows[keep],
            View._make(plane[:, keep] for plane in self.view),
            {word: plane[:, keep] for word, plane in self.types.items()},
            {word: plane[:, keep] for word, plane in self.named.items()},
            {word: plane[:, keep] for word, plane in self.word_of.items()},
            self.words,
        )

    def take(self, cards: Bools, asked: DeviceRequest) -> None:
        """Give out these cards, one share each."""
        view = self.view
        view.used[cards] += 1
        view.free_slots[cards] -= 1
        view.free_memory[...] -= np.where(cards, memory_of(view, asked), 0).astype(np.int32)
        view.free_cores[cards] -= min(asked.cores, 100)


def bench_of(planes: Planes, ask: Question, rows: Ints) -> Bench:
    view = planes.at(rows)
    vendors = {each.vendor for container in ask.request.containers for each in container.requests}
    models = [model for model, _ in planes.kinds]
    return Bench(
        rows,
        view,
        {word: planes.kinds_that_fit(ask.wishes[word])[view.kind] for word in vendors},
        {word: uuids_that_fit(planes, rows, ask.wishes[word]) for word in vendors},
        {word: np.fromiter((model == word for model in models), np.bool_, len(models))[view.kind] for word in vendors},
        planes.words,
    )


def arranged(bench: Bench, order: Ints) -> Bench:
    """The same cards in another order per row; what follows sees them so, as the exact fit's list stays sorted."""

    def moved(plane: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return np.take_along_axis(plane, order, axis=0)

    return Bench(
        bench.rows,
        View._make(np.take_along_axis(plane, order, axis=0) for plane in bench.view),
        {word: moved(plane) for word, plane in bench.types.items()},
        {word: moved(plane) for word, plane in bench.named.items()},
        {word: moved(plane) for word, plane in bench.word_of.items()},
        bench.words,
    )


def sort_order(bench: Bench, ask: Question, asked: DeviceRequest) -> Ints:
    """Positions per row, sorted upwards by the policy's keys, equals in the order they have; the walk starts at the end."""
    view = bench.view
    columns = {"score": scores(bench, ask, asked), "numa": view.numa, "used": view.used, "index": view.position}
    keys = [columns[key.rstrip("-")] * (-1 if key.endswith("-") else 1) for key in ask.policy.sort_keys(numa_bind=False)]
    order: Ints = np.lexsort(keys[::-1], axis=0)
    return order


def walked(cards: Bools) -> Ints:
    """Per card how many of these the walk has met when it has looked at it."""
    met: Ints = np.cumsum(cards[::-1], axis=0, dtype=np.int64)[::-1]
    return met


def scores(bench: Bench, ask: Question, asked: DeviceRequest) -> Floats:
    """As `Card.rate`, in float32, for every card."""
    view, named = bench.view, bench.word_of[asked.vendor]
    by_percent = asked.memory_percent not in {None, 0}
    memory = view.memory.astype(np.int64) * (asked.memory_percent or 0) // 100 if by_percent else asked.memory
    slots = _share(view.used + named, view.used + view.free_slots)
    cores = _share(view.cores - view.free_cores + np.where(named, asked.cores, 0), view.cores)
    held = _share(view.memory - view.free_memory + np.where(named, memory, 0), view.memory)
    weights = ask.policy.weights
    weighed = _times(weights.slot, slots) + _times(weights.core, cores) + _times(weights.memory, held)
    whole = (view.used + view.free_slots != 0) & (view.cores != 0) & (view.memory != 0)
    return np.where(whole, _times(10, weighed), np.float32(0))


def _times(weight: int, part: Floats) -> Floats:
    return (part * np.float32(weight)).astype(np.float32, copy=False)


def _share(part: npt.NDArray[np.int64] | npt.NDArray[np.int32], total: npt.NDArray[np.int32]) -> Floats:
    return (part.astype(np.float32) / np.where(total == 0, 1, total).astype(np.float32)).astype(np.float32, copy=False)


def memory_of(view: View, asked: DeviceRequest) -> Memory:
    """MiB on every card: one number, or a plane where a percentage of each card is asked."""
    if asked.memory > 0 or asked.memory_percent is None:
        return np.int64(asked.memory)
    return view.memory.astype(np.int64) * asked.memory_percent // 100


def uuids_that_fit(planes: Planes, rows: Ints | None, wishes: Wishes) -> Bools:
    """Cards whose uuid is wished for and not refused, by the uuid index."""
    used = len(planes.names)
    chosen = np.full((planes.columns, used), wishes.use_uuids is None, np.bool_)
    for uuid in wishes.use_uuids or ():
        for at in planes.uuids.get(uuid, ()):
            chosen[at] = True
    for uuid in wishes.nouse_uuids or ():
        for at in planes.uuids.get(uuid, ()):
            chosen[at] = False
    return chosen if rows is None else chosen[:, rows]


def could_pay(budget: Budget, memory: Memory, cores: int) -> Bools:
    """May the namespace still take one such card?"""
    fits = np.asarray(budget.cores is None or cores <= budget.cores)
    return fits if budget.memory is None else np.asarray(fits & (memory <= budget.memory))


def affordable(budget: Budget, asked: DeviceRequest) -> int:
    """How many cards of this size the namespace may still take, at most the count asked for."""
    limits = [(budget.memory, asked.memory), (budget.cores, min(asked.cores, 100))]
    if any(limit is not None and limit < 0 for limit, _ in limits):
        return 0
    return min([asked.count, *(limit // size for limit, size in limits if limit is not None and size > 0)])
