"""An alert consumer on a real store, for tests: its events in, its sinks out."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import anyio

from hami.alerts.consumer import Consumer, Timing
from hami.alerts.metrics import Metrics
from hami.alerts.sinks.base import Sink
from hami.alerts.sinks.webhook import Webhook
from hami.alerts.turn import Turn
from hami.domain.device import Health
from hami.events.catalog.device import DeviceHealthChanged, FaultKind, FaultObserved
from hami.events.catalog.union import Event
from hami.events.log import Draft
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from tests.support.waiting import wait_until

GROUP = "alerts"
QUICK = Timing(look_s=0.05, sweep_s=0.3, retry_most_s=0.05)

FAULT = ("HamiDeviceFault", "once")
SICK = ("HamiDeviceUnhealthy", "firing")
WELL = ("HamiDeviceUnhealthy", "resolved")


def sick(device: str = "GPU-a") -> Event:
    return DeviceHealthChanged(device=device, was=Health.HEALTHY, now=Health.UNHEALTHY, reason="xid-79")


def well(device: str = "GPU-a") -> Event:
    return DeviceHealthChanged(device=device, was=Health.UNHEALTHY, now=Health.HEALTHY, reason="operator")


def fault(device: str = "GPU-a") -> Event:
    return FaultObserved(device=device, kind=FaultKind.XID, code=79)


class Story:
    """Writes events to the log."""

    def __init__(self, store: RedisStore) -> None:
        self._writer = EventWriter(store.log, "test")

    async def tell(self, *events: Event, node: str = "n1") -> None:
        if not self._writer.epoch:
            await self._writer.start()
        for event in events:
            await self._writer.append([Draft(event=event, node=node)])


def webhook(http: aiohttp.ClientSession, url: str, name: str = "webhook") -> Webhook:
    return Webhook(http, url, name=name, labels={})


@asynccontextmanager
async def an_http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
        yield http


@asynccontextmanager
async def consuming(
    store: RedisStore,
    sinks: Sequence[Sink],
    *,
    name: str = "one",
    metrics: Metrics | None = None,
    ttl_s: float = 5.0,
    timing: Timing = QUICK,
) -> AsyncIterator[Consumer]:
    """A replica for as long as the block. It may stand by."""
    incarnation = await store.log.incarnation()
    turn = Turn(store.locks, GROUP, name, ttl_s=ttl_s)
    make = partial(Consumer, store, sinks, turn, metrics or Metrics(), timing=timing)
    consumer = make(group=GROUP, consumer=name, incarnation=incarnation)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run)
        yield consumer
        tasks.cancel_scope.cancel()


async def caught_up(store: RedisStore, consumer: Consumer) -> None:
    """It has looked at everything in the log."""
    head = await store.log.head()

    def there() -> bool:
        return consumer.active and not consumer.booting and consumer.state.position >= head

    await wait_until(there, f"the consumer to reach g {head.g}", timeout=30)


async def nothing_pending(store: RedisStore) -> None:
    async def none() -> bool:
        state = await store.group(GROUP, "onlooker").state()
        return state is not None and state.pending == 0

    await wait_until(none, "every entry to be acknowledged", timeout=30)
