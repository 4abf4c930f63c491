"""A real scheduler process at 5,000 nodes x 8 devices: filter over HTTP with all names, and what the process weighs."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec

from benchmarks.row import Row, median, quantile, row
from benchmarks.world import a_store, node_name, registered, standing
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.sim.demo.processes import free_port

NODES, PODS, CALLS = 5_000, 20_000, 400
HAMI_MS = 1092.0
"""HAMi v2.10.0's own Filter on the same cluster shape, no HTTP and no API write (facts of a 2-core machine, -v=4)."""


async def fill(store: RedisStore, nodes: int = NODES, pods: int = PODS) -> None:
    writer = EventWriter(store.log, "setup", retry_for_s=30)
    await writer.start()
    drafts = [registered(i) for i in range(nodes)]
    drafts += standing(pods, nodes)
    for start in range(0, len(drafts), 500):
        await writer.append(drafts[start : start + 500])


@asynccontextmanager
async def api_server(folder: Path, nodes: int = NODES, pods: int = PODS, waiting: int = 0) -> AsyncIterator[Path]:
    """A simulated API server as a process, with pods that run and pods that wait; its kubeconfig."""
    kubeconfig = folder / "kubeconfig.json"
    command = [sys.executable, "-m", "benchmarks.apiserver_process", str(nodes), str(pods), str(kubeconfig), str(waiting)]
    api = subprocess.Popen(command)
    try:
        while not kubeconfig.exists():
            await anyio.sleep(0.05)
        yield kubeconfig
    finally:
        api.kill()
        api.wait()


@asynccontextmanager
async def scheduler_process(url: str, kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """(the scheduler's URL, its pid), ready.

    Started from byte code, as an installed package is: the environment of a checkout may forbid writing it.
    """
    port = free_port()
    env = {
        **os.environ,
        "HAMI_REDIS_URL": url,
        "HAMI_SCHEDULER_HTTP_BIND": f"127.0.0.1:{port}",
        "HAMI_SCHEDULER_KUBECONFIG": str(kubeconfig),
        "HAMI_SCHEDULER_SWEEP_S": "3600",
        "HAMI_SCHEDULER_HANDSHAKE_S": "0",
        "HAMI_SCHEDULER_ID": "bench",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with (folder / "scheduler.log").open("wb") as log:
        scheduler = subprocess.Popen([sys.executable, "-m", "hami.cli", "scheduler"], env=env, stdout=log, stderr=log)
    try:
        base = f"http://127.0.0.1:{port}"
        await _until_ready(base, scheduler, folder / "scheduler.log")
        yield base, scheduler.pid
    finally:
        scheduler.kill()
        scheduler.wait()


async def _until_ready(base: str, scheduler: "subprocess.Popen[bytes]", log: Path) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(1200):
            if scheduler.poll() is not None:
                raise RuntimeError(log.read_text()[-2000:])
            try:
                async with http.get(f"{base}/readyz") as response:
                    if response.status == 200:
                        return
                    said = await response.text()
            except aiohttp.ClientError as error:
                said = str(error)
            await anyio.sleep(0.1)
    raise RuntimeError(f"not ready: {said}; {log.read_text()[-2000:]}")


def _pod(i: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(1000 + i % 7 * 500), "nvidia.com/gpucores": "5"}
    return {
        "metadata": {"name": f"bench-{i}", "namespace": "bench", "uid": f"bench-{i}"},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}]},
    }


async def _filters(base: str) -> tuple[list[float], list[float], int]:
    """Milliseconds with and without (an echo: no device asked) a decision; and how many were placed."""
    names = [node_name(i) for i in range(NODES)]
    samples: list[float] = []
    echoes: list[float] = []
    placed = 0
    plain = {"metadata": {"name": "p", "namespace": "bench", "uid": "p"}, "spec": {"containers": [{"name": "main"}]}}
    async with aiohttp.ClientSession() as http:
        for i in range(CALLS):
            for pod, into in ((_pod(i), samples), (plain, echoes)):
                body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})
                begun = time.perf_counter()
                async with http.post(f"{base}/filter", data=body) as response:
                    raw = await response.read()
                into.append((time.perf_counter() - begun) * 1e3)
                answer = msgspec.json.decode(raw)
                assert not answer.get("Error"), answer["Error"]
                placed += into is samples and len(answer["NodeNames"] or ()) == 1
    return samples, echoes, placed


def _rss_mib(pid: int, which: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {which}")


async def _measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hb-") as folder:
        async with a_store() as (server, store):
            await fill(store)
            at = Path(folder)
            async with api_server(at) as kubeconfig:
                begun = time.perf_counter()
                async with scheduler_process(server.url, kubeconfig, at):
                    first = time.perf_counter() - begun
                begun = time.perf_counter()
                async with scheduler_process(server.url, kubeconfig, at) as (base, pid):
                    boot = time.perf_counter() - begun
                    resting = _rss_mib(pid)
                    samples, echoes, placed = await _filters(base)
                    busy, peak = _rss_mib(pid), _rss_mib(pid, "VmHWM")
    assert placed == CALLS, f"{placed} of {CALLS} placed"
    where = f"{NODES} nodes x 8 devices, {PODS} pods"
    return [
        row(
            "filter.http.p50",
            median(samples),
            "ms",
            limit=5.0,
            note=f"{where}; append included; HAMi's Filter alone {HAMI_MS} ms",
        ),
        row("filter.http.p99", quantile(samples, 0.99), "ms"),
        row("filter.http.echo.p50", median(echoes), "ms", note="same body, pod asks for no device: the cost of HTTP and JSON"),
        row("scheduler.boot.first", first, "s", note="process start to ready: byte code written, full replay"),
        row("scheduler.boot", boot, "s", note="process start to ready, from the checkpoint that the first one saved"),
        row("scheduler.rss", resting, "MiB", limit=200.0, note=where),
        row("scheduler.rss.after", busy, "MiB", note=f"after {CALLS} filters"),
        row("scheduler.rss.peak", peak, "MiB", note="at start, before what was read is given back"),
    ]


def run() -> list[Row]:
    return anyio.run(_measure)
