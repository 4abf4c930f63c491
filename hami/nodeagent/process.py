"""`hami agent`: settings in, one node's agent on real Redis out."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from starlette.applications import Starlette

from hami.config import AgentSettings, RedisSettings
from hami.domain.errors import InvalidInput
from hami.events.epochs import EpochFile
from hami.events.outbox import MemorySpool, Outbox, Spool
from hami.events.redis.client import Client
from hami.events.redis.spool import SidecarSpool
from hami.events.redis.store import RedisStore
from hami.events.undelivered import NoteFile
from hami.nodeagent.announce import NodeObject
from hami.nodeagent.app import Agent, this_boot
from hami.nodeagent.backends.base import MigBackend
from hami.nodeagent.backends.scripted import ScriptedBackend
from hami.nodeagent.decide.listing import IMEX_FOLDER
from hami.nodeagent.identity import learn_uid
from hami.nodeagent.metrics import Metrics, Seen
from hami.nodeagent.settings import require_node_name
from hami.telemetry import get_logger
from hami.web.health import Readiness, health_routes, metrics_route
from hami.web.server import serve

log = get_logger("agent")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def run_agent(
    settings: AgentSettings,
    redis: RedisSettings,
    *,
    version: str = "",
    warnings: Sequence[str] = (),
) -> None:
    """Until cancelled. The store may be away at the start, and for hours: the kubelet is served all the same."""
    require_node_name(settings)
    for warning in warnings:
        log.warning("setting without effect", setting=warning)
    if not await anyio.Path(settings.kubelet_dir).is_dir():
        raise InvalidInput("agent.kubelet_dir", settings.kubelet_dir, "no such folder: mount the kubelet's device-plugins here")
    _require_channel(settings)
    backend = backend_of(settings)
    central = _client(redis, redis.url)
    sidecar = _client(redis, settings.sidecar_url, setting="agent.sidecar_url") if settings.sidecar_url else None
    spool: Spool = MemorySpool() if sidecar is None else SidecarSpool(sidecar)
    store = RedisStore(central)
    epochs = EpochFile(Path(settings.state_dir) / "epoch")
    note = NoteFile(Path(settings.state_dir) / "undelivered.json")
    inbox = store.inbox(settings.node_name)
    outbox = Outbox(settings.node_name, inbox, spool, epochs.next, limit=settings.outbox_limit, note=note)
    try:
        async with _api(settings) as api, anyio.create_task_group() as tasks:
            agent = Agent(
                settings,
                backend,
                outbox,
                store.feed(settings.node_name),
                store.leases,
                node_uid=settings.node_uid,
                boot_id=this_boot(),
                version=version,
                node_object=api if settings.register_annotation else None,
            )
            if api is not None and not settings.node_uid:
                tasks.start_soon(learn_uid, settings.node_name, api, agent.registrar.node_is)
            tasks.start_soon(outbox.run)
            if isinstance(backend, ScriptedBackend):
                tasks.start_soon(backend.follow)
            if settings.metrics_bind:
                await tasks.start(
                    partial(serve, _endpoint(agent, outbox), bind=settings.metrics_bind, setting="agent.metrics_bind")
                )
            tasks.start_soon(agent.run)
    finally:
        for client in (central, sidecar):
            if client is not None:
                await client.close()


@asynccontextmanager
async def _api(settings: AgentSettings) -> AsyncIterator[NodeObject | None]:
    """The Kubernetes API, where there is one to be had: for the node's uid, and for whoever wants HAMi's annotations."""
    if not (settings.register_annotation or settings.kubeconfig or SERVICE_ACCOUNT.exists()):
        yield None
        return
    from hami.kube.client import KubeClient  # noqa: PLC0415 - a heavy import for some agents

    client = KubeClient.from_kubeconfig(settings.kubeconfig) if settings.kubeconfig else KubeClient.in_cluster()
    async with client as api:
        yield api


def _require_channel(settings: AgentSettings) -> None:
    channel = Path(f"{IMEX_FOLDER}/channel0")
    if settings.imex_required and settings.imex_channels and not channel.exists():
        raise InvalidInput("agent.imex_required", str(channel), "the IMEX channel has no device node on this machine")


def _endpoint(agent: Agent, outbox: Outbox) -> Starlette:
    metrics = Metrics(lambda: _seen(agent, outbox))
    checks = {
        "devices": lambda: "" if agent.board.offers else "no device is offered to the kubelet yet",
        "state": lambda: agent.memory.trouble,
        "kubelet": lambda: agent.rivals.trouble,
    }
    return Starlette(routes=[*health_routes(Readiness(checks)), metrics_route(metrics.registry, before=metrics.before)])


def _seen(agent: Agent, outbox: Outbox) -> Seen:
    answered = agent.feed.answered_at
    return Seen(
        outbox=outbox.state,
        health=agent.registrar.healths(),
        faults=agent.health.reports,
        handshake_age_s=None if answered is None else anyio.current_time() - answered,
        registered=agent.link.registered,
        registrations=agent.link.registrations,
        displaced=agent.rivals.found,
    )


def _client(redis: RedisSettings, url: str, *, setting: str = "redis.url") -> Client:
    return Client(
        url,
        partition=redis.partition,
        command_timeout_s=redis.command_timeout_s,
        block_s=redis.block_s,
        connect_timeout_s=redis.connect_timeout_s,
        setting=setting,
    )


def backend_of(settings: AgentSettings) -> MigBackend:
    """The device library that the settings name; not opened yet. Raises InvalidInput."""
    if settings.backend == "simulated":
        if not settings.simulated_devices:
            raise InvalidInput("agent.simulated_devices", "", "backend `simulated` needs a file of devices")
        return ScriptedBackend(Path(settings.simulated_devices))
    from hami.nodeagent.backends.nvml import NvmlBackend  # noqa: PLC0415 - loads NVML bindings only where they are used

    return NvmlBackend(driver_root=settings.driver_root)
