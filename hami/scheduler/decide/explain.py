"""Why many nodes do not fit, worked out on the planes in one go: the exact walk, for all the nodes that it is plain for.

Not plain, and left to the exact fit: NUMA binding, MIG cards, what follows a topology choice, and under a quota what follows
an init container or a share of unknown size. A node's cards are counted per check and packed into one number, so that equal
nodes share one text.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from hami.domain.reasons import Reason
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest
from hami.scheduler.decide.cards import Question
from hami.scheduler.decide.planes import Bools, Ints, Planes, View
from hami.scheduler.decide.quota import Budget
from hami.scheduler.decide.walks import Bench, affordable, arranged, bench_of, could_pay, memory_of, sort_order, walked
from hami.vendors.vendor import Select, Vendor

Texts = npt.NDArray[np.object_]

CHECKS: Final = (
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
_PASSED: Final = len(CHECKS)
_QUOTA: Final = CHECKS.index(Reason.RESOURCE_QUOTA_NOT_FIT)
_LARGEST_BASE: Final = 38
"""12 digits of one 63-bit number; nodes with more cards than a digit can count are left to the exact fit."""


def explain(planes: Planes, ask: Question, rows: Ints, found: Texts) -> Ints:
    """Fills in texts of rows that do not fit; returns the rows left to the exact fit (all that fit are among them)."""
    containers = [each for each in ask.request.containers if each.requests]
    if planes.columns + 1 > _LARGEST_BASE or ask.numa_bind or not all(_standard(ask, each) for each in ask.vendors.values()):
        return rows
    bench = bench_of(planes, ask, rows)
    cut: Bools = np.logical_or.reduce(bench.view.mig & (bench.view.vendor >= 0), axis=0)
    left = [rows[cut]]
    bench = bench.only(~cut)
    budgets = dict(ask.budgets)
    largest = int(planes.view.memory.max())
    for container in containers:
        if not len(bench.rows) or not all(_plain(budgets, asked, largest) for asked in container.requests):
            break
        bench = _step(ask, budgets, container, bench, found, last=container is containers[-1])
        if ask.topology and container.kind is not ContainerKind.INIT:
            break
        if budgets and not _spend(budgets, container):
            break
    return np.concatenate([*left, bench.rows])


def _standard(ask: Question, vendor: Vendor) -> bool:
    """Is its fit the one that is worked out here?"""
    return vendor.plain and (not ask.topology or vendor.select is Select.TOPOLOGY)


def _plain(budgets: Mapping[str, Budget], asked: DeviceRequest, largest: int) -> bool:
    """Is it plain which cards a quota refuses? With one size, with one card, or where it refuses none."""
    budget = budgets.get(asked.vendor)
    if budget is None or one_size(asked) or asked.count == 1:
        return True
    most = largest * (asked.memory_percent or 0) // 100
    return budget.fits(most * asked.count, min(asked.cores, 100) * asked.count)


def _spend(budgets: dict[str, Budget], container: ContainerRequest) -> bool:
    """What is left after this container, wherever its cards are; False when that depends on them."""
    for asked in container.requests:
        budget = budgets.get(asked.vendor)
        if budget is None:
            continue
        if container.kind is ContainerKind.INIT or not one_size(asked):
            return False
        memory, cores = asked.memory * asked.count, min(asked.cores, 100) * asked.count
        budgets[asked.vendor] = Budget(
            None if budget.memory is None else budget.memory - memory, None if budget.cores is None else budget.cores - cores
        )
    return True


def one_size(asked: DeviceRequest) -> bool:
    """Is it the same memory on every card?"""
    return asked.memory > 0 or asked.memory_percent is None


def _step(
    ask: Question, budgets: Mapping[str, Budget], container: ContainerRequest, bench: Bench, found: Texts, *, last: bool
) -> Bench:
    """One container on every node of the bench: texts for those that it fails on, the rest goes on with its cards taken."""
    for asked in container.requests:
        budget = budgets.get(asked.vendor)
        taken = _quota_takes(budget, asked)
        matters = taken < asked.count or not (last or container.kind is ContainerKind.INIT)
        if matters:
            bench = arranged(bench, sort_order(bench, ask, asked))
        own = bench.view.vendor == bench.words[asked.vendor]
        codes = _first_failing(ask, asked, bench, budget)
        if taken < asked.count:
            passed = own & (codes == _PASSED)
            before = walked(passed) - passed
            codes = np.where((before >= taken) & (codes >= _QUOTA), _QUOTA, codes)
        passed = own & (codes == _PASSED)
        short = np.add.reduce(passed, axis=0, dtype=np.int64) < asked.count
        _write(codes, own, short, bench.rows, asked.count, found)
        if matters and container.kind is not ContainerKind.INIT:
            bench.take(passed & (walked(passed) <= asked.count), asked)
        bench = bench.only(~short)
    return bench


def _quota_takes(budget: Budget | None, asked: DeviceRequest) -> int:
    """How many cards of one size a quota lets through; all, where none binds or each card is asked by itself."""
    if budget is None or not one_size(asked):
        return asked.count
    return affordable(budget, asked) or asked.count


def _first_failing(ask: Question, asked: DeviceRequest, bench: Bench, budget: Budget | None) -> Ints:
    """Per card the number of the first check it fails, in the order of the exact fit; `_PASSED` when it passes."""
    view: View = bench.view
    cores = min(asked.cores, 100)
    memory = memory_of(view, asked)
    never = np.False_
    fails = (
        ~view.healthy,
        view.cordoned,
        ~bench.types[asked.vendor],
        ~bench.named[asked.vendor],
        view.free_slots <= 0,
        view.used > 0 if ask.mutex else never,
        never if budget is None else ~could_pay(budget, memory, cores),
        view.free_memory < memory,
        view.free_cores < cores,
        (view.cores == 100) & (view.used > 0) if cores == 100 else never,
        (view.cores != 0) & (view.free_cores == 0) if cores == 0 else never,
    )
    codes = np.full(view.vendor.shape, _PASSED, np.int64)
    for number in range(_PASSED - 1, -1, -1):
        if fails[number] is not never:
            codes[np.broadcast_to(fails[number], codes.shape)] = number
    return codes


def _write(codes: Ints, own: Bools, short: Bools, rows: Ints, count: int, found: Texts) -> None:
    if not short.any():
        return
    base = len(codes) + 1
    weights = np.array([base**digit for digit in range(_PASSED + 1)], np.int64)
    packed = np.where(own, weights[codes], 0).sum(axis=0)[short]
    profiles, which = np.unique(packed, return_inverse=True)
    texts = np.array([_text(profile, base, count) for profile in profiles.tolist()], np.object_)
    found[rows[short]] = texts[which]


def _text(packed: int, base: int, count: int) -> str:
    counts = []
    for _ in range(_PASSED + 1):
        packed, digit = divmod(packed, base)
        counts.append(digit)
    cards, passed = sum(counts), counts.pop()
    if count > cards:
        return Reason.NODE_INSUFFICIENT_DEVICE.value
    summed: dict[Reason, int] = {}
    for reason, times in zip(CHECKS, counts, strict=True):
        if times:
            summed[reason] = summed.get(reason, 0) + times
    if passed:
        summed[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = passed
    return ", ".join(sorted(f"{times}/{cards} {reason}" for reason, times in summed.items()))
