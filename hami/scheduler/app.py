"""The scheduler's composition root.

    front    HTTP server, API client, webhook            as long as the process
    core     store, view, writers, decisions, loops      as long as one incarnation of the store is reachable and sound

While there is no core the front answers: /readyz says why not, /filter and /bind answer an Error, /mutate goes on.
"""

import hashlib
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from hami.config import RedisSettings, SchedulerSettings
from hami.domain.errors import Fenced, InvalidInput, StoreRefuses, StoreUnavailable, StoreUnsafe
from hami.events.archive.history import reaching_back
from hami.events.catalog.governance import PolicyChanged
from hami.events.ingester import Ingester
from hami.events.jobs import OneOf
from hami.events.log import Draft
from hami.events.redis.client import Client
from hami.events.redis.log import RedisLog
from hami.events.redis.meta import startup_check
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.kube.access import Access, InCluster, Kubeconfig
from hami.kube.client import EventNote, KubeClient
from hami.projections.view import LiveView, ViewBroken
from hami.scheduler import memory, texts
from hami.scheduler.bind import Bind
from hami.scheduler.clock import StoreClock
from hami.scheduler.compat.door import Door
from hami.scheduler.compat.locks import NodeLocks
from hami.scheduler.core import Alarm, Core, Idle
from hami.scheduler.debug import view_route
from hami.scheduler.decide.admit import AdmissionSettings
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.deviceconfig import read_device_config
from hami.scheduler.events_out import EventsOut, Saying
from hami.scheduler.extender import Verbs, extender_routes
from hami.scheduler.filter import Filter
from hami.scheduler.handshake import Handshake
from hami.scheduler.inventory import Inventory
from hami.scheduler.late import Late
from hami.scheduler.metrics import Metrics
from hami.scheduler.notes import Notes
from hami.scheduler.reaper import Reaper
from hami.scheduler.reconcile_loop import ReconcileLoop
from hami.scheduler.scored import Remembered
from hami.scheduler.supervise import find, supervise
from hami.scheduler.sweeper import Sweeper
from hami.scheduler.webhook import Webhook
from hami.scheduler.wire import NodeNames
from hami.scheduler.writes import Writes
from hami.telemetry import get_logger
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of
from hami.vendors.vendor import Vendor
from hami.web.health import Readiness, health_routes, metrics_route
from hami.web.server import Tls, serve

DECISION_RETRY_S: Final = 1.5
"""How long a decision's append is sent again: filter must answer within its own budget."""

WORTH_SAVING: Final = 1000
"""Events read at start from which the next start should not have to read them again."""

COMPAT_JOB_S: Final = 5.0
"""After so long another replica answers third-party plugins in place of one that died."""

_FIRST_S: Final = 0.2
_MOST_S: Final = 5.0
_POLL_S: Final = 0.02
_log = get_logger("scheduler")

Told = Callable[[str], None]


class Front:
    """What outlives the store. Implements hami.scheduler.extender.Door."""

    def __init__(self, settings: SchedulerSettings, config: DeviceConfig, api: KubeClient) -> None:
        self.settings, self.api = settings, api
        self.vendors: tuple[Vendor, ...] = vendors_of(config)
        self.policy = SchedulingPolicy(node=settings.node_policy, device=settings.gpu_policy)
        self.policy_settings = _policy_settings(settings, config)
        self.metrics = Metrics(self.vendors, legacy=settings.legacy_metrics)
        self.verbs: Verbs | None = None
        self.why_closed = texts.NOT_STARTED
        self.detail = ""
        self.readiness = Readiness({"core": self._no_core, "ready": self._not_ready})

    def _no_core(self) -> str:
        return "" if self.verbs is not None else f"{self.why_closed}: {self.detail}" if self.detail else self.why_closed

    def _not_ready(self) -> str:
        return "" if self.verbs is None else self.verbs.core.readiness.first_reason()

    def close(self, why: str, detail: str) -> None:
        self.verbs, self.why_closed, self.detail = None, why, detail

    def apps(self) -> tuple[Starlette, Starlette]:
        """The main one, and the one for `metrics_bind`."""
        admission = AdmissionSettings(
            vendors=self.vendors,
            scheduler_name=self.settings.name,
            force_overwrite=self.settings.force_overwrite_default_scheduler,
        )
        webhook = Webhook(self, self.api, admission, frozenset({self.settings.control_plane_user}))
        common: list[BaseRoute] = [*health_routes(self.readiness), metrics_route(self.metrics.registry, before=self._freeze)]
        common.append(view_route(lambda: None if self.verbs is None else self.verbs.core.view.state))
        return Starlette(routes=[*extender_routes(self), *webhook.routes(), *common]), Starlette(routes=common)

    def _freeze(self) -> None:
        if self.verbs is not None:
            core = self.verbs.core
            self.metrics.staleness.set(core.staleness_s)
            self.metrics.freeze(core.view.snapshot())


