"""Ends what nobody will end: reservations past their deadline, and bound ones whose Binding never came.

Time is the store's. A reservation lapses on the version of its pod, so that a bind that is just being written wins.
"""

from functools import partial
from typing import Final

import anyio

from hami.domain.allocation import Allocation, Phase, PodOwner
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import HamiError
from hami.events.catalog.allocation import AllocationFailed
from hami.events.log import Draft
from hami.scheduler.core import Core, Decision, at_versions
from hami.scheduler.inventory import Inventory
from hami.scheduler.reserving import lapsed_draft
from hami.scheduler.turns import breathe, slices
from hami.telemetry import get_logger

BATCH: Final = 50
LOOK_AGAIN_MS: Final = 60_000
MOST_LOOKS: Final = 20
"""Calls of the API in one pass, so that a wave of bound pods does not become a wave of reads."""

_log = get_logger("scheduler.reaper")


class Reaper:
    def __init__(self, core: Core, inventory: Inventory) -> None:
        self._core, self._inventory = core, inventory
        self._next_look: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._core.settings.reaper_s)
            await self.once()

    async def once(self) -> None:
        lapsing, bound = await self._overdue()
        for start in range(0, len(lapsing), BATCH):
            await self._core.decide("reaper", partial(_lapsed, ids=lapsing[start : start + BATCH]))
        await self._look_at_bound(bound)

    async def _overdue(self) -> tuple[list[str], list[Allocation]]:
        """Reservations to end, and the bound ones to look at now.

        A cluster holds tens of thousands: they are looked through in slices, so that nobody waits for it.
        """
        now = self._core.clock.now()
        allocations = self._core.view.snapshot().allocations
        lapsing: list[str] = []
        bound: list[Allocation] = []
        unprepared = 0
        for ids in slices(list(allocations)):
            for key in ids:
                held = allocations.get(key)
                if held is None or held.phase is Phase.PREPARED or held.reservation.deadline_ms >= now:
                    continue
                if held.phase is Phase.BOUND:
                    unprepared += 1
                    if len(bound) < MOST_LOOKS and self._next_look.get(key, 0) <= now:
                        bound.append(held)
                elif not self._bound_in_api(held):
                    lapsing.append(key)
            await breathe()
        self._core.metrics.unprepared.set(unprepared)
        for ids in slices(list(self._next_look)):
            for key in ids:
                if key not in allocations:
                    del self._next_look[key]
            await breathe()
        return lapsing, bound

    def _bound_in_api(self, held: Allocation) -> bool:
        """Somebody bound it without us: then the inventory adopts it, lapsing would give its devices away."""
        seen = self._inventory.pods.get(held.reservation.owner.uid)
        return seen is not None and seen.node == held.reservation.node

    async def _look_at_bound(self, due: list[Allocation]) -> None:
        """Bound long ago and never prepared: a pod without its Binding is failed, one that runs is left alone."""
        for held in due:
            self._next_look[held.id] = self._core.clock.now() + LOOK_AGAIN_MS
            try:
                await self._look_at(held)
            except HamiError as error:
                _log.info("bound pod not looked at", reservation=held.id, error=str(error))

    async def _look_at(self, held: Allocation) -> None:
        owner = held.reservation.owner
        if not isinstance(owner, PodOwner):
            return
        pod = await self._core.api.get_pod(owner.namespace, owner.name)
        if pod is None or pod.metadata.uid != owner.uid:
            await self._inventory.pod_gone(owner.uid, "pod_absent")
        elif not pod.spec.node_name:
            await self._core.decide("reaper", lambda snapshot: _never_bound(snapshot, held.id))


def _lapsed(snapshot: ClusterSnapshot, *, ids: list[str]) -> Decision | None:
    found = [snapshot.allocations[each] for each in ids if each in snapshot.allocations]
    reserved = [each for each in found if each.phase is Phase.RESERVED]
    if not reserved:
        return None
    pods = [f"pod/{each.reservation.owner.uid}" for each in reserved]
    return [lapsed_draft(each, "deadline") for each in reserved], at_versions(snapshot, *pods)


def _never_bound(snapshot: ClusterSnapshot, reservation: str) -> Decision | None:
    held = snapshot.allocations.get(reservation)
    if held is None or held.phase is not Phase.BOUND:
        return None
    owner = held.reservation.owner
    event = AllocationFailed(
        reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace, reason="the API never had the binding"
    )
    return [Draft(event=event, node=held.reservation.node, subject=owner.uid)], at_versions(snapshot, f"pod/{owner.uid}")
