"""Everything the demo runs: a store, a Kubernetes, three nodes with kubelets and agents, schedulers.

In this process: the simulated API server, kubelets and kube-scheduler. As processes of their own, speaking real protocols:
the Valkey server, one agent for each node, the schedulers.
"""

import json
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import msgspec
import trustme
from anyio.abc import TaskGroup

from hami.domain.device import Device
from hami.domain.units import CorePercent, MiB, Slots
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer, embedded_server
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from hami.kube.client import KubeClient
from hami.kube.kinds import MUTATING_WEBHOOKS, NODES, VALIDATING_WEBHOOKS
from hami.projections.view import LiveView
from hami.sim import webhooks
from hami.sim.apiserver.admission import User
from hami.sim.apiserver.app import RunningServer, Settings, serving
from hami.sim.demo.processes import HamiProcess, free_port
from hami.sim.kubeapi import ClusterAccess
from hami.sim.kubelet.node import SimKubelet
from hami.sim.kubescheduler import Extender, KubeScheduler

NODE_NAMES: Final = ("node-a", "node-b", "node-c")
CARDS: Final = 4
CARD_MEMORY: Final = MiB(40960)
CONTROL_PLANE: Final = "system:serviceaccount:hami-system:hami-scheduler"
SCHEDULER_NAME: Final = "hami-scheduler"


def cards_of(node: str) -> tuple[Device, ...]:
    """Four A100s of 40 GiB, two on each NUMA node."""
    letter = node[-1]
    return tuple(
        Device(
            uuid=f"GPU-{letter}{letter}{letter}{letter}{index}",
            vendor="NVIDIA",
            model="NVIDIA A100-SXM4-40GB",
            memory=CARD_MEMORY,
            cores=CorePercent(100),
            slots=Slots(1),
            index=index,
            numa=index // 2,
        )
        for index in range(CARDS)
    )