async def run_scheduler(
    settings: SchedulerSettings, redis: RedisSettings, *, ready: Told | None = None, listening: Told | None = None
) -> None:
    """Runs until cancelled, then stops gracefully. Raises InvalidInput for settings that cannot be used, Fenced when
    another process writes under this replica's id.

    `listening` gets the URL of extender and webhook once it is bound, `ready` the same once the scheduler is ready.
    """
    memory.begin()
    config = await anyio.to_thread.run_sync(read_device_config, settings.device_config)
    async with KubeClient(_access(settings)) as api:
        front = Front(settings, config, api)
        async with anyio.create_task_group() as tasks:
            url = await _serve(front, tasks)
            _log.info("listening", url=url, scheduler=settings.name)
            if listening is not None:
                listening(url)
            await _keep_a_core(front, redis, partial(ready, url) if ready is not None else _nothing)


def _nothing() -> None:
    pass


async def _serve(front: Front, tasks: TaskGroup) -> str:
    settings = front.settings
    main, beside = front.apps()
    limit = settings.max_body_mib * 2**20
    serving = partial(serve, main, bind=settings.http_bind, tls=_tls(settings), max_body=limit, setting="scheduler.http_bind")
    url: str = await tasks.start(serving)
    if settings.metrics_bind:
        await tasks.start(partial(serve, beside, bind=settings.metrics_bind, max_body=limit, setting="scheduler.metrics_bind"))
    return url


def _tls(settings: SchedulerSettings) -> Tls | None:
    """Half a pair would mean plain HTTP where somebody meant TLS. Raises InvalidInput."""
    for name, value, other in (
        ("cert_file", settings.cert_file, settings.key_file),
        ("key_file", settings.key_file, settings.cert_file),
    ):
        if other and not value:
            raise InvalidInput(f"scheduler.{name}", value, "certificate and key go together: this one is missing")
    if not settings.cert_file:
        return None
    return Tls(settings.cert_file, settings.key_file, setting="scheduler.cert_file, scheduler.key_file")


def _access(settings: SchedulerSettings) -> Access:
    return Kubeconfig(settings.kubeconfig) if settings.kubeconfig else InCluster()


async def _keep_a_core(front: Front, redis: RedisSettings, ready: Callable[[], None]) -> None:
    """One core after the other: a store that comes back, or is another one now, is looked at afresh."""
    delay = _FIRST_S
    while True:
        started = anyio.current_time()
        try:
            await _run_core(front, redis, ready)
        except Exception as error:
            fenced = find(error, (Fenced,))
            if fenced is not None:
                raise fenced from error
            why = find(error, (StoreUnavailable, StoreUnsafe, ViewBroken))
            if why is None:
                raise
            front.close(_said_of(why), str(why))
            _log.warning("no core", why=str(why), again_in_s=delay)
        await anyio.sleep(delay)
        delay = _FIRST_S if anyio.current_time() - started > 10 * _MOST_S else min(_MOST_S, 2 * delay)


def _said_of(why: Exception) -> str:
    match why:
        case StoreRefuses():
            return texts.WRITES_REFUSED
        case StoreUnavailable():
            return texts.STORE_AWAY
        case _:
            return texts.STORE_UNSAFE


