"""Four scheduler processes, a thousand pods, few cards, one store; one of the processes is killed on the way.

Everything goes through the extender's HTTP. What came of it is recounted from the log alone.
"""

import os
import random
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest

from hami.domain.allocation import usage_of
from hami.domain.device import DeviceUsage
from hami.events.catalog.allocation import AllocationFailed, AllocationLapsed, AllocationReleased, AllocationReserved
from hami.events.envelope import START
from hami.events.log import Record
from hami.sim.demo.processes import free_port
from tests.support.builders import a_device
from tests.support.cli import ROOT
from tests.support.objects import pod
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until

SCHEDULERS, PODS, NODES, WORKERS = 4, 1000, 6, 16
SLOTS, MEMORY, CORES = 2, 16000, 100
HALF = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "50"}
Terminal = AllocationReleased | AllocationLapsed | AllocationFailed


class Process:
    """One `hami scheduler`."""

    def __init__(self, world: World, kubeconfig: Path, number: int) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        env = {
            **os.environ,
            "HAMI_REDIS_URL": world.redis.url,
            "HAMI_SCHEDULER_KUBECONFIG": str(kubeconfig),
            "HAMI_SCHEDULER_HTTP_BIND": self.url.removeprefix("http://"),
            "HAMI_SCHEDULER_ID": f"racer-{number}",
            "HAMI_SCHEDULER_RESERVATION_TTL_S": "3",
            "HAMI_SCHEDULER_REAPER_S": "0.3",
            "HAMI_SCHEDULER_LOCK_TTL_S": "2",
            "HAMI_SCHEDULER_SWEEP_S": "3600",
            "HAMI_SCHEDULER_HANDSHAKE_S": "0",
        }
        command = [sys.executable, "-m", "hami.cli", "--log-level", "error", "scheduler"]
        self._process = subprocess.Popen(command, env=env, cwd=ROOT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Race:
    """Pods that wait, and what kube-schedulers and users do with them."""

    def __init__(self, world: World, callers: Sequence[Caller], pods: Sequence[Obj]) -> None:
        self._world, self._callers = world, list(callers)
        self._waiting = deque(pods)
        self._draw = random.Random(7)
        self.left = len(pods)
        self.refused = self.errors = 0

    def drop(self, caller: Caller) -> None:
        self._callers.remove(caller)

    async def work(self) -> None:
        while self.left:
            if not self._waiting:
                await anyio.sleep(0.01)
                continue
            pod = self._waiting.popleft()
            if await self._life_of(pod):
                await self._world.kube.delete_pod("default", pod["metadata"]["name"], grace=0)
                self.left -= 1
            else:
                self._waiting.append(pod)

    async def _life_of(self, pod: Obj) -> bool:
        """Whether it came to an end: placed and bound, or placed and thought better of."""
        names = self._draw.sample([f"n{i}" for i in range(NODES)], NODES)
        try:
            answer = await self._draw.choice(self._callers).filter(pod, names)
            if not answer["NodeNames"]:
                self.refused += not answer["Error"]
                self.errors += bool(answer["Error"])
                await anyio.sleep(self._draw.random() * 0.02)
                return False
            if self._draw.random() < 0.05:
                return True
            error = await self._draw.choice(self._callers).bind(pod, answer["NodeNames"][0])
        except aiohttp.ClientError:
            return False
        self.errors += bool(error)
        return not error


def recount(records: Sequence[Record]) -> tuple[Counter[str], int]:
    """Terminal events by reservation, and the most that was ever given out of a card, in thousandths of what it has."""
    held: dict[str, DeviceUsage] = {}
    live: dict[str, dict[str, DeviceUsage]] = {}
    ended: Counter[str] = Counter()
    fullest = 0
    for record in records:
        event = record.event
        if isinstance(event, AllocationReserved):
            live[event.reservation.id] = usage_of(event.reservation.containers)
            ended[event.reservation.id] += 0
            for uuid, used in live[event.reservation.id].items():
                held[uuid] = held.get(uuid, DeviceUsage()).plus(used)
                now = held[uuid]
                fullest = max(fullest, now.slots * 1000 // SLOTS, now.memory * 1000 // MEMORY, now.cores * 1000 // CORES)
        elif isinstance(event, Terminal):
            ended[event.reservation] += 1
            for uuid, used in live.pop(event.reservation, {}).items():
                held[uuid] = held[uuid].minus(used)
    return ended, fullest


@asynccontextmanager
async def racing(world: World, folder: Path) -> AsyncIterator[tuple[list[Process], list[Caller]]]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        processes = []
        for number in range(SCHEDULERS):
            processes.append(Process(world, folder / "kubeconfig", number))
            stack.callback(processes[-1].kill)
        callers = [Caller(http, each.url) for each in processes]

        async def all_ready() -> bool:
            try:
                return all([(await each.readyz())[0] == 200 for each in callers])
            except aiohttp.ClientError:
                return False

        await wait_until(all_ready, "four schedulers to be ready", timeout=60)
        yield processes, callers


@pytest.mark.simulated
@pytest.mark.timeout(180)
async def test_nothing_is_given_twice_and_nothing_is_left_over(world: World, tmp_path: Path) -> None:
    for number in range(NODES):
        card = a_device(f"GPU-{number}", memory=MEMORY, cores=CORES, slots=SLOTS)
        await world.add_node(f"n{number}", card)
    pods = [pod(f"p{i}", namespace="default", uid=f"uid-{i}", limits=HALF) for i in range(PODS)]
    world.sim.load("pods", pods)
    async with racing(world, tmp_path) as (processes, callers):
        race = Race(world, callers, pods)
        async with anyio.create_task_group() as tasks:
            for _ in range(WORKERS):
                tasks.start_soon(race.work)
            await wait_until(lambda: race.left < PODS // 2, "half of the pods to be done", timeout=90)
            race.drop(callers[0])
            processes[0].kill()
        await all_ended(world)
    ended, fullest = recount(await everything(world))
    assert fullest == 1000, "cards were scarce: at the peak one was full, and none was ever more than full"
    assert set(ended.values()) == {1}, "every reservation ends exactly once"
    assert len(ended) >= PODS
    assert race.refused > 0, "pods had to wait for each other"
    locks = [each.lock for each in await world.store.locks.held() if each.lock.startswith("n")]
    assert locks == []


async def everything(world: World) -> list[Record]:
    found: list[Record] = []
    while batch := await world.store.log.read(found[-1].position if found else START):
        found += batch
    return found


async def all_ended(world: World) -> None:
    async def none_left() -> bool:
        return all(recount(await everything(world))[0].values())

    await wait_until(none_left, "every reservation to end", timeout=30)
