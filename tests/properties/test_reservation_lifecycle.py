"""The life of reservations under two schedulers that race, crash between any two steps and come back.

Each scheduler is the real filter, bind, reaper and view on the in-memory store; the API is a few lines that keep pods and
bindings. A crash is an exception out of the store or the API that nobody catches: the scheduler is thrown away, its locks stay.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.config import SchedulerSettings
from hami.domain.allocation import usage_of
from hami.domain.device import DeviceUsage
from hami.domain.errors import StoreUnavailable
from hami.domain.pod import Node, Pod
from hami.events.catalog.allocation import AllocationFailed, AllocationLapsed, AllocationReleased, AllocationReserved
from hami.events.clock import ManualClock
from hami.events.envelope import START, Envelope
from hami.events.group import Group
from hami.events.lease import Busy, Held, LockState, Release
from hami.events.log import Appended, Draft, Duplicate, Fence, Inbox, Inboxes, NodeFeed
from hami.events.memory import MemoryCheckpoints, MemoryLeases, MemoryStore
from hami.events.writer import EventWriter
from hami.kube.results import AlreadyBound, BindResult, Bound, Refused
from hami.projections.view import LiveView
from hami.scheduler.bind import Bind
from hami.scheduler.clock import StoreClock
from hami.scheduler.core import Alarm, Core, Idle
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.events_out import EventsOut
from hami.scheduler.filter import Filter
from hami.scheduler.inventory import Inventory
from hami.scheduler.late import Late
from hami.scheduler.metrics import Metrics
from hami.scheduler.notes import Notes
from hami.scheduler.reaper import Reaper
from hami.scheduler.scored import Remembered
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of
from hami.web.health import Readiness
from tests.support.builders import a_device, a_node_registered
from tests.support.objects import pod
from tests.support.switched_log import SwitchedLog

VENDORS: Final = vendors_of(DeviceConfig())
NODES: Final = ("n1", "n2")
PODS: Final = ("p1", "p2", "p3", "p4")
SLOTS, MEMORY = 2, 16000
BIG: Final = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}
SMALL: Final = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "7000"}
TTL_S: Final = 30.0
Terminal = AllocationReleased | AllocationLapsed | AllocationFailed


class Crash(Exception):  # noqa: N818 - what it is
    """The scheduler's process ends here."""


class Fuse:
    """Burns at the n-th step from now, before or after the step has had its effect; nothing works afterwards."""

    def __init__(self) -> None:
        self.steps = -1
        self.after = False
        self.dead = False

    def light(self, steps: int, *, after: bool) -> None:
        self.steps, self.after = steps, after

    def before(self) -> None:
        if self.dead:
            raise Crash
        if self.steps == 0 and not self.after:
            self._burn()

    def done(self) -> None:
        if self.steps == 0:
            self._burn()
        if self.steps > 0:
            self.steps -= 1

    def _burn(self) -> None:
        self.dead = True
        raise Crash


class FusedLog(SwitchedLog):
    """One scheduler's way to the common log."""

    def __init__(self, store: MemoryStore, fuse: Fuse) -> None:
        super().__init__(store.log)
        self._fuse = fuse

    async def append(
        self,
        envelopes: Sequence[Envelope],
        entities: Sequence[Sequence[str]],
        *,
        expected: Mapping[str, int] = MappingProxyType({}),
        fence: Fence | None = None,
        feeds: Sequence[bool] = (),
    ) -> Appended | Duplicate:
        self._fuse.before()
        answer = await super().append(envelopes, entities, expected=expected, fence=fence, feeds=feeds)
        self._fuse.done()
        return answer


class FusedLocks:
    """Locks of a dead scheduler are not released: they run out."""

    def __init__(self, store: MemoryStore, fuse: Fuse) -> None:
        self._inner, self._fuse = store.locks, fuse

    def _alive(self) -> None:
        if self._fuse.dead:
            raise StoreUnavailable("dead")

    async def acquire(self, lock: str, owner: str, *, ttl_ms: int, wait_ms: int = 0) -> Held | Busy:
        """Nobody waits: time stands still while a step runs."""
        assert wait_ms >= 0
        self._fuse.before()
        got = await self._inner.acquire(lock, owner, ttl_ms=ttl_ms)
        self._fuse.done()
        return got

    async def renew(self, held: Held, *, ttl_ms: int) -> bool:
        self._alive()
        return await self._inner.renew(held, ttl_ms=ttl_ms)

    async def release(self, held: Held) -> Release:
        self._alive()
        return await self._inner.release(held)

    async def evict(self, lock: str, owner: str) -> Release:
        self._alive()
        return await self._inner.evict(lock, owner)

    async def state(self, lock: str) -> LockState | None:
        return await self._inner.state(lock)

    async def held(self) -> Sequence[LockState]:
        return await self._inner.held()