async def _run_core(front: Front, redis: RedisSettings, ready: Callable[[], None]) -> None:
    """From the first word with the store to the last."""
    async with Client(
        redis.url,
        partition=redis.partition,
        command_timeout_s=redis.command_timeout_s,
        block_s=redis.block_s,
        connect_timeout_s=redis.connect_timeout_s,
    ) as client:
        # 1. May this store be used?
        found = await startup_check(client, local_ms=time.time_ns() // 1_000_000)
        for warning in found.warnings:
            _log.warning("store", warning=warning)
        # 2. The parts, and what they share.
        store = RedisStore(client, incarnation=found.meta.incarnation)
        durable = redis.durability == "prod" and found.waitaof
        if redis.durability == "prod" and not found.waitaof:
            _log.warning("store", warning="it has no WAITAOF (7.2+): decisions are not waited for on disk", server=found.server)
        core = await _build(front, store, found.meta.incarnation, durable=durable)
        jobs = Jobs(core)
        try:
            async with anyio.create_task_group() as tasks:
                await _bring_up(front, core, jobs, tasks)
                # 6. Ready.
                _log.info("ready", position=core.view.position.g, nodes=len(core.view.snapshot().nodes))
                ready()
                await anyio.sleep_forever()
        finally:
            front.close(texts.NOT_STARTED, "")
            core.told.close()
            await jobs.leave()


class PlanesFeed:
    """Planes are written once the view has caught up: while it reads thousands of events nobody decides from them."""

    def __init__(self, planes: Planes, view: Callable[[], LiveView]) -> None:
        self._planes, self._view = planes, view
        self._waiting: dict[str, None] = {}

    def changed(self, names: Sequence[str]) -> None:
        self._waiting.update(dict.fromkeys(names))
        view = self._view()
        if view.caught_up:
            self._planes.sync(view.snapshot(), tuple(self._waiting))
            self._waiting = {}


class Jobs:
    """What one replica does for all."""

    def __init__(self, core: Core) -> None:
        settings, owner = core.settings, core.writer.producer
        self.sweeper = OneOf(core.store, "sweeper", owner, ttl_s=max(5.0, 3 * settings.sweep_s))
        self.handshake = OneOf(core.store, "handshake", owner, ttl_s=max(15.0, 1.5 * settings.handshake_s))
        self.compat = OneOf(core.store, "compat", owner, ttl_s=COMPAT_JOB_S)

    async def leave(self) -> None:
        for job in (self.sweeper, self.handshake, self.compat):
            await job.leave()


async def _bring_up(front: Front, core: Core, jobs: Jobs, tasks: TaskGroup) -> None:
    inventory = Inventory(core, front.api)
    locks = NodeLocks(core, front.api) if core.settings.compat else None
    loops = dict(_loops(core, inventory, jobs))
    if locks is not None:
        opened = Door(core, front.api, inventory.pods, locks, jobs.compat)
        inventory.watchers.append(opened)
        loops["compat"] = opened.run
    _add_checks(core, inventory)
    # 3. The view first: everything else decides from it.
    await tasks.start(partial(_follow, core.view))
    tasks.start_soon(core.alarm.watch)
    remembered = Remembered()
    front.verbs = Verbs(core, Filter(remembered), Bind(remembered, Late(tasks, locks), locks), NodeNames())
    await _until(lambda: core.view.caught_up)
    if core.view.behind_checkpoint >= WORTH_SAVING:
        await core.view.save()
    # 4. What decisions rest on, if it is news.
    await _announce_policy(core, front.policy_settings)
    # 5. The loops, each on its own feet.
    for name, loop in loops.items():
        tasks.start_soon(supervise, name, loop, core.metrics)
    await _until(lambda: inventory.synced)
    memory.settle()
    await _until(lambda: not core.readiness.first_reason())


async def _follow(view: LiveView, *, task_status: TaskStatus[None]) -> None:
    """A view that stops following is broken, and with it the core."""
    await view.run(task_status=task_status)
    raise ViewBroken(view.broken)


async def _until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - two short waits at start, for things that have no event of their own
        await anyio.sleep(_POLL_S)


def _add_checks(core: Core, inventory: Inventory) -> None:
    """In the order in which their reasons are told."""
    view, most = core.view, core.settings.max_staleness_s
    checks: dict[str, Callable[[], bool]] = {
        texts.VIEW_BROKEN: lambda: bool(view.broken),
        texts.STORE_AWAY: lambda: bool(view.unreachable),
        texts.WRITES_REFUSED: lambda: bool(core.writes.refused),
        texts.REPLAYING: lambda: not view.caught_up or view.confirmed_at is None,
        texts.STALE: lambda: core.staleness_s > most,
        texts.NO_INVENTORY: lambda: not inventory.synced,
    }
    for text, wrong in checks.items():
        core.readiness.add(text, partial(_text_if, wrong, text))


def _text_if(wrong: Callable[[], bool], text: str) -> str:
    return text if wrong() else ""


def _loops(core: Core, inventory: Inventory, jobs: Jobs) -> Mapping[str, Callable[[], Awaitable[None]]]:
    ingester = Ingester(core.store.log, core.store.inboxes, core.loop_writer)
    return {
        "inventory": inventory.run,
        "ingest": ingester.run,
        "writes": core.writes.run,
        "reaper": Reaper(core, inventory).run,
        "sweeper": Sweeper(core, jobs.sweeper).run,
        "handshake": Handshake(core, jobs.handshake).run,
        "reconcile": ReconcileLoop(core, inventory).run,
        "memory": partial(memory.collect_when_idle, core.idle.seconds),
        "clock": core.clock.run,
        "notes": core.notes.run,
        "events": core.told.run,
    }


async def _build(front: Front, store: RedisStore, incarnation: str, *, durable: bool) -> Core:
    """`durable`: decisions are answered once they are in the append-only file; what the loops write is not worth the wait."""
    settings = front.settings
    name = f"scheduler-{settings.id or socket.gethostname()}"
    decisions = RedisLog(store.client, incarnation=incarnation, durable=durable)
    writer = EventWriter(decisions, name, retry_for_s=DECISION_RETRY_S)
    loop_writer = EventWriter(store.log, f"{name}-loops")
    await writer.start()
    await loop_writer.start()
    clock = StoreClock(store.log)
    await clock.sample()
    planes = Planes(front.vendors)
    feed = PlanesFeed(planes, lambda: view)
    log, why_not = await reaching_back(store, settings.archive_dir, incarnation=incarnation)
    if why_not:
        _log.warning("the archive cannot be read", why=why_not)
    view = LiveView(
        log,
        store.checkpoints,
        incarnation=incarnation,
        on_change=feed.changed,
        checkpoint_every=settings.checkpoint_every,
        rewinds=False,
        confirm_every_s=min(1.0, settings.max_staleness_s / 4),
    )
    return Core(
        settings=settings,
        vendors=front.vendors,
        policy=front.policy,
        policy_version=_digest(front.policy_settings),
        store=store,
        view=view,
        planes=planes,
        writer=writer,
        loop_writer=loop_writer,
        clock=clock,
        api=front.api,
        readiness=Readiness(),
        writes=Writes(store.locks, writer.producer),
        notes=Notes(loop_writer, front.metrics),
        told=EventsOut(partial(_tell, front.api, settings.name), front.metrics),
        metrics=front.metrics,
        alarm=Alarm(),
        idle=Idle(),
        turn=anyio.Lock(),
    )


async def _announce_policy(core: Core, settings: Mapping[str, str]) -> None:
    if core.view.state.policy_version != core.policy_version:
        event = PolicyChanged(version=core.policy_version, settings=dict(settings))
        await core.loop_writer.append([Draft(event=event)])


def _policy_settings(settings: SchedulerSettings, config: DeviceConfig) -> dict[str, str]:
    """What decides placements, in words: an old decision can be told from a new one by its version."""
    chosen = {
        "node_policy": settings.node_policy,
        "gpu_policy": settings.gpu_policy,
        "placement": settings.placement,
        "scheduler": settings.name,
    }
    return chosen | {"device_config": msgspec.json.encode(config, order="deterministic").decode()}


def _digest(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(dict(settings), order="deterministic")).hexdigest()[:16]


async def _tell(api: KubeClient, scheduler: str, saying: Saying, moment: datetime) -> None:
    about = saying.about
    note = EventNote(
        kind="Pod",
        name=about.name,
        namespace=about.namespace,
        uid=about.uid,
        reason=saying.reason,
        note=saying.message,
        action="Binding" if saying.reason.startswith("Binding") else "Scheduling",
        warning=saying.warning,
        controller=scheduler,
        instance=socket.gethostname(),
    )
    await api.create_event(note, moment)