class Stage:
    """What the story acts on. Made by `set_up`."""

    def __init__(self, folder: Path, server: EmbeddedServer, client: Client, api: RunningServer, kube: KubeClient) -> None:
        self.folder, self.server, self.client, self.api, self.kube = folder, server, client, api, kube
        self.store = RedisStore(client)
        self.kubelets: dict[str, SimKubelet] = {}
        self.agents: dict[str, HamiProcess] = {}
        self.schedulers: dict[str, HamiProcess] = {}
        self.urls: dict[str, str] = {}
        self.view: LiveView
        self.kube_scheduler: KubeScheduler
        self._authority = trustme.CA()
        self._certificate = folder / "scheduler.pem"
        self._authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
            str(self._certificate)
        )
        self.tls = ssl.create_default_context()
        self._authority.configure_trust(self.tls)

    @property
    def env(self) -> dict[str, str]:
        """For child processes and for a person who wants to look around."""
        return {**_plain_environment(), "HAMI_REDIS_URL": self.server.url}

    def add_node(self, name: str, tasks: TaskGroup) -> None:
        root = self.folder / name[-1]
        root.mkdir()
        script = root / "cards.json"
        script.write_bytes(msgspec.json.encode({"devices": cards_of(name)}))
        kubelet = SimKubelet(name, root, ClusterAccess(self.kube), capacity={"cpu": "32", "memory": "256Gi", "pods": "110"})
        self.kubelets[name] = kubelet
        tasks.start_soon(kubelet.run)
        env = {
            **self.env,
            "HAMI_AGENT_NODE_NAME": name,
            "HAMI_AGENT_BACKEND": "simulated",
            "HAMI_AGENT_SIMULATED_DEVICES": str(script),
            "HAMI_AGENT_KUBELET_DIR": str(kubelet.plugin_dir),
            "HAMI_AGENT_POD_RESOURCES_SOCKET": str(kubelet.pod_resources),
            "HAMI_AGENT_STATE_DIR": str(root / "state"),
            "HAMI_AGENT_HOOK_PATH": str(root / "hook"),
            "HAMI_AGENT_LEASE_EVERY_S": "2",
            "HAMI_AGENT_LEASE_TTL_S": "20",
        }
        self.agents[name] = HamiProcess(f"agent-{name}", ["agent"], env, self.folder)

    def add_scheduler(self, name: str) -> HamiProcess:
        """A replica with its own port; start it when it is due."""
        port = free_port()
        env = {
            **self.env,
            "HAMI_SCHEDULER_ID": name,
            "HAMI_SCHEDULER_NAME": SCHEDULER_NAME,
            "HAMI_SCHEDULER_HTTP_BIND": f"127.0.0.1:{port}",
            "HAMI_SCHEDULER_CERT_FILE": str(self._certificate),
            "HAMI_SCHEDULER_KEY_FILE": str(self._certificate),
            "HAMI_SCHEDULER_KUBECONFIG": str(self.folder / "kubeconfig.json"),
            "HAMI_SCHEDULER_CONTROL_PLANE_USER": CONTROL_PLANE,
        }
        self.urls[name] = f"https://127.0.0.1:{port}"
        self.schedulers[name] = HamiProcess(name, ["scheduler"], env, self.folder)
        return self.schedulers[name]

    async def install_webhooks(self, scheduler: str) -> None:
        pem = self._authority.cert_pem.bytes().decode()
        await self.kube.create(MUTATING_WEBHOOKS, webhooks.mutating(self.urls[scheduler], pem))
        await self.kube.create(VALIDATING_WEBHOOKS, webhooks.validating(self.urls[scheduler], pem))

    def strike(self, node: str, uuid: str, xid: int) -> None:
        """A fault on a card, as its driver would report it."""
        line = json.dumps({"uuid": uuid, "xid": xid})
        with (self.folder / node[-1] / "cards.json.faults").open("a") as faults:
            faults.write(line + "\n")

    async def ask(self, scheduler: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One call to a scheduler, over TLS: (status, JSON)."""
        connector = aiohttp.TCPConnector(ssl=self.tls)
        limit = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as http:
            method = "GET" if body is None else "POST"
            async with http.request(method, f"{self.urls[scheduler]}{path}", json=body) as response:
                raw = await response.read()
                return response.status, msgspec.json.decode(raw) if raw[:1] in {b"{", b"["} else raw.decode()

    async def ready(self, scheduler: str) -> tuple[bool, str]:
        self.schedulers[scheduler].check()
        try:
            status, said = await self.ask(scheduler, "/readyz")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return False, f"no answer yet ({type(error).__name__})"
        return status == 200, json.dumps(said) if not isinstance(said, str) else said


@asynccontextmanager
async def set_up(folder: Path) -> AsyncIterator[Stage]:
    """Store, API server, nodes and the first scheduler, all started; ready is for the story to wait for."""
    tokens = {"admin": User(), "scheduler": User(CONTROL_PLANE, ("system:masters", "system:authenticated"))}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_server(folder / "store", prefer_wheel=True))
        client = await stack.enter_async_context(Client(server.url))
        meta = await initialise(client)
        api = await stack.enter_async_context(serving(Settings(tokens=tokens)))
        kube = await stack.enter_async_context(KubeClient.at(api.url, token="admin"))
        (folder / "kubeconfig.json").write_text(json.dumps(api.kubeconfig("scheduler")))
        stage = Stage(folder, server, client, api, kube)
        stage.view = LiveView(stage.store.log, stage.store.checkpoints, incarnation=meta.incarnation, fold="demo")
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.enter_context(_ending(stage, tasks))
        await _populate(stage, tasks)
        yield stage


async def _populate(stage: Stage, tasks: TaskGroup) -> None:
    await tasks.start(stage.view.run)
    for name in NODE_NAMES:
        await stage.kube.create(NODES, _node(name))
        stage.add_node(name, tasks)
    for kubelet in stage.kubelets.values():
        await kubelet.started()
    first = stage.add_scheduler("scheduler-1")
    for process in (first, *stage.agents.values()):
        process.start()
    await stage.install_webhooks("scheduler-1")
    extender = Extender(url=stage.urls["scheduler-1"], http_timeout_s=10)
    stage.kube_scheduler = KubeScheduler(ClusterAccess(stage.kube), extender, name=SCHEDULER_NAME, tls=stage.tls)
    tasks.start_soon(partial(stage.kube_scheduler.run))


@contextmanager
def _ending(stage: Stage, tasks: TaskGroup) -> Iterator[None]:
    """Processes end before the tasks that they talk to, so that nobody logs errors about the others' absence."""
    try:
        yield
    finally:
        for process in (*stage.schedulers.values(), *stage.agents.values()):
            process.ask_to_end()
        for process in (*stage.schedulers.values(), *stage.agents.values()):
            process.stop()
        tasks.cancel_scope.cancel()


def _node(name: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "gpu": "on"}},
        "status": {"capacity": room, "allocatable": dict(room), "conditions": [ready]},
    }


def _plain_environment() -> Mapping[str, str]:
    """The person's own HAMI_* settings must not reach the demo."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HAMI_")}