class FusedStore:
    """Implements hami.events.store.Store."""

    def __init__(self, store: MemoryStore, fuse: Fuse) -> None:
        self._store = store
        self.log = FusedLog(store, fuse)
        self.locks = FusedLocks(store, fuse)
        self.leases: MemoryLeases = store.leases
        self.checkpoints = MemoryCheckpoints()
        self.inboxes: Inboxes = store.inboxes

    def inbox(self, node: str) -> Inbox:
        return self._store.inbox(node)

    def feed(self, node: str) -> NodeFeed:
        return self._store.feed(node)

    def group(self, name: str, consumer: str) -> Group:
        return self._store.group(name, consumer)


class Cluster:
    """The API server: pods by name, their node once they are bound."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.born = 0

    def create(self, name: str, limits: Mapping[str, str]) -> dict[str, Any]:
        self.born += 1
        self.pods[name] = pod(name, namespace="team", uid=f"{name}-{self.born}", limits=dict(limits))
        return self.pods[name]

    def bind(self, name: str, uid: str, node: str) -> BindResult:
        found = self.pods.get(name)
        if found is None or found["metadata"]["uid"] != uid:
            return Refused(409, "no such pod")
        there = found["spec"].get("nodeName", "")
        if there:
            return Bound(earlier=True) if there == node else AlreadyBound(there)
        found["spec"]["nodeName"] = node
        return Bound()


class Api:
    """Implements hami.scheduler.core.Api for one scheduler."""

    def __init__(self, cluster: Cluster, fuse: Fuse) -> None:
        self._cluster, self._fuse = cluster, fuse

    async def get_pod(self, namespace: str, name: str) -> Pod | None:
        assert namespace == "team"
        found = self._cluster.pods.get(name)
        return None if found is None else msgspec.convert(found, Pod)

    async def get_node(self, name: str) -> Node | None:
        raise AssertionError(f"nobody asks for {name}")

    async def bind(self, *, uid: str, namespace: str, name: str, node: str, **_: Any) -> BindResult:
        assert namespace == "team"
        self._fuse.before()
        answer = self._cluster.bind(name, uid, node)
        self._fuse.done()
        return answer


class Nothing:
    """A source of no objects: the inventory is told by hand here."""

    def list_pages(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("not followed")

    watch = list_pages


class Scheduler:
    """One incarnation of one replica, as long as its process lives."""

    def __init__(self, name: str, store: MemoryStore, cluster: Cluster) -> None:
        self.fuse = Fuse()
        mine = FusedStore(store, self.fuse)
        metrics = Metrics(VENDORS)
        self.writer = EventWriter(mine.log, name, retry_for_s=0.0)
        self.loop_writer = EventWriter(mine.log, f"{name}-loops", retry_for_s=0.0)
        self.clock = StoreClock(mine.log)
        planes = Planes(VENDORS)
        self.view = LiveView(
            mine.log, mine.checkpoints, incarnation="", on_change=lambda names: planes.sync(self.view.snapshot(), names)
        )
        self.core = Core(
            settings=SchedulerSettings(reservation_ttl_s=TTL_S, bind_wait_s=0.01, lock_ttl_s=20.0),
            vendors=VENDORS,
            policy=SchedulingPolicy(),
            policy_version="1",
            store=mine,
            view=self.view,
            planes=planes,
            writer=self.writer,
            loop_writer=self.loop_writer,
            clock=self.clock,
            api=Api(cluster, self.fuse),
            readiness=Readiness(),
            notes=Notes(self.loop_writer, metrics),
            told=EventsOut(lambda *_: anyio.lowlevel.checkpoint(), metrics),
            metrics=metrics,
            alarm=Alarm(),
            idle=Idle(),
            turn=anyio.Lock(),
        )
        self.inventory = Inventory(self.core, Nothing())
        self.reaper = Reaper(self.core, self.inventory)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await self.writer.start()
            await self.loop_writer.start()
            await self.clock.sample()
            await tasks.start(self.view.run)
            assert await self.view.wait_caught_up(timeout=5)
            remembered = Remembered()
            self.filter, self.bind = Filter(remembered), Bind(remembered, Late(tasks))
            yield
            self.core.told.close()
            tasks.cancel_scope.cancel()


class Model:
    """Two schedulers over one store, and the steps that may happen to them."""

    def __init__(self) -> None:
        self.time = ManualClock()
        self.store, self.cluster = MemoryStore(self.time), Cluster()
        self.answers: dict[str, str] = {}

    async def prepare(self) -> None:
        writer = EventWriter(self.store.log, "agents")
        await writer.start()
        for name in NODES:
            card = a_device(f"GPU-{name}", memory=MEMORY, slots=SLOTS)
            await writer.append([Draft(event=a_node_registered(card), node=name)])

    async def _filter(self, on: Scheduler, name: str) -> None:
        body = self.cluster.pods.get(name)
        if body is not None:
            args = {"Pod": body, "Nodes": None, "NodeNames": list(NODES)}
            answer = await on.filter.answer(on.core, msgspec.json.encode(args))
            if answer.node_names:
                self.answers[name] = answer.node_names[0]

    async def race(self, schedulers: Sequence[Scheduler], first: str) -> None:
        """Both place a pod at the same time: the first one's write reaches the other's view too late. Raises Crash."""
        second = PODS[(PODS.index(first) + 1) % len(PODS)]
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._filter, schedulers[0], first)
                tasks.start_soon(self._filter, schedulers[1], second)
        except BaseExceptionGroup as group:
            crashes, others = group.split(Crash)
            if others is not None:
                raise
            raise Crash from crashes

    async def step(self, on: Scheduler, what: "Step") -> None:
        """Raises Crash."""
        if what.crash_at >= 0:
            on.fuse.light(what.crash_at, after=what.after)
        body = self.cluster.pods.get(what.pod)
        match what.kind:
            case "create":
                if body is None:
                    self.cluster.create(what.pod, BIG if what.big else SMALL)
            case "filter":
                await self._filter(on, what.pod)
            case "bind" if body is not None and what.pod in self.answers:
                meta = body["metadata"]
                target = {"PodName": what.pod, "PodNamespace": "team", "PodUID": meta["uid"], "Node": self.answers[what.pod]}
                bound = await on.bind.answer(on.core, msgspec.json.encode(target))
                if not bound.error:
                    assert body["spec"].get("nodeName") == self.answers[what.pod], "success without a Binding"
            case "delete" if body is not None:
                del self.cluster.pods[what.pod]
                await on.inventory.pod_gone(body["metadata"]["uid"], "pod_deleted")
            case "reap":
                self.time.advance(10_000)
                await on.clock.sample()
                await on.core.catch_up()
                await on.reaper.once()
            case _:
                pass


class Step(msgspec.Struct, frozen=True):
    kind: str
    replica: int
    pod: str
    big: bool = False
    crash_at: int = -1
    after: bool = False


def recount(records: Sequence[Any]) -> Counter[str]:
    """Terminal events of every reservation; fails where a card is given beyond what it has."""
    held: dict[str, DeviceUsage] = {}
    live: dict[str, dict[str, DeviceUsage]] = {}
    ended: Counter[str] = Counter()
    for record in records:
        event = record.event
        if isinstance(event, AllocationReserved):
            made = event.reservation
            live[made.id], ended[made.id] = usage_of(made.containers), 0
            for uuid, used in live[made.id].items():
                held[uuid] = held.get(uuid, DeviceUsage()).plus(used)
                assert held[uuid].slots <= SLOTS, f"g:{record.position.g} {made.id}"
                assert held[uuid].memory <= MEMORY, f"g:{record.position.g} {made.id}"
        elif isinstance(event, Terminal):
            ended[event.reservation] += 1
            for uuid, used in live.pop(event.reservation, {}).items():
                held[uuid] = held[uuid].minus(used)
    return ended


async def run(sizes: Sequence[bool], steps: Sequence[Step]) -> None:
    model = Model()
    await model.prepare()
    for name, big in zip(PODS, sizes, strict=True):
        model.cluster.create(name, BIG if big else SMALL)
    left = list(steps)
    while left:
        # Each life begins with a fresh process; it ends with a crash or with the last step.
        schedulers = [Scheduler(name, model.store, model.cluster) for name in ("a", "b")]
        async with schedulers[0].running(), schedulers[1].running():
            while left:
                step = left.pop(0)
                try:
                    if step.kind == "race":
                        await model.race(schedulers, step.pod)
                    else:
                        await model.step(schedulers[step.replica], step)
                except Crash:
                    break
                recount(await model.store.log.read(START, limit=10_000))
    janitor = Scheduler("a", model.store, model.cluster)
    async with janitor.running():
        bound = {each["metadata"]["uid"]: each["spec"].get("nodeName", "") for each in model.cluster.pods.values()}
        for allocation in janitor.view.snapshot().allocations.values():
            where = bound.get(allocation.reservation.owner.uid, "")
            assert where in {"", allocation.reservation.node}, "a pod runs where it holds nothing"
        for uid, where in bound.items():
            if where:
                held = janitor.view.snapshot().allocation_of(uid)
                assert held is not None, "a running pod's devices are still held"
        await _everything_ends(model, janitor)
    ended = recount(await model.store.log.read(START, limit=10_000))
    assert set(ended.values()) <= {1}, ended


async def _everything_ends(model: Model, janitor: Scheduler) -> None:
    """All pods are deleted and time passes: what nobody ends any more is ended."""
    model.cluster.pods.clear()
    for _ in range(2):
        model.time.advance(round(TTL_S * 1000) + 70_000)
        await janitor.clock.sample()
        await janitor.reaper.once()
    for allocation in list(janitor.view.snapshot().allocations.values()):
        await janitor.inventory.pod_gone(allocation.reservation.owner.uid, "pod_absent")


steps = st.builds(
    Step,
    kind=st.sampled_from(["create", "filter", "filter", "race", "race", "bind", "bind", "delete", "reap"]),
    replica=st.integers(0, 1),
    pod=st.sampled_from(PODS),
    big=st.booleans(),
    crash_at=st.sampled_from([-1, -1, -1, -1, 0, 1, 2]),
    after=st.booleans(),
)


@given(st.lists(st.booleans(), min_size=len(PODS), max_size=len(PODS)), st.lists(steps, min_size=3, max_size=30))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_nothing_is_given_twice_and_everything_ends_once(sizes: list[bool], drawn: list[Step]) -> None:
    anyio.run(run, sizes, drawn)
