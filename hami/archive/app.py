"""The composition root of `hami archive`.

    front    metrics and health               as long as the process
    core     store, lease, sealer, trimmer    as long as the store is reachable and the lease is ours

A store that is away, and a disk that is full, are waited out. A folder that does not belong to the store ends the process:
going on would make two half histories.
"""

import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from starlette.applications import Starlette

from hami.archive.forgetter import Forgetter
from hami.archive.metrics import Metrics
from hami.archive.sealer import Bounds, Sealer
from hami.archive.trimmer import Trimmer
from hami.config import ArchiveSettings, RedisSettings
from hami.domain.errors import InvalidInput, StoreRefuses, StoreUnavailable
from hami.events.archive.folder import ArchiveFolder
from hami.events.jobs import OneOf
from hami.events.redis.client import Client
from hami.events.redis.meta import startup_check
from hami.events.redis.retention import RedisRetention
from hami.events.redis.store import RedisStore
from hami.events.retention import Retention
from hami.events.store import Store
from hami.events.writer import EventWriter
from hami.projections.boot import FOLD
from hami.telemetry import get_logger
from hami.web.health import Readiness, health_routes, metrics_route
from hami.web.server import serve

JOB: Final = "archive"
_HOUR_MS: Final = 3_600_000
_FIRST_S: Final = 0.2
_MOST_S: Final = 10.0
_log = get_logger("archive")


class Front:
    """What outlives the store."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.trouble = "the event store was not asked yet"
        self.readiness = Readiness({"archive": lambda: self.trouble})

    def app(self) -> Starlette:
        return Starlette(routes=[*health_routes(self.readiness), metrics_route(self.metrics.registry)])


class Core:
    """One active archiver. `round` does what is due; raises ArchiveBroken, OSError and the store's errors."""

    def __init__(
        self,
        store: Store,
        retention: Retention,
        folder: ArchiveFolder,
        settings: ArchiveSettings,
        metrics: Metrics,
        *,
        incarnation: str,
    ) -> None:
        name = f"archive-{settings.id or socket.gethostname()}"
        self.job = OneOf(store, JOB, name, ttl_s=settings.lease_ttl_s)
        self._store, self._settings, self._metrics = store, settings, metrics
        self._writer = EventWriter(store.log, name)
        bounds = Bounds(
            events=settings.segment_events,
            age_ms=round(settings.segment_s * 1000),
            settle_ms=round(settings.settle_s * 1000),
        )
        now = store.log.now
        self.sealer = Sealer(store.log, retention, folder, self._writer, bounds, metrics, incarnation=incarnation, now=now)
        self.trimmer = Trimmer(
            store.log,
            retention,
            folder,
            self._writer,
            metrics,
            incarnation=incarnation,
            keep_ms=round(settings.keep_hours * _HOUR_MS),
            needed=FOLD,
            now=now,
            mine=self.job.mine,
        )
        self.forgetter = Forgetter(retention, folder, metrics)
        self._begun = False
        self._trim_at = 0.0

    async def round(self) -> bool:
        """False on a replica that stands by."""
        # 1. Is it our turn?
        if not await self.job.mine():
            self._begun = False
            self._metrics.active.set(0)
            return False
        self._metrics.active.set(1)
        # 2. Seal. A full store does not take the word that a segment is sealed; trimming is what it needs.
        refused = await self._seal()
        # 3. Trim, now and then.
        if self._settings.trim and anyio.current_time() >= self._trim_at:
            await self.trimmer.once(self.sealer.archived)
            await self.forgetter.once(await self._store.log.now())
            self._trim_at = anyio.current_time() + self._settings.trim_s
        if refused is not None:
            raise refused
        return True

    async def _seal(self) -> StoreRefuses | None:
        try:
            if not self._begun:
                await self._writer.start()
                await self.sealer.begin()
                self._begun = True
            await self.sealer.once()
        except StoreRefuses as refused:
            return refused
        return None


async def run_archive(
    settings: ArchiveSettings, redis: RedisSettings, *, once: bool = False, listening: Callable[[str], None] | None = None
) -> None:
    """Runs until cancelled, or for one round. Raises InvalidInput for settings that cannot be used, ArchiveBroken, StoreUnsafe;
    with `once` also StoreUnavailable.

    `listening` gets the URL of `metrics_bind`.
    """
    path = await anyio.to_thread.run_sync(_folder, settings)
    front = Front()
    async with anyio.create_task_group() as tasks:
        if settings.metrics_bind:
            url: str = await tasks.start(partial(serve, front.app(), bind=settings.metrics_bind))
            _log.info("listening", url=url)
            if listening is not None:
                listening(url)
        await _keep_going(front, settings, redis, path, once=once)
        tasks.cancel_scope.cancel()


def _folder(settings: ArchiveSettings) -> Path:
    if not settings.dir:
        raise InvalidInput("archive.dir", settings.dir, "must name a folder for the segments")
    path = Path(settings.dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("archive.dir", settings.dir, error.strerror or "cannot be made") from error
    return path


async def _keep_going(front: Front, settings: ArchiveSettings, redis: RedisSettings, path: Path, *, once: bool) -> None:
    delay = _FIRST_S
    while True:
        started = anyio.current_time()
        try:
            await _run_core(front, settings, redis, path, once=once)
            return
        except (StoreUnavailable, OSError) as error:
            if once:
                raise
            front.trouble = str(error)
            front.metrics.active.set(0)
            front.metrics.failures.labels("store" if isinstance(error, StoreUnavailable) else "disk").inc()
            _log.warning("waits", why=str(error), again_in_s=delay)
        await anyio.sleep(delay)
        delay = _FIRST_S if anyio.current_time() - started > 10 * _MOST_S else min(_MOST_S, 2 * delay)


async def _run_core(front: Front, settings: ArchiveSettings, redis: RedisSettings, path: Path, *, once: bool) -> None:
    """From the first word with the store to the last."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(
                redis.url,
                partition=redis.partition,
                command_timeout_s=redis.command_timeout_s,
                block_s=redis.block_s,
                connect_timeout_s=redis.connect_timeout_s,
            )
        )
        # 1. May this store be used?
        found = await startup_check(client, local_ms=time.time_ns() // 1_000_000)
        for warning in found.warnings:
            _log.warning("store", warning=warning)
        # 2. The parts.
        incarnation = found.meta.incarnation
        store, retention = RedisStore(client, incarnation=incarnation), RedisRetention(client, incarnation=incarnation)
        core = Core(store, retention, ArchiveFolder(path), settings, front.metrics, incarnation=incarnation)
        stack.push_async_callback(core.job.leave)
        # 3. Round after round.
        while True:
            active = await core.round()
            front.trouble = ""
            if once:
                if not active:
                    raise StoreUnavailable("another archiver is at work: nothing was done")
                return
            await anyio.sleep(settings.poll_s)
