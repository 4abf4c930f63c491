"""Scores in float32, every operation rounded, so that ties fall as they do in HAMi."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from hami.domain.device import DeviceState
from hami.scheduler.decide.policies import Weights

_TEN: Final = np.float32(10)


@lru_cache(maxsize=1 << 16)
def device_score(slots: tuple[int, int], cores: tuple[int, int], memory: tuple[int, int], weights: Weights) -> float:
    """10 x (weighted shares of slots, cores and memory in use), pairs are (in use, in all); 0 for a device that lacks one."""
    if slots[1] == 0 or cores[1] == 0 or memory[1] == 0:
        return 0.0
    weighed = (
        np.float32(weights.slot) * _share(slots)
        + np.float32(weights.core) * _share(cores)
        + np.float32(weights.memory) * _share(memory)
    )
    return float(_TEN * weighed)


def node_score(devices: Iterable[DeviceState]) -> float:
    """The node as it stands, before the pod: all devices of all vendors, healthy or not."""
    slots = used_slots = cores = used_cores = memory = used_memory = 0
    for each in devices:
        slots, used_slots = slots + each.device.slots, used_slots + each.used.slots
        cores, used_cores = cores + each.device.cores, used_cores + each.used.cores
        memory, used_memory = memory + each.device.memory, used_memory + each.used.memory
    return totals_score((used_slots, slots), (used_cores, cores), (used_memory, memory))


def totals_score(slots: tuple[int, int], cores: tuple[int, int], memory: tuple[int, int]) -> float:
    if slots[1] == 0 or cores[1] == 0 or memory[1] == 0:
        return 0.0
    return float(_TEN * (_share(slots) + _share(cores) + _share(memory)))


def _share(pair: tuple[int, int]) -> np.float32:
    return np.float32(pair[0]) / np.float32(pair[1])


def scores_of(totals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """`node_score` of many nodes; a line is (used slots, free slots, cores, free cores, memory, free memory)."""
    used = np.stack([totals[:, 0], totals[:, 2] - totals[:, 3], totals[:, 4] - totals[:, 5]])
    whole = np.stack([totals[:, 0] + totals[:, 1], totals[:, 2], totals[:, 4]])
    counts = (whole != 0).all(axis=0)
    shares = used.astype(np.float32) / np.where(whole == 0, 1, whole).astype(np.float32)
    return np.where(counts, _TEN * (shares[0] + shares[1] + shares[2]), np.float32(0)).astype(np.float32)
