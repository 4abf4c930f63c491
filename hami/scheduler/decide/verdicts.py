"""What the planes can say about a request: where it may fit (never wrong to say no), and, for most nodes, exactly why not.

The verdict of a request shape is kept and only rows changed since are looked at again. Exact fits that failed are kept too.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from typing import Final

import numpy as np

from hami.domain.request import ContainerKind, DeviceRequest
from hami.scheduler.decide.cards import Question
from hami.scheduler.decide.explain import explain
from hami.scheduler.decide.planes import Bools, Entry, Ints, Planes, View
from hami.scheduler.decide.walks import Memory, could_pay, memory_of, uuids_that_fit

_SHAPES_KEPT: Final = 256


def shape_of(ask: Question) -> Hashable:
    """All that a verdict depends on besides the nodes: what is asked, how, and what the namespace may still take."""
    containers = tuple((each.kind, each.requests) for each in ask.request.containers if each.requests)
    return (containers, ask.policy, tuple(ask.wishes.values()), tuple(ask.budgets.items()), ask.numa_bind)


def entry_of(planes: Planes, ask: Question) -> Entry:
    """The verdict of this shape, up to date."""
    key = shape_of(ask)
    entry = planes.entries.get(key)
    if entry is None:
        entry = planes.entries[key] = Entry()
        while len(planes.entries) > _SHAPES_KEPT:
            planes.entries.popitem(last=False)
    else:
        planes.entries.move_to_end(key)
    if entry.seen != planes.clock:
        _refresh(planes, ask, entry)
    return entry


def _refresh(planes: Planes, ask: Question, entry: Entry) -> None:
    used = len(planes.names)
    stale = np.flatnonzero(planes.stamp[:used] > entry.seen)
    if len(entry.mask) != used:
        grown = np.zeros(used, np.bool_)
        grown[: len(entry.mask)] = entry.mask
        entry.mask = grown
    if 2 * len(stale) >= used:
        entry.mask[:] = may_fit(planes, ask, None)
    else:
        entry.mask[stale] = may_fit(planes, ask, stale)
    entry.seen = planes.clock


def may_fit(planes: Planes, ask: Question, rows: Ints | None) -> Bools:
    """False only where the exact fit would say no: every request against the untouched node, and all steady ones together.

    Of a vendor with rules of its own only healthy cards are counted here.
    """
    view = planes.at(rows)
    possible: Bools = (planes.refusal[: len(planes.names)] if rows is None else planes.refusal[rows]) == 0
    if not within_quota(ask):
        return np.zeros(len(possible), np.bool_)
    steady: list[tuple[DeviceRequest, Memory, Bools]] = []
    for container in ask.request.containers:
        for asked in container.requests:
            memory, passing = _passing(planes, view, rows, asked, ask)
            possible = possible & ((_count(passing) >= asked.count) | (passing & view.mig).any(axis=0))
            if container.kind is not ContainerKind.INIT and ask.vendors[asked.vendor].plain:
                steady.append((asked, memory, passing))
    if len(steady) > 1:
        for word in {asked.vendor for asked, _, _ in steady}:
            possible = possible & _together(view, [each for each in steady if each[0].vendor == word])
    return possible


def within_quota(ask: Question) -> bool:
    """False when the pod's fixed sizes alone exceed what its namespace may still take, wherever it would go."""
    for word, budget in ask.budgets.items():
        memory = cores = 0
        for container in ask.request.containers:
            own = [each for each in container.requests if each.vendor == word]
            asked_memory = sum(each.memory * each.count for each in own)
            asked_cores = sum(min(each.cores, 100) * each.count for each in own)
            if container.kind is not ContainerKind.INIT:
                memory, cores = memory + asked_memory, cores + asked_cores
                asked_memory, asked_cores = memory, cores
            if own and not budget.fits(asked_memory, asked_cores):
                return False
    return True


def _together(view: View, steady: Sequence[tuple[DeviceRequest, Memory, Bools]]) -> Bools:
    """How many shares the cards could bear if all were as small as the smallest; MIG cards bear any number here."""
    memory: Memory = reduce(np.minimum, [each[1] for each in steady])
    cores = min(min(each[0].cores, 100) for each in steady)
    passing = np.logical_or.reduce([each[2] for each in steady])
    bears = np.minimum(view.free_slots, len(steady))
    bears = np.where(memory > 0, np.minimum(bears, view.free_memory // np.maximum(memory, 1)), bears)
    if cores > 0:
        np.minimum(bears, view.free_cores // cores, out=bears)
    enough = np.where(passing, bears, 0).sum(axis=0) >= sum(each[0].count for each in steady)
    return np.asarray(enough | (passing & view.mig).any(axis=0))


def _count(cards: Bools) -> Ints:
    """How many cards of each node."""
    counted: Ints = np.add.reduce(cards, axis=0, dtype=np.int16).astype(np.int64)
    return counted


def _passing(planes: Planes, view: View, rows: Ints | None, asked: DeviceRequest, ask: Question) -> tuple[Memory, Bools]:
    passing = (view.vendor == planes.words[asked.vendor]) & view.ready
    if not ask.vendors[asked.vendor].plain:
        return np.int64(0), passing
    wishes = ask.wishes[asked.vendor]
    memory = memory_of(view, asked)
    cores = min(asked.cores, 100)
    passing &= view.free_slots > 0
    passing &= view.free_memory >= memory
    if cores > 0:
        passing &= view.free_cores >= cores
    else:
        passing &= (view.free_cores > 0) | ((view.cores == 0) & (view.free_cores == 0))
    if wishes.about_types:
        passing &= planes.kinds_that_fit(wishes)[view.kind]
    if wishes.about_uuids:
        passing &= uuids_that_fit(planes, rows, wishes)
    if ask.mutex:
        passing &= view.used <= 0
    if cores == 100:
        passing &= ~((view.cores == 100) & (view.used > 0))
    if (budget := ask.budgets.get(asked.vendor)) is not None:
        passing &= could_pay(budget, memory, cores)
    return memory, passing


def ruled_out(planes: Planes, ask: Question, entry: Entry, rows: Ints) -> Ints:
    """Those of these rows of which the walk knows that they do not fit; the reasons it gives are remembered."""
    _make_room(planes, entry)
    found = np.full(len(planes.names), None, np.object_)
    gone = np.setdiff1d(rows, explain(planes, ask, rows, found))
    entry.reasons[gone], entry.reason_clock[gone] = found[gone], planes.stamp[gone]
    return gone


def _make_room(planes: Planes, entry: Entry) -> None:
    used = len(planes.names)
    if len(entry.reasons) != used:
        texts, clock = np.full(used, None, np.object_), np.full(used, -1, np.int64)
        texts[: len(entry.reasons)], clock[: len(entry.reasons)] = entry.reasons, entry.reason_clock
        entry.reasons, entry.reason_clock = texts, clock


def reasons_at(planes: Planes, ask: Question, entry: Entry, rows: Ints, exactly: Callable[[str], str]) -> list[str]:
    """Why each of these rows does not fit. Texts of unchanged rows are remembered."""
    used = len(planes.names)
    _make_room(planes, entry)
    missing = rows[entry.reason_clock[rows] < planes.stamp[rows]]
    if len(missing):
        found = np.full(used, None, np.object_)
        for row in explain(planes, ask, missing, found):
            found[row] = exactly(planes.names[row])
        entry.reasons[missing] = found[missing]
        entry.reason_clock[missing] = planes.stamp[missing]
    return list(entry.reasons[rows])
