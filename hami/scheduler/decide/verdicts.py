"""What the planes can say about a request: where it may fit (never wrong to say no), and, for most nodes, exactly why not.

The verdict of a request shape is kept and only rows changed since are looked at again. Exact fits that failed are kept too.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from hami.domain.reasons import Reason
from hami.domain.request import ContainerKind, DeviceRequest
from hami.scheduler.decide.fit import Question
from hami.scheduler.decide.planes import Bools, Entry, Ints, Planes, View
from hami.scheduler.decide.quota import Budget
from hami.scheduler.decide.walks import affordable, refuse_by_quota, walk_order
from hami.vendors.constraints import Wishes

Memory = Ints | np.int64
Texts = npt.NDArray[np.object_]

_SHAPES_KEPT: Final = 256
_LARGEST_BASE: Final = 38
"""A node's cards are counted in 12 digits of one 63-bit number; nodes with more cards are explained by the exact fit."""
_CHECKS: Final = (
    Reason.CARD_NOT_HEALTHY,
    Reason.CARD_CORDONED,
    Reason.CARD_TYPE_MISMATCH,
    Reason.CARD_UUID_MISMATCH,
    Reason.CARD_TIME_SLICING_EXHAUSTED,
    Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Reason.RESOURCE_QUOTA_NOT_FIT,
    Reason.CARD_INSUFFICIENT_MEMORY,
    Reason.CARD_INSUFFICIENT_CORE,
    Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
)

_QUOTA: Final = _CHECKS.index(Reason.RESOURCE_QUOTA_NOT_FIT)


def shape_of(ask: Question) -> Hashable:
    """All that a verdict depends on besides the nodes: what is asked, how, and what the namespace may still take."""
    containers = tuple((each.kind, each.requests) for each in ask.request.containers if each.requests)
    return (containers, ask.policy, tuple(ask.wishes.values()), tuple(ask.budgets.items()))


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
    """False only where the exact fit would say no: every request against the untouched node, and all steady ones together."""
    view = planes.at(rows)
    possible: Bools = (planes.refusal[: len(planes.names)] if rows is None else planes.refusal[rows]) == 0
    if not within_quota(ask):
        return np.zeros(len(possible), np.bool_)
    steady: list[tuple[DeviceRequest, Memory, Bools]] = []
    for container in ask.request.containers:
        for asked in container.requests:
            memory, passing = _passing(planes, view, rows, asked, ask)
            possible = possible & ((_count(passing) >= asked.count) | (passing & view.mig).any(axis=0))
            if container.kind is not ContainerKind.INIT:
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
    wishes = ask.wishes[asked.vendor]
    memory = memory_of(view, asked)
    cores = min(asked.cores, 100)
    passing = (view.vendor == planes.words[asked.vendor]) & view.ready
    passing &= view.free_slots > 0
    passing &= view.free_memory >= memory
    if cores > 0:
        passing &= view.free_cores >= cores
    else:
        passing &= (view.free_cores > 0) | ((view.cores == 0) & (view.free_cores == 0))
    if _picky_types(wishes):
        passing &= planes.kinds_that_fit(wishes)[view.kind]
    if _picky_uuids(wishes):
        passing &= named(planes, view, rows, wishes)
    if ask.mutex:
        passing &= view.used <= 0
    if cores == 100:
        passing &= ~((view.cores == 100) & (view.used > 0))
    if (budget := ask.budgets.get(asked.vendor)) is not None:
        passing &= _affordable(budget, memory, cores)
    return memory, passing


def _affordable(budget: Budget, memory: Memory, cores: int) -> Bools:
    """May the namespace still take one such card?"""
    fits = np.asarray(budget.cores is None or cores <= budget.cores)
    return fits if budget.memory is None else np.asarray(fits & (memory <= budget.memory))


def memory_of(view: View, asked: DeviceRequest) -> Memory:
    """MiB on every card: one number, or a plane where a percentage of each card is asked."""
    if asked.memory > 0 or asked.memory_percent is None:
        return np.int64(asked.memory)
    return view.memory.astype(np.int64) * asked.memory_percent // 100


def named(planes: Planes, view: View, rows: Ints | None, wishes: Wishes) -> Bools:
    """Cards whose uuid is wished for and not refused, by the uuid index."""
    used = len(planes.names)
    shape = (view.vendor.shape[0], used)
    chosen = np.full(shape, wishes.use_uuids is None, np.bool_)
    for uuid in wishes.use_uuids or ():
        for at in planes.uuids.get(uuid, ()):
            chosen[at] = True
    for uuid in wishes.nouse_uuids or ():
        for at in planes.uuids.get(uuid, ()):
            chosen[at] = False
    return chosen if rows is None else chosen[:, rows]


def _picky_types(wishes: Wishes) -> bool:
    return wishes.use_types is not None or wishes.nouse_types is not None or wishes.mode is not None


def _picky_uuids(wishes: Wishes) -> bool:
    return wishes.use_uuids is not None or wishes.nouse_uuids is not None


