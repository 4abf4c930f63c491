"""`hami scheduler` as a process of its own: comes up, answers, and ends politely on SIGTERM."""

import os
import signal
import sys
from pathlib import Path

import aiohttp
import anyio
from anyio.abc import Process

from hami.web.server import listen
from tests.support.scheduler import Caller, World
from tests.support.waiting import wait_until


def _free_port() -> int:
    with listen("127.0.0.1:0") as listener:
        port: int = listener.getsockname()[1]
        return port


async def _stop(process: Process) -> int:
    process.send_signal(signal.SIGTERM)
    with anyio.fail_after(10):
        return await process.wait()


async def test_it_ends_within_seconds_of_sigterm_and_leaves_a_checkpoint(world: World, tmp_path: Path) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    port = _free_port()
    env = {
        **os.environ,
        "HAMI_REDIS_URL": world.redis.url,
        "HAMI_SCHEDULER_HTTP_BIND": f"127.0.0.1:{port}",
        "HAMI_SCHEDULER_KUBECONFIG": str(world.kubeconfig),
        "HAMI_SCHEDULER_ID": "process",
    }
    command = [sys.executable, "-m", "hami.cli", "scheduler"]
    with (tmp_path / "log").open("wb") as log:
        async with (
            await anyio.open_process(command, env=env, stdout=log, stderr=log) as process,
            aiohttp.ClientSession() as http,
        ):
            caller = Caller(http, f"http://127.0.0.1:{port}")

            async def ready() -> bool:
                assert process.returncode is None, (tmp_path / "log").read_text()
                try:
                    return (await caller.readyz())[0] == 200
                except aiohttp.ClientError:
                    return False

            await wait_until(ready, "the process to be ready", timeout=30)
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            head = await world.store.log.head()
            assert await _stop(process) == 0, (tmp_path / "log").read_text()
    [newest, *_] = await world.store.checkpoints.load("cluster")
    assert newest[0].g >= head.g
