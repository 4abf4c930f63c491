"""Quotas: a namespace's limits, and what its live allocations use of them per vendor (memory MiB, core percent).

Usage is summed over devices at each allocation's current usage, so a shrunk allocation gives back what its init phase held.
A namespace or vendor that uses nothing has no entry.
"""

from collections.abc import Iterable, Mapping

from hami.events.catalog.governance import QuotaChanged
from hami.projections.folds.state import ClusterState


def changed(state: ClusterState, event: QuotaChanged) -> None:
    if event.quota.limits:
        state.quotas[event.namespace] = event.quota
    else:
        state.quotas.pop(event.namespace, None)


def charge(state: ClusterState, namespace: str, sums: Mapping[str, tuple[int, int]]) -> None:
    """Add memory and cores per vendor to what the namespace uses."""
    used = dict(state.quota_used.get(namespace, ()))
    for vendor, (memory, cores) in sums.items():
        was_memory, was_cores = used.get(vendor, (0, 0))
        used[vendor] = (was_memory + memory, was_cores + cores)
    _keep(state, namespace, used, sums)


def give_back(state: ClusterState, namespace: str, sums: Mapping[str, tuple[int, int]]) -> None:
    """Take off again what `charge` added."""
    used = dict(state.quota_used.get(namespace, ()))
    for vendor, (memory, cores) in sums.items():
        was_memory, was_cores = used.get(vendor, (0, 0))
        used[vendor] = (was_memory - memory, was_cores - cores)
    _keep(state, namespace, used, sums)


def _keep(state: ClusterState, namespace: str, used: dict[str, tuple[int, int]], changed: Iterable[str]) -> None:
    for vendor in changed:
        if used[vendor] == (0, 0):
            del used[vendor]
    if used:
        state.quota_used[namespace] = used
    else:
        state.quota_used.pop(namespace, None)
