"""Quotas: a namespace's limits, and what its live allocations use of them per vendor (memory MiB, core percent).

Usage is summed over devices at each allocation's current usage, so a shrunk allocation gives back what its init phase held.
A namespace or vendor that uses nothing has no entry.
"""

from collections.abc import Mapping

from hami.events.catalog.governance import QuotaChanged
from hami.projections.folds.state import ClusterState


def changed(state: ClusterState, event: QuotaChanged) -> None:
    if event.quota.limits:
        state.quotas[event.namespace] = event.quota
    else:
        state.quotas.pop(event.namespace, None)


def charge(state: ClusterState, namespace: str, sums: Mapping[str, tuple[int, int]], sign: int) -> None:
    """Add memory and cores per vendor to what the namespace uses (`sign` 1), or take them off (-1)."""
    used = dict(state.quota_used.get(namespace, ()))
    for vendor, (memory, cores) in sums.items():
        was_memory, was_cores = used.get(vendor, (0, 0))
        now = (was_memory + sign * memory, was_cores + sign * cores)
        if now == (0, 0):
            used.pop(vendor, None)
        else:
            used[vendor] = now
    if used:
        state.quota_used[namespace] = used
    else:
        state.quota_used.pop(namespace, None)
