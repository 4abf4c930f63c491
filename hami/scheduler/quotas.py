"""ResourceQuotas: `limits.<vendor resource>` of a namespace, which Kubernetes stores and never enforces."""

from collections.abc import Sequence
from typing import Final

from hami.domain.cluster import ClusterSnapshot, NamespaceQuota, QuotaLimit
from hami.domain.errors import InvalidInput
from hami.domain.pod import Quantity, ResourceQuota
from hami.events.catalog.governance import QuotaChanged
from hami.events.catalog.journal import InputRejected
from hami.events.log import Draft
from hami.kube.results import Added, Deleted, Modified
from hami.kube.watch import Reflected, Replaced
from hami.scheduler.core import Core, Decision, at_versions
from hami.scheduler.notes import Once
from hami.vendors import quantities
from hami.vendors.vendor import Vendor

PREFIX: Final = "limits."


class QuotaWatch:
    """Keeps every quota's limits and writes QuotaChanged when a namespace's limits, taken together, differ from the log's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[tuple[str, str], tuple[QuotaLimit, ...]] = {}
        self._complained = Once()

    async def on(self, event: Reflected[ResourceQuota]) -> None:
        match event:
            case Added(quota) | Modified(quota):
                self._keep(quota)
                await self._settle(quota.metadata.namespace)
            case Deleted(quota):
                self._known.pop((quota.metadata.namespace, quota.metadata.name), None)
                await self._settle(quota.metadata.namespace)
            case Replaced(items):
                self._known.clear()
                for quota in items:
                    self._keep(quota)
                for namespace in sorted({namespace for namespace, _ in self._known} | set(self._core.view.snapshot().quotas)):
                    await self._settle(namespace)
            case _:
                pass

    def _keep(self, quota: ResourceQuota) -> None:
        limits, bad = limits_of(quota, self._core.vendors)
        key = (quota.metadata.namespace, quota.metadata.name)
        self._known[key] = limits
        for error in bad:
            source = f"ResourceQuota {quota.metadata.namespace}/{quota.metadata.name}"
            if self._complained.news(f"{source} {error.field}", str(error.value)):
                event = InputRejected(source=source, field=error.field, value=str(error.value)[:200], why=error.why)
                self._core.notes.write(Draft(event=event))

    async def _settle(self, namespace: str) -> None:
        mine = [limits for (where, _), limits in sorted(self._known.items()) if where == namespace]
        wanted = NamespaceQuota(tuple(limit for limits in mine for limit in limits))

        def decision(snapshot: ClusterSnapshot) -> Decision | None:
            if snapshot.quotas.get(namespace, NamespaceQuota()) == wanted:
                return None
            event = QuotaChanged(namespace=namespace, quota=wanted)
            return [Draft(event=event, subject=namespace)], at_versions(snapshot, f"quota/{namespace}")

        await self._core.decide("quota", decision)


def limits_of(quota: ResourceQuota, vendors: Sequence[Vendor]) -> tuple[tuple[QuotaLimit, ...], tuple[InvalidInput, ...]]:
    """Limits on vendors' memory and cores in the vendor's unit, in order of resource names, and what could not be read."""
    limits: list[QuotaLimit] = []
    bad: list[InvalidInput] = []
    hard = quota.spec.hard or {}
    for vendor in vendors:
        for resource in (vendor.resources.memory, vendor.resources.cores):
            key = PREFIX + resource
            if not resource or key not in hard:
                continue
            try:
                number = _limit(f'spec.hard["{key}"]', hard[key], resource, vendor)
            except InvalidInput as error:
                bad.append(error)
            else:
                limits.append(QuotaLimit(resource, number, quota.metadata.name))
    return tuple(sorted(limits, key=lambda each: each.resource)), tuple(bad)


def _limit(field: str, value: Quantity, resource: str, vendor: Vendor) -> int:
    if resource != vendor.resources.memory:
        return quantities.whole(field, value)
    _, in_bytes = quantities.exact(field, value)
    mib = quantities.memory(field, value, factor=1)
    return mib // vendor.memory_factor if in_bytes else mib
