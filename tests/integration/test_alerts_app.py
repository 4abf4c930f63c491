"""`hami alerts` inside this process: what it says of itself, and which settings it refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import anyio
import pytest

from hami.alerts.app import run_alerts
from hami.alerts.outfit import labels_of, sinks_of
from hami.config import AlertsSettings, RedisSettings
from hami.domain.errors import InvalidInput
from hami.domain.units import EpochMs
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from tests.support.alerting import SICK, Story, an_http, nothing_pending, sick
from tests.support.receivers import a_receiver
from tests.support.waiting import wait_until


class Asked:
    """The process's own endpoints."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url

    async def text(self, path: str) -> str:
        async with self._http.get(self._url + path) as answer:
            return await answer.text()

    async def says(self, path: str, *wanted: str) -> None:
        async def said() -> bool:
            shown = await self.text(path)
            return all(each in shown for each in wanted)

        await wait_until(said, f"{path} to say {wanted}", timeout=30)


@asynccontextmanager
async def alerts(settings: AlertsSettings, store_url: str) -> AsyncIterator[Asked]:
    redis = RedisSettings(url=store_url, block_s=0.2)
    urls: list[str] = []
    async with an_http() as http, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_alerts, settings, redis, listening=urls.append))
        await wait_until(lambda: urls, "the process to listen", timeout=30)
        yield Asked(http, urls[0])
        tasks.cancel_scope.cancel()


async def test_metrics_and_readiness_say_how_it_stands(valkey_server: EmbeddedServer, redis_store: RedisStore) -> None:
    story = Story(redis_store)
    async with a_receiver() as receiver:
        settings = AlertsSettings(http_bind="127.0.0.1:0", webhook_url=receiver.url, log=False, sweep_s=0.2)
        async with alerts(settings, valkey_server.url) as asked:
            await asked.says("/metrics", "hami_alerts_active 1.0")
            await asked.says("/readyz", '"ready":true')
            await story.tell(sick())
            await receiver.told_in_the_end([SICK])
            await nothing_pending(redis_store)
            sent = 'hami_alerts_sent_total{alert="HamiDeviceUnhealthy",sink="webhook"} 1.0'
            waiting = 'hami_alerts_waiting{sink="webhook"} 0.0'
            await asked.says("/metrics", sent, waiting, "hami_alerts_firing 1.0", "hami_alerts_lag_events 0.0")
            assert await asked.text("/healthz") == "ok\n"


async def test_without_a_store_it_waits_and_says_so() -> None:
    async with alerts(AlertsSettings(http_bind="127.0.0.1:0"), "redis://127.0.0.1:1/0") as asked:
        await asked.says("/readyz", '"ready":false', "127.0.0.1:1")


async def test_a_store_that_is_emptied_and_made_anew_is_followed_again(
    valkey_server: EmbeddedServer, redis_store: RedisStore
) -> None:
    async with a_receiver() as receiver:
        settings = AlertsSettings(http_bind="127.0.0.1:0", webhook_url=receiver.url, log=False, sweep_s=0.2)
        async with alerts(settings, valkey_server.url) as asked:
            await asked.says("/metrics", "hami_alerts_active 1.0")
            await redis_store.client.command.call("FLUSHALL")
            await asked.says("/readyz", "hami init")
            await initialise(redis_store.client)
            await asked.says("/metrics", "hami_alerts_active 1.0")
            await asked.says("/readyz", '"ready":true')
            await Story(RedisStore(redis_store.client)).tell(sick())
            await receiver.told_in_the_end([SICK])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (AlertsSettings(log=False), "alerts"),
        (AlertsSettings(webhook_url="ftp://x"), "alerts.webhook_url"),
        (AlertsSettings(alertmanager_url="http://ok:9093 http://user:secret@:99999"), "alerts.alertmanager_url"),
        (AlertsSettings(labels="node=x"), "alerts.labels"),
        (AlertsSettings(labels="cluster"), "alerts.labels"),
        (AlertsSettings(labels="a-b=c"), "alerts.labels"),
    ],
)
async def test_settings_that_cannot_work_are_refused(settings: AlertsSettings, field: str) -> None:
    async with an_http() as http:
        with pytest.raises(InvalidInput) as refused:
            sinks_of(settings, http, lambda: EpochMs(0))
    assert refused.value.field == field
    assert "secret" not in str(refused.value)


async def test_each_alertmanager_is_a_sink_of_its_own() -> None:
    settings = AlertsSettings(alertmanager_url="http://a:9093 https://b/am", webhook_url="http://c/h")
    async with an_http() as http:
        sinks = sinks_of(settings, http, lambda: EpochMs(0))
    assert [sink.name for sink in sinks] == ["alertmanager-1", "alertmanager-2", "webhook", "log"]
    assert labels_of(" cluster=east, team=a=b ") == {"cluster": "east", "team": "a=b"}
