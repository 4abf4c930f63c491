"""The agent's process: the store, the outbox, the device library and the HTTP endpoint around `nodeagent.app.Agent`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio
import msgspec
from starlette.applications import Starlette

from hami.cli.store import client_for
from hami.config import AgentSettings, RedisSettings
from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.events.epochs import EpochFile
from hami.events.outbox import MemorySpool, Outbox, Spool
from hami.events.redis.client import Client
from hami.events.redis.spool import SidecarSpool
from hami.events.redis.store import RedisStore
from hami.nodeagent.app import Agent, run_agent, this_boot
from hami.nodeagent.backends.base import DeviceBackend
from hami.nodeagent.metrics import Metrics
from hami.web.health import Readiness, health_routes, metrics_route
from hami.web.server import serve


async def run(settings: AgentSettings, redis: RedisSettings) -> None:
    """Until cancelled. A store that is away at the start is waited for; the kubelet is served meanwhile."""
    if not await anyio.Path(settings.kubelet_dir).is_dir():
        raise InvalidInput("agent.kubelet_dir", settings.kubelet_dir, "no such folder: mount the kubelet's device-plugins here")
    async with client_for(redis) as client, _spool(settings) as spool:
        store = RedisStore(client)
        epochs = EpochFile(Path(settings.state_dir) / "outbox-epoch")
        outbox = Outbox(settings.node_name, store.inbox(settings.node_name), spool, epochs.next, limit=settings.outbox_limit)
        agent = Agent(
            settings,
            backend_of(settings),
            outbox,
            store.feed(settings.node_name),
            store.leases,
            boot_id=this_boot(),
            version=version("hami"),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run)
            if settings.metrics_bind:
                await tasks.start(partial(serve, _endpoint(agent, outbox), bind=settings.metrics_bind))
            await run_agent(agent, anyio.Event())


@asynccontextmanager
async def _spool(settings: AgentSettings) -> AsyncIterator[Spool]:
    if not settings.sidecar_url:
        yield MemorySpool()
        return
    async with Client(settings.sidecar_url) as sidecar:
        yield SidecarSpool(sidecar)


def backend_of(settings: AgentSettings) -> DeviceBackend:
    """The device library that the settings name. Raises InvalidInput when the simulated one has no usable script."""
    if settings.backend == "simulated":
        from hami.nodeagent.backends.simulated import SimulatedBackend

        return SimulatedBackend(devices_in(settings.simulated_devices))
    from hami.nodeagent.backends.nvml import NvmlBackend

    return NvmlBackend(driver_root=settings.driver_root)


def devices_in(file: str) -> tuple[Device, ...]:
    """A JSON list of devices, as `node.registered` holds them."""
    try:
        return tuple(msgspec.json.decode(Path(file).read_bytes(), type=list[Device]))
    except OSError as error:
        raise InvalidInput("agent.simulated_devices", file, error.strerror or "cannot be read") from error
    except msgspec.MsgspecError as error:
        raise InvalidInput("agent.simulated_devices", file, str(error)) from error


def _endpoint(agent: Agent, outbox: Outbox) -> Starlette:
    metrics = Metrics()
    frozen = metrics.before(lambda: outbox.state, lambda: agent.board.offers)
    offers = {"devices": lambda: "" if agent.board.offers else "no device is offered to the kubelet yet"}
    return Starlette(routes=[*health_routes(Readiness(offers)), metrics_route(metrics.registry, before=frozen)])
