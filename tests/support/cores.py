"""A scheduler's core on the in-memory store, with a clock that a test moves, for parts that need no whole process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from hami.config import SchedulerSettings
from hami.domain.pod import Node, Pod
from hami.events.clock import ManualClock
from hami.events.memory import MemoryStore
from hami.events.writer import EventWriter
from hami.kube.results import BindResult, Bound
from hami.projections.view import LiveView
from hami.scheduler.clock import StoreClock
from hami.scheduler.core import Alarm, Core, Idle
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.events_out import EventsOut
from hami.scheduler.metrics import Metrics
from hami.scheduler.notes import Notes
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of
from hami.web.health import Readiness

VENDORS = vendors_of(DeviceConfig())


class NoCluster:
    """An API without pods and nodes."""

    async def get_pod(self, _namespace: str, _name: str) -> Pod | None:
        return None

    async def get_node(self, _name: str) -> Node | None:
        return None

    async def bind(self, **_given: Any) -> BindResult:
        return Bound()


@asynccontextmanager
async def a_core(time: ManualClock, *, name: str = "scheduler-a", **settings: Any) -> AsyncIterator[Core]:
    """With a view that follows its store."""
    store = MemoryStore(time)
    metrics = Metrics(VENDORS)
    writer, loop_writer = EventWriter(store.log, name), EventWriter(store.log, f"{name}-loops")
    planes = Planes(VENDORS)
    view = LiveView(store.log, store.checkpoints, incarnation="", on_change=lambda names: planes.sync(view.snapshot(), names))
    clock = StoreClock(store.log, steady=lambda: time.now() / 1000)
    core = Core(
        settings=SchedulerSettings(**settings),
        vendors=VENDORS,
        policy=SchedulingPolicy(),
        policy_version="1",
        store=store,
        view=view,
        planes=planes,
        writer=writer,
        loop_writer=loop_writer,
        clock=clock,
        api=NoCluster(),
        readiness=Readiness(),
        notes=Notes(loop_writer, metrics),
        told=EventsOut(lambda *_: anyio.lowlevel.checkpoint(), metrics),
        metrics=metrics,
        alarm=Alarm(),
        idle=Idle(),
        turn=anyio.Lock(),
    )
    async with anyio.create_task_group() as tasks:
        await writer.start()
        await loop_writer.start()
        await clock.sample()
        await tasks.start(view.run)
        assert await view.wait_caught_up(timeout=5)
        yield core
        core.told.close()
        tasks.cancel_scope.cancel()
