"""The composition root of `hami alerts`.

front    HTTP server, sinks               as long as the process
core     store, consumer                  as long as one incarnation of the store is reachable and sound
"""

import secrets
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import aiohttp
import anyio
from starlette.applications import Starlette

from hami.alerts.consumer import Consumer, Timing
from hami.alerts.metrics import Metrics
from hami.alerts.outfit import sinks_of
from hami.alerts.sinks.base import Sink
from hami.alerts.turn import Turn
from hami.config import AlertsSettings, RedisSettings
from hami.domain.errors import StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.redis.client import Client
from hami.events.redis.meta import startup_check
from hami.events.redis.store import RedisStore
from hami.telemetry import get_logger
from hami.web.health import Readiness, health_routes, metrics_route
from hami.web.server import serve

_FIRST_S: Final = 0.2
_MOST_S: Final = 5.0
_log = get_logger("alerts")


class Front:
    """What outlives the store."""

    def __init__(self, sinks: tuple[Sink, ...]) -> None:
        self.sinks = sinks
        self.metrics = Metrics()
        self.consumer: Consumer | None = None
        self.closed = "the event store was not asked yet"
        self.readiness = Readiness({"store": self._no_core, "log": self._booting})

    def _no_core(self) -> str:
        return "" if self.consumer is not None else self.closed

    def _booting(self) -> str:
        """A replica that stands by is ready: nobody waits for it."""
        return "reading the log" if self.consumer is not None and self.consumer.booting else ""

    def app(self) -> Starlette:
        return Starlette(routes=[*health_routes(self.readiness), metrics_route(self.metrics.registry)])


async def run_alerts(settings: AlertsSettings, redis: RedisSettings, *, listening: Callable[[str], None] | None = None) -> None:
    """Runs until cancelled. Raises InvalidInput for settings that cannot be used. `listening` gets the URL of `http_bind`."""
    limit = aiohttp.ClientTimeout(total=settings.timeout_s)
    async with aiohttp.ClientSession(timeout=limit, headers={"User-Agent": "hami"}) as http:
        front = Front(sinks_of(settings, http, _wall_clock))
        async with anyio.create_task_group() as tasks:
            if settings.http_bind:
                url: str = await tasks.start(partial(serve, front.app(), bind=settings.http_bind))
                _log.info("listening", url=url, sinks=[sink.name for sink in front.sinks])
                if listening is not None:
                    listening(url)
            await _keep_a_core(front, settings, redis)


def _wall_clock() -> EpochMs:
    return EpochMs(time.time_ns() // 1_000_000)


async def _keep_a_core(front: Front, settings: AlertsSettings, redis: RedisSettings) -> None:
    """One core after the other: a store that comes back, or is another one now, is looked at afresh."""
    delay = _FIRST_S
    while True:
        started = anyio.current_time()
        try:
            await _run_core(front, settings, redis)
        except* (StoreUnavailable, StoreUnsafe) as errors:
            front.closed = str(_first(errors))
            _log.warning("no core", why=front.closed, again_in_s=delay)
        await anyio.sleep(delay)
        delay = _FIRST_S if anyio.current_time() - started > 10 * _MOST_S else min(_MOST_S, 2 * delay)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run_core(front: Front, settings: AlertsSettings, redis: RedisSettings) -> None:
    """From the first word with the store to the last."""
    async with Client(
        redis.url,
        partition=redis.partition,
        command_timeout_s=redis.command_timeout_s,
        block_s=redis.block_s,
        connect_timeout_s=redis.connect_timeout_s,
    ) as client:
        # 1. May this store be used?
        found = await startup_check(client, local_ms=_wall_clock())
        for warning in found.warnings:
            _log.warning("store", warning=warning)
        # 2. The consumer. Its turn is taken under a name that no other process has.
        store = RedisStore(client, incarnation=found.meta.incarnation)
        consumer = settings.id or socket.gethostname()
        turn = Turn(store.locks, settings.group, f"{consumer}-{secrets.token_hex(4)}", ttl_s=settings.lease_ttl_s)
        front.consumer = Consumer(
            store,
            front.sinks,
            turn,
            front.metrics,
            group=settings.group,
            consumer=consumer,
            incarnation=found.meta.incarnation,
            timing=Timing(
                look_s=min(2.0, settings.sweep_s),
                sweep_s=settings.sweep_s,
                retry_most_s=settings.retry_most_s,
                checkpoint_every=settings.checkpoint_every,
            ),
        )
        # 3. Until the store is away, or another one.
        try:
            await front.consumer.run()
        finally:
            front.consumer, front.closed = None, "the event store is away"
