"""A whole scheduler on real HTTP, a real store and the simulated API server, and a kube-scheduler's view of it."""

import io
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from hami.config import RedisSettings, SchedulerSettings
from hami.domain.device import Device
from hami.events.catalog.node import NodeLost, NodeRegistered
from hami.events.catalog.union import Event
from hami.events.envelope import START, Envelope
from hami.events.log import Draft, Record
from hami.events.redis.client import Client
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.kube.kinds import NODES, PODS, Kind
from hami.scheduler.app import run_scheduler
from hami.sim.apiserver.app import RunningServer
from tests.support.builders import a_device
from tests.support.cluster import Api
from tests.support.objects import node, pod
from tests.support.waiting import wait_until

Obj = dict[str, Any]

QUICK = {
    "http_bind": "127.0.0.1:0",
    "reaper_s": 0.05,
    "sweep_s": 0.1,
    "reconcile_s": 0.3,
    "bind_wait_s": 0.5,
    "lock_ttl_s": 2.0,
    "max_staleness_s": 5.0,
}


class Caller:
    """What kube-scheduler does with one scheduler's URL."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self.url = http, url

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._http.post(
            self.url + path, data=io.BytesIO(data), headers={"Content-Type": "application/json"}
        ) as answer:
            return answer.status, await answer.read()

    async def filter(self, made: Obj, names: Sequence[str]) -> Obj:
        status, body = await self.post("/filter", {"Pod": made, "Nodes": None, "NodeNames": list(names)})
        assert status == 200, body
        found: Obj = json.loads(body)
        return found

    async def refusal(self, made: Obj, names: Sequence[str]) -> str:
        error: str = (await self.filter(made, names))["Error"]
        return error

    async def bind(self, made: Obj, node_name: str) -> str:
        meta = made["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node_name}
        status, body = await self.post("/bind", args)
        assert status == 200, body
        error: str = json.loads(body)["Error"]
        return error

    async def readyz(self) -> tuple[int, Obj]:
        async with self._http.get(self.url + "/readyz") as answer:
            return answer.status, await answer.json()

    async def metrics(self) -> str:
        async with self._http.get(self.url + "/metrics") as answer:
            return await answer.text()

    async def metric(self, series: str) -> float:
        """The value of one series by its full text, 0 where it is not shown."""
        for line in (await self.metrics()).splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        return 0.0


class World:
    """One store and one API server, and what tests do with them."""

    def __init__(self, client: Client, api: Api, folder: Path, *, token: str = "") -> None:
        self.redis, self.api, self.kube = client, api, api.client
        self.store = RedisStore(client)
        self.writer = EventWriter(self.store.log, "test")
        self._folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(api.kubeconfig(token))

    @property
    def sim(self) -> RunningServer:
        """The simulated API server, to put faults in its way; a test that asks for it does not run on a real cluster."""
        return self.api.simulated()

    def on(self, client: Client) -> "World":
        """The same API server with another store; start its writer before use."""
        return World(client, self.api, self._folder)

    async def write(self, event: Event, *, node_name: str = "", subject: str = "") -> None:
        await self.writer.append([Draft(event=event, node=node_name, subject=subject)])

    async def add_node(self, name: str, *devices: Device, lease: bool = True) -> None:
        """A Node object, its devices in the log, its lease for as long as a test runs."""
        made = await self.kube.create(NODES, node(name))
        owned = devices or (a_device(f"GPU-{name}"),)
        event = NodeRegistered(vendor="NVIDIA", devices=owned, node_uid=made["metadata"]["uid"], boot_id="boot")
        await self.write(event, node_name=name)
        if lease:
            await self.store.leases.keep(name, "agent", ttl_ms=600_000)

    async def add_pod(self, name: str, **given: Any) -> Obj:
        made = pod(name, namespace="default", **given)
        made["spec"]["schedulerName"] = "hami-scheduler"
        return await self.kube.create_pod(made)

    async def records(self) -> list[Record]:
        return list(await self.store.log.read(START, limit=10_000))

    async def events(self, kind: type[Event]) -> list[Any]:
        return [each.event for each in await self.records() if isinstance(each.event, kind)]

    async def settled(self, caller: Caller) -> None:
        """Wait until the scheduler's view holds everything that the log holds now."""
        head = (await self.store.log.head()).g

        async def there() -> bool:
            return await caller.metric("hami_view_position") >= head

        await wait_until(there, "the view at the head of the log")

    async def seen(self, kind: type[Event], count: int = 1) -> list[Any]:
        """Wait until the log holds that many events of a kind."""
        found: list[Any] = []

        async def enough() -> bool:
            found[:] = await self.events(kind)
            return len(found) >= count

        await wait_until(enough, f"{count} x {kind.__name__}")
        return found

    async def lost(self, count: int) -> list[Envelope]:
        """Wait for that many NodeLost and return their envelopes."""
        await self.seen(NodeLost, count)
        return [each.envelope for each in await self.records() if isinstance(each.event, NodeLost)]

    async def pod_of(self, name: str, namespace: str = "default") -> Obj:
        return await self.kube.read(PODS, namespace, name)

    async def node_of(self, name: str) -> str:
        """Where the pod is bound; empty before."""
        return (await self.pod_of(name))["spec"].get("nodeName") or ""

    async def versions(self, kind: Kind[Any]) -> dict[str, str]:
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in await self.kube.list(kind)}

    def settings(self, **given: Any) -> SchedulerSettings:
        return SchedulerSettings(**{**QUICK, "kubeconfig": str(self.kubeconfig), "id": "a", **given})

    @asynccontextmanager
    async def scheduler(
        self,
        *,
        wait_ready: bool = True,
        redis_url: str = "",
        durability: str = "dev",
        authority: str = "",
        **given: Any,
    ) -> AsyncIterator[Caller]:
        """A running scheduler; the block begins when it is ready, or with `wait_ready=False` when it listens.

        `authority`: who signed its certificate, in PEM.
        """
        urls: list[str] = []
        ready: list[str] = []
        where = redis_url or self.redis.url
        redis = RedisSettings(url=where, durability=durability, block_s=0.2, command_timeout_s=0.5, connect_timeout_s=0.5)
        trust = ssl.create_default_context(cadata=authority) if authority else True
        connector = aiohttp.TCPConnector(ssl=trust)
        async with anyio.create_task_group() as tasks, aiohttp.ClientSession(connector=connector) as http:
            running = partial(run_scheduler, listening=urls.append, ready=ready.append)
            tasks.start_soon(running, self.settings(**given), redis)
            await wait_until(lambda: ready if wait_ready else urls, "the scheduler to be up", timeout=20)
            yield Caller(http, urls[0])
            tasks.cancel_scope.cancel()


@pytest.fixture
async def world(valkey_client: Client, api: Api, tmp_path: Path) -> World:
    made = World(valkey_client, api, tmp_path)
    await made.writer.start()
    return made
