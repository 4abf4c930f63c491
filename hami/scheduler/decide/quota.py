"""Namespace quotas on device memory and cores: Kubernetes stores them and never enforces them, so decisions do."""

from collections.abc import Iterable, Sequence

import msgspec

from hami.domain.allocation import ContainerShares, usage_of
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import ContainerKind, PodRequest
from hami.vendors.vendor import Vendor


class Budget(msgspec.Struct, frozen=True):
    """What a namespace may still take of one vendor, in MiB and percent; None = no limit. May be negative."""

    memory: int | None = None
    cores: int | None = None

    @property
    def limited(self) -> bool:
        return self.memory is not None or self.cores is not None

    def fits(self, memory: int, cores: int) -> bool:
        return (self.memory is None or memory <= self.memory) and (self.cores is None or cores <= self.cores)


def budget_of(snapshot: ClusterSnapshot, namespace: str, vendor: Vendor, *, exclude_owner: str = "") -> Budget:
    """Limits of the namespace less what it uses. The excluded owner's own live allocation does not count."""
    quota = snapshot.quotas.get(namespace)
    if quota is None:
        return Budget()
    memory = quota.limit_of(vendor.resources.memory) if vendor.resources.memory else None
    cores = quota.limit_of(vendor.resources.cores) if vendor.resources.cores else None
    if memory is None and cores is None:
        return Budget()
    used_memory, used_cores = snapshot.quota_used.get(namespace, {}).get(vendor.word, (0, 0))
    own = snapshot.allocation_of(exclude_owner) if exclude_owner else None
    if own is not None and own.live:
        own_memory, own_cores = vendor_usage(own.reservation.containers, vendor.word, init_done=own.init_done)
        used_memory, used_cores = used_memory - own_memory, used_cores - own_cores
    return Budget(
        None if memory is None else memory * vendor.memory_factor - used_memory,
        None if cores is None else cores - used_cores,
    )


def vendor_usage(containers: Iterable[ContainerShares], word: str, *, init_done: bool = False) -> tuple[int, int]:
    """Memory and cores that these containers hold of one vendor at their peak."""
    own = tuple(
        msgspec.structs.replace(each, shares=tuple(share for share in each.shares if share.vendor == word))
        for each in containers
    )
    peak = usage_of(own, init_done=init_done).values()
    return sum(each.memory for each in peak), sum(each.cores for each in peak)


def admission_need(request: PodRequest, word: str) -> tuple[int, int]:
    """What the pod asks of one vendor before any card is known: a percentage of memory counts as 0 here.

    Steady containers (sidecars and apps) add up; an init container runs beside the sidecars started before it.
    """
    steady = [0, 0]
    peak = [0, 0]
    for container in request.containers:
        for asked in container.requests:
            if asked.vendor != word:
                continue
            need = (asked.memory * asked.count, asked.cores * asked.count)
            if container.kind is ContainerKind.INIT:
                peak = [max(p, s + n) for p, s, n in zip(peak, steady, need, strict=True)]
            else:
                steady = [s + n for s, n in zip(steady, need, strict=True)]
    return max(peak[0], steady[0]), max(peak[1], steady[1])


def exceeded(snapshot: ClusterSnapshot, request: PodRequest, vendors: Sequence[Vendor]) -> str | None:
    """The word of the first vendor whose quota this pod would exceed."""
    for vendor in vendors:
        memory, cores = admission_need(request, vendor.word)
        if (memory or cores) and not budget_of(snapshot, request.namespace, vendor).fits(memory, cores):
            return vendor.word
    return None
