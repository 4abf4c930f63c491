"""What every part of a running scheduler shares, and how events get written from the loops.

One `Core` lives as long as one connection to one incarnation of the store; the HTTP front outlives it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from hami.config import SchedulerSettings
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import Conflict, StoreUnavailable
from hami.domain.pod import Node, Pod
from hami.events.log import Appended, Draft
from hami.events.store import Store
from hami.events.writer import EventWriter
from hami.kube.results import BindResult
from hami.projections.view import LiveView
from hami.scheduler.clock import StoreClock
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.events_out import EventsOut
from hami.scheduler.metrics import Metrics
from hami.scheduler.notes import Notes
from hami.scheduler.writes import Writes
from hami.telemetry import get_logger
from hami.vendors.vendor import Vendor
from hami.web.health import Readiness

CATCH_UP_S: Final = 2.0
"""How long one wait for the view to reach the head may take."""

MOST_CONFLICTS: Final = 20
_RETRY_S: Final = 0.5
_log = get_logger("scheduler")

Decision = tuple[Sequence[Draft], Mapping[str, int]]
"""Events and the versions they rest on."""


class Api(Protocol):
    """What decisions need of the Kubernetes API; hami.kube.client.KubeClient is one. Raises ApiError."""

    async def get_pod(self, namespace: str, name: str) -> Pod | None: ...

    async def get_node(self, name: str) -> Node | None: ...

    async def bind(
        self,
        *,
        uid: str,
        namespace: str,
        name: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        within: float | None = None,
    ) -> BindResult: ...


class Alarm:
    """A request handler found out that this core must end; it answers its caller, the core's own task raises."""

    def __init__(self) -> None:
        self._rung = anyio.Event()
        self._error: Exception | None = None

    def ring(self, error: Exception) -> None:
        self._error = self._error or error
        self._rung.set()

    async def watch(self) -> None:
        """Raises what the alarm was rung with."""
        await self._rung.wait()
        if self._error is not None:
            raise self._error


class Idle:
    """When something was last asked."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady, self._last = steady, steady()

    def interrupt(self) -> None:
        self._last = self._steady()

    def seconds(self) -> float:
        return self._steady() - self._last


@dataclass(frozen=True, kw_only=True)
class Core:
    """`writer` is for decisions, `loop_writer` for everything else: a slow loop must not hold a filter up.

    `turn` is held from a look at the view to the moment the view knows what was written: a filter and the binds of the same
    process would otherwise move the node's version under each other, and each would have to begin anew.
    """

    settings: SchedulerSettings
    vendors: tuple[Vendor, ...]
    policy: SchedulingPolicy
    policy_version: str
    store: Store
    view: LiveView
    planes: Planes
    writer: EventWriter
    loop_writer: EventWriter
    clock: StoreClock
    api: Api
    readiness: Readiness
    writes: Writes
    notes: Notes
    told: EventsOut
    metrics: Metrics
    alarm: Alarm
    idle: Idle
    turn: anyio.Lock

    @property
    def staleness_s(self) -> float:
        """Seconds since the view was known to hold everything; infinite before the first time."""
        confirmed = self.view.confirmed_at
        return float("inf") if confirmed is None else max(0.0, time.monotonic() - confirmed)

    async def catch_up(self) -> bool:
        """Bring the view to what the log holds now. Raises StoreUnavailable, ViewBroken."""
        head = await self.store.log.head()
        return await self.view.wait_for(head, timeout=CATCH_UP_S)

    async def decide(self, what: str, decision: Callable[[ClusterSnapshot], Decision | None]) -> Appended | None:
        """Write what the loops found out, however long the store is away. None when there is nothing (left) to write.

        The decision is taken again on a newer view whenever another replica was first: mostly it then finds nothing to do.
        One that never gets through is left to the next comparison with the API.
        """
        conflicts = 0
        while conflicts < MOST_CONFLICTS:
            try:
                found = decision(self.view.snapshot())
                if found is None or not found[0]:
                    return None
                drafts, expected = found
                appended = await self.loop_writer.append(drafts, expected=expected)
                await self.view.wait_for(appended.positions[-1], timeout=CATCH_UP_S)
            except Conflict:
                conflicts += 1
                self.metrics.conflicts.labels(what).inc()
                await self._patiently_catch_up()
            except StoreUnavailable:
                await anyio.sleep(_RETRY_S)
                await self._patiently_catch_up()
            else:
                return appended
        _log.warning("decision given up after conflicts", by=what, conflicts=conflicts)
        return None

    async def _patiently_catch_up(self) -> None:
        while True:
            try:
                await self.catch_up()
            except StoreUnavailable:
                await anyio.sleep(_RETRY_S)
            else:
                return


def at_versions(snapshot: ClusterSnapshot, *entities: str) -> dict[str, int]:
    """The versions that an append conditions on: 0 for an entity never seen."""
    return {entity: snapshot.versions.get(entity, 0) for entity in entities}
