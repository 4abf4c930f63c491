"""The node agent: from a fault to the kubelet and to the scheduler's view, and what the process costs while nothing happens."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import grpc
import msgspec

from benchmarks.row import Row, median, quantile, row
from benchmarks.world import DEVICES_PER_NODE, a_store
from hami.config import AgentSettings
from hami.domain.device import Health
from hami.events.epochs import EpochFile
from hami.events.ingester import Ingester
from hami.events.outbox import MemorySpool, Outbox
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.nodeagent.app import Agent
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.plugin import SERVICE, UNHEALTHY
from hami.projections.view import LiveView
from hami.sim.demo.processes import free_port
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet

NODE = "node-1"
FAULTS = 400
IDLE_S = 20.0
SETTLE_S = 5.0
SLICES = 10
CARDS = simulated_cards(DEVICES_PER_NODE)
WHERE = f"{DEVICES_PER_NODE} cards x {SLICES} slices"


class Heard:
    """What a kubelet and a scheduler know: who is sick, and when that was first seen."""

    def __init__(self, log: RedisStore, incarnation: str) -> None:
        self.view = LiveView(log.log, log.checkpoints, incarnation=incarnation, on_change=self._changed)
        self._listed: dict[str, float] = {}
        self._viewed: dict[str, float] = {}

    async def listen(self, socket: Path) -> None:
        """As the kubelet does, for ever."""
        async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
            call = channel.unary_stream(
                f"/{SERVICE}/ListAndWatch",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=pb.ListAndWatchResponse.FromString,
            )
            async for answer in call(pb.Empty()):
                _note(self._listed, {each.ID.rpartition("-")[0] for each in answer.devices if each.health == UNHEALTHY})

    def _changed(self, _names: object) -> None:
        node = self.view.snapshot().nodes.get(NODE)
        devices = () if node is None else node.devices
        _note(self._viewed, {each.device.uuid for each in devices if each.health is not Health.HEALTHY})

    async def until(self, uuid: str, *, sick: bool) -> tuple[float, float]:
        """When the kubelet and when the view had it: noted where it was heard, not here."""
        with anyio.fail_after(10):
            while ((uuid in self._listed) is not sick) or ((uuid in self._viewed) is not sick):
                await anyio.sleep(0.002)
        return self._listed.get(uuid, 0.0), self._viewed.get(uuid, 0.0)


def _note(into: dict[str, float], sick: set[str]) -> None:
    now = time.perf_counter()
    for uuid in sick:
        into.setdefault(uuid, now)
    for uuid in set(into) - sick:
        del into[uuid]


def _settings(folder: Path) -> AgentSettings:
    return AgentSettings(
        node_name=NODE,
        backend="simulated",
        kubelet_dir=str(folder / "device-plugins"),
        pod_resources_socket=str(folder / "pod-resources/kubelet.sock"),
        state_dir=str(folder / "state"),
        hook_path=str(folder / "hook"),
        split_count=SLICES,
    )


@asynccontextmanager
async def _kubelet(folder: Path) -> AsyncIterator[SimKubelet]:
    kubelet = SimKubelet(NODE, folder, InMemoryApi())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.run)
        await kubelet.start()
        yield kubelet
        tasks.cancel_scope.cancel()


async def _latencies(folder: Path, store: RedisStore) -> tuple[list[float], list[float]]:
    """Milliseconds from the report of an XID to ListAndWatch and to a view that follows the log, on a real store."""
    settings, backend = _settings(folder), SimulatedBackend(CARDS)
    writer = EventWriter(store.log, "control")
    await writer.start()
    outbox = Outbox(NODE, store.inbox(NODE), MemorySpool(), EpochFile(folder / "state/epoch").next)
    heard = Heard(store, await store.log.incarnation())
    listed, viewed = [], []
    async with _kubelet(folder), anyio.create_task_group() as tasks:
        agent = Agent(settings, backend, outbox, store.feed(NODE), store.leases, boot_id="boot-1")
        tasks.start_soon(outbox.run)
        tasks.start_soon(Ingester(store.log, store.inboxes, writer).run)
        await tasks.start(heard.view.run)
        tasks.start_soon(agent.run)
        while not (agent.link.registered and heard.view.snapshot().nodes.get(NODE)):
            await anyio.sleep(0.01)
        tasks.start_soon(heard.listen, agent.plugin.socket)
        for at in range(FAULTS):
            uuid = CARDS[at % len(CARDS)].uuid
            begun = time.perf_counter()
            backend.strike(uuid, 79)
            at_kubelet, at_view = await heard.until(uuid, sick=True)
            listed.append((at_kubelet - begun) * 1e3)
            viewed.append((at_view - begun) * 1e3)
            agent.health.clear(f"clear-{at}", uuid, "bench", "next round")
            await heard.until(uuid, sick=False)
        tasks.cancel_scope.cancel()
    return listed, viewed


@asynccontextmanager
async def _process(url: str, folder: Path) -> AsyncIterator[int]:
    """`hami agent` on a simulated library; its pid. From byte code, as an installed package."""
    folder.mkdir(exist_ok=True)
    (folder / "devices.json").write_bytes(msgspec.json.encode({"devices": CARDS}))
    settings = _settings(folder)
    given = {"simulated_devices": str(folder / "devices.json"), "metrics_bind": f"127.0.0.1:{free_port()}"}
    env = {**os.environ, "HAMI_REDIS_URL": url, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    for name in ("node_name", "backend", "kubelet_dir", "pod_resources_socket", "state_dir", "hook_path", "split_count"):
        given[name] = str(getattr(settings, name))
    env |= {f"HAMI_AGENT_{name.upper()}": value for name, value in given.items()}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "hami.cli", "agent"], env=env, stdout=log, stderr=log)
    try:
        yield process.pid
        if process.poll() is not None:
            raise RuntimeError((folder / "agent.log").read_text()[-2000:])
    finally:
        process.kill()
        process.wait()


async def _idle(url: str, folder: Path) -> tuple[float, float]:
    """(MiB at rest, percent of a core) of the process."""
    async with _kubelet(folder) as kubelet, _process(url, folder) as pid:
        with anyio.fail_after(60):
            while not any(total for total, _ in kubelet.books.capacity().values()):
                await anyio.sleep(0.05)
        await anyio.sleep(SETTLE_S)
        before, begun = _cpu_s(pid), time.perf_counter()
        await anyio.sleep(IDLE_S)
        percent = (_cpu_s(pid) - before) / (time.perf_counter() - begun) * 100
        return _rss_mib(pid), percent


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


async def _measure() -> list[Row]:
    async with a_store() as (server, store):
        with tempfile.TemporaryDirectory(prefix="hb-") as one, tempfile.TemporaryDirectory(prefix="hb-") as two:
            listed, viewed = await _latencies(Path(one), store)
            rss, cpu = await _idle(server.url, Path(two))
    return [
        row("fault.to_kubelet.p50", median(listed), "ms"),
        row("fault.to_kubelet.p99", quantile(listed, 0.99), "ms", limit=50.0, note=f"{WHERE}, {FAULTS} faults, ListAndWatch"),
        row("fault.to_view.p50", median(viewed), "ms"),
        row("fault.to_view.p99", quantile(viewed, 0.99), "ms", limit=250.0, note="through outbox, inbox, ingester and log"),
        row(
            "agent.rss",
            rss,
            "MiB",
            limit=120.0,
            note=f"{WHERE}, `hami agent` with metrics, {SETTLE_S + IDLE_S:g} s after start",
        ),
        row("agent.cpu.idle", cpu, "% of a core", limit=1.0, note=f"over {IDLE_S:g} s, registered with a kubelet"),
    ]


def run() -> list[Row]:
    return anyio.run(_measure)
