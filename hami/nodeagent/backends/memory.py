"""What an NVIDIA card says of its memory: row remapping on newer cards, page retirement on older ones. In NVML's thread."""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from hami.nodeagent.decide.faults import Counters

T = TypeVar("T")


def counters_of(handle: Any) -> Counters:
    """Each figure by itself: one that this card, driver or user may not read is None, and hides no other."""
    rows = _or_none(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    if rows is None:
        pending, failure, remapped = _retired_pending(handle), None, _retired(handle)
    else:
        pending, failure, remapped = bool(rows[2]), bool(rows[3]), int(rows[1])
    return Counters(
        uncorrected=_uncorrected(handle),
        remapped=remapped,
        remap_pending=pending,
        remap_failure=failure,
        sram_threshold=_or_none(lambda: _sram_threshold(handle)),
        unrepairable=_or_none(lambda: bool(pynvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle))),
    )


def _uncorrected(handle: Any) -> int | None:
    """Since the last reset. Cards without ECC, or with it switched off, cannot say."""
    return _or_none(
        lambda: int(
            pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        )
    )


def _retired_pending(handle: Any) -> bool | None:
    return _or_none(lambda: bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)))


def _retired(handle: Any) -> int | None:
    """Pages retired for an uncorrectable error; those for repeated correctable ones are wear, not a fault."""
    cause = pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    return _or_none(lambda: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)))


def _sram_threshold(handle: Any) -> bool:
    """Root only."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = pynvml.nvmlEccSramErrorStatus_v1
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(status))
    return bool(status.bThresholdExceeded)


def _or_none(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except pynvml.NVMLError:
        return None