def reasons_at(planes: Planes, ask: Question, entry: Entry, rows: Ints, exactly: Callable[[str], str]) -> list[str]:
    """Why each of these rows does not fit. Texts of unchanged rows are remembered."""
    used = len(planes.names)
    if len(entry.reasons) != used:
        texts, clock = np.full(used, None, np.object_), np.full(used, -1, np.int64)
        texts[: len(entry.reasons)], clock[: len(entry.reasons)] = entry.reasons, entry.reason_clock
        entry.reasons, entry.reason_clock = texts, clock
    missing = rows[entry.reason_clock[rows] < planes.stamp[rows]]
    if len(missing):
        found = np.full(used, None, np.object_)
        for row in _explain(planes, ask, missing, found):
            found[row] = exactly(planes.names[row])
        entry.reasons[missing] = found[missing]
        entry.reason_clock[missing] = planes.stamp[missing]
    return list(entry.reasons[rows])


def _explain(planes: Planes, ask: Question, rows: Ints, found: Texts) -> Ints:
    """Texts of rows that fail at a container which still sees the untouched node; returns the rows left to the exact fit."""
    first = True
    for container in ask.request.containers:
        for asked in container.requests:
            if ask.wishes[asked.vendor].numa_bind or not len(rows) or _quota_walks(planes, ask, asked, first=first):
                return rows
            rows = _explain_one(planes, ask, asked, rows, found)
        first = first and not container.requests
        if container.requests and container.kind is not ContainerKind.INIT:
            return rows
    return rows


def _one_size(asked: DeviceRequest) -> bool:
    """Is it the same memory on every card?"""
    return asked.memory > 0 or asked.memory_percent is None


def _quota_walks(planes: Planes, ask: Question, asked: DeviceRequest, *, first: bool) -> bool:
    """Must the exact fit say which cards the quota refuses? Not where one size, one card or a loose quota makes it plain."""
    budget = ask.budgets.get(asked.vendor)
    if budget is None or (first and asked.count == 1):
        return False
    cores = min(asked.cores, 100)
    if first and _one_size(asked):
        return False
    largest = int(planes.view.memory.max()) * (asked.memory_percent or 0) // 100
    return not (first and budget.fits(largest * asked.count, cores * asked.count))


def _explain_one(planes: Planes, ask: Question, asked: DeviceRequest, rows: Ints, found: Texts) -> Ints:
    """A node's cards per check, packed into one number (a digit a check), so that equal nodes share one text."""
    view = planes.at(rows)
    base = view.vendor.shape[0] + 1
    if base > _LARGEST_BASE:
        return rows
    own = view.vendor == planes.words[asked.vendor]
    codes = _first_failing(planes, view, rows, asked, ask)
    cut = (own & view.mig).any(axis=0)
    budget = ask.budgets.get(asked.vendor)
    if budget is not None and 0 < (taken := affordable(budget, asked)) < asked.count and _one_size(asked):
        order = walk_order(planes, view, ask, asked)
        codes, own = refuse_by_quota(codes, own, order, taken=taken, passing=len(_CHECKS), quota=_QUOTA)
    sure = (_count(own & (codes == len(_CHECKS))) < asked.count) & ~cut
    if sure.any():
        weights = np.array([base**digit for digit in range(len(_CHECKS) + 1)], np.int64)
        packed = np.where(own, weights[codes], 0).sum(axis=0)[sure]
        profiles, which = np.unique(packed, return_inverse=True)
        texts = np.array([_text(profile, base, asked.count) for profile in profiles.tolist()], np.object_)
        found[rows[sure]] = texts[which]
    left: Ints = rows[~sure]
    return left


def _first_failing(planes: Planes, view: View, rows: Ints, asked: DeviceRequest, ask: Question) -> Ints:
    """Per card the number of the first check it fails, in the order of the exact walk; `len(_CHECKS)` when it passes."""
    wishes = ask.wishes[asked.vendor]
    cores = min(asked.cores, 100)
    memory = memory_of(view, asked)
    budget = ask.budgets.get(asked.vendor)
    never = np.zeros(view.vendor.shape, np.bool_)
    fails = (
        ~view.healthy,
        view.cordoned,
        ~planes.kinds_that_fit(wishes)[view.kind] if _picky_types(wishes) else never,
        ~named(planes, view, rows, wishes) if _picky_uuids(wishes) else never,
        view.free_slots <= 0,
        view.used > 0 if ask.mutex else never,
        never if budget is None else ~_affordable(budget, memory, cores),
        view.free_memory < memory,
        view.free_cores < cores,
        (view.cores == 100) & (view.used > 0) if cores == 100 else never,
        (view.cores != 0) & (view.free_cores == 0) if cores == 0 else never,
    )
    codes = np.full(view.vendor.shape, len(fails), np.int64)
    for number in range(len(fails) - 1, -1, -1):
        codes[np.broadcast_to(fails[number], codes.shape)] = number
    return codes


def _text(packed: int, base: int, count: int) -> str:
    counts = []
    for _ in range(len(_CHECKS) + 1):
        packed, digit = divmod(packed, base)
        counts.append(digit)
    cards, passed = sum(counts), counts.pop()
    if count > cards:
        return Reason.NODE_INSUFFICIENT_DEVICE.value
    summed: dict[Reason, int] = {}
    for reason, times in zip(_CHECKS, counts, strict=True):
        if times:
            summed[reason] = summed.get(reason, 0) + times
    if passed:
        summed[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = passed
    return ", ".join(sorted(f"{times}/{cards} {reason}" for reason, times in summed.items()))
