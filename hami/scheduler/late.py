"""Node locks that outlive their bind: ordered delivery (docs/delivery.md, section 3).

A node whose plugin must answer for exactly one pod keeps its lock from Bound until the pod is served, so that no second pod is
between the two. The lock goes when the allocation is prepared or ended; past the deadline it goes with a failed allocation.
"""

import math
from typing import Final

import anyio
from anyio.abc import TaskGroup

from hami.domain.allocation import Allocation, Phase
from hami.domain.cluster import ClusterSnapshot, Delivery
from hami.domain.errors import HamiError
from hami.events.catalog.allocation import AllocationFailed
from hami.events.lease import Held
from hami.events.log import Draft
from hami.scheduler.compat.locks import NodeLocks
from hami.scheduler.core import Core, Decision, at_versions
from hami.scheduler.decide import door
from hami.telemetry import get_logger

SERVE_WITHIN_S: Final = 120.0
_LOOK_EVERY_S: Final = 1.0
_log = get_logger("scheduler.late")


class Late:
    """`tasks` is where kept locks are renewed. `mirror`: node locks as vendor plugins read them, None where none are served."""

    def __init__(self, tasks: TaskGroup, mirror: NodeLocks | None = None) -> None:
        self._tasks, self._mirror = tasks, mirror

    def keeps(self, core: Core, held: Held, pod_uid: str) -> bool:
        """True when this lock is kept after its bind: whoever asked must not release it."""
        snapshot = core.view.snapshot()
        node, allocation = snapshot.nodes.get(held.lock), snapshot.allocation_of(pod_uid)
        if node is None or allocation is None or allocation.phase is not Phase.BOUND:
            return False
        mirrored = self._mirror is not None and bool(door.lock_keys(allocation, node, core.vendors))
        if node.delivery is not Delivery.ORDERED and not mirrored:
            return False
        # What a plugin of the door does not serve in time, the door gives up.
        within = math.inf if mirrored else SERVE_WITHIN_S * 1000
        self._tasks.start_soon(self._keep, core, held, allocation.id, core.clock.now() + within)
        return True

    async def _keep(self, core: Core, held: Held, reservation: str, until: float) -> None:
        ttl_ms = round(core.settings.lock_ttl_s * 1000)
        try:
            while _waits(core.view.snapshot(), reservation):
                if core.clock.now() > until:
                    await core.decide("late", lambda snapshot: _failed(snapshot, reservation))
                    break
                if not await core.store.locks.renew(held, ttl_ms=ttl_ms):
                    return
                await core.view.wait_for(core.view.position.g + 1, timeout=min(_LOOK_EVERY_S, ttl_ms / 3000))
        except HamiError as error:
            _log.warning("kept node lock given up", lock=held.lock, error=str(error))
        finally:
            if self._mirror is not None and not _waits(core.view.snapshot(), reservation):
                await self._mirror.free(reservation)
            with anyio.move_on_after(1.0, shield=True):
                try:
                    await core.store.locks.release(held)
                except HamiError as error:
                    _log.warning("kept node lock not released", lock=held.lock, error=str(error))


def _waits(snapshot: ClusterSnapshot, reservation: str) -> bool:
    found: Allocation | None = snapshot.allocations.get(reservation)
    return found is not None and found.phase is Phase.BOUND


def _failed(snapshot: ClusterSnapshot, reservation: str) -> Decision | None:
    found = snapshot.allocations.get(reservation)
    if found is None or found.phase is not Phase.BOUND:
        return None
    owner = found.reservation.owner
    event = AllocationFailed(
        reservation=found.id, owner_uid=owner.uid, namespace=owner.namespace, reason="the node did not serve the pod in time"
    )
    draft = Draft(event=event, node=found.reservation.node, subject=owner.uid)
    return [draft], at_versions(snapshot, f"pod/{owner.uid}")
