"""The exact walk over many nodes at once, where its order shows in the reasons: a quota that runs out on the way."""

import numpy as np
import numpy.typing as npt

from hami.domain.request import DeviceRequest
from hami.scheduler.decide.fit import Question
from hami.scheduler.decide.planes import Bools, Ints, Planes, View
from hami.scheduler.decide.quota import Budget

Floats = npt.NDArray[np.float32]


def affordable(budget: Budget, asked: DeviceRequest) -> int:
    """How many cards of this size the namespace may still take; the count asked for when no limit binds."""
    cores = min(asked.cores, 100)
    limits = [(budget.memory, asked.memory), (budget.cores, cores)]
    most = [limit // size if size > 0 else asked.count for limit, size in limits if limit is not None and limit >= 0]
    if any(limit is not None and limit < 0 for limit, _ in limits):
        return 0
    return min([asked.count, *most])


def walk_order(planes: Planes, view: View, ask: Question, asked: DeviceRequest) -> Ints:
    """Card positions per node in the order in which the exact fit looks at them."""
    columns = {"score": scores(planes, view, ask, asked), "numa": view.numa, "used": view.used, "index": view.index}
    keys = [columns[key.rstrip("-")] * (-1 if key.endswith("-") else 1) for key in ask.policy.sort_keys(numa_bind=False)]
    order: Ints = np.lexsort(keys[::-1], axis=0)[::-1]
    return order


def scores(planes: Planes, view: View, ask: Question, asked: DeviceRequest) -> Floats:
    """As `Card.rate`, in float32, for every card."""
    named = np.fromiter((model == asked.vendor for model, _ in planes.kinds), np.bool_, len(planes.kinds))[view.kind]
    by_percent = asked.memory_percent not in {None, 0}
    memory = view.memory.astype(np.int64) * (asked.memory_percent or 0) // 100 if by_percent else asked.memory
    slots = _share(view.used + named, view.used + view.free_slots)
    cores = _share(view.cores - view.free_cores + np.where(named, asked.cores, 0), view.cores)
    held = _share(view.memory - view.free_memory + np.where(named, memory, 0), view.memory)
    weights = ask.policy.weights
    weighed = np.float32(weights.slot) * slots + np.float32(weights.core) * cores + np.float32(weights.memory) * held
    whole = (view.used + view.free_slots != 0) & (view.cores != 0) & (view.memory != 0)
    return np.where(whole, np.float32(10) * weighed, np.float32(0))


def _share(part: npt.NDArray[np.int64] | npt.NDArray[np.int32], total: npt.NDArray[np.int32]) -> Floats:
    divided: Floats = part.astype(np.float32) / np.where(total == 0, 1, total).astype(np.float32)
    return divided


def refuse_by_quota(codes: Ints, own: Bools, order: Ints, *, taken: int, passing: int, quota: int) -> tuple[Ints, Bools]:
    """Codes in walk order, the quota's in place of every later one once `taken` cards are taken; and which cards are own."""
    along, mine = np.take_along_axis(codes, order, axis=0), np.take_along_axis(own, order, axis=0)
    passed = mine & (along == passing)
    before = np.cumsum(passed, axis=0) - passed
    return np.where((before >= taken) & (along >= quota), quota, along), mine
