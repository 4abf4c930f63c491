"""An agent on a simulated kubelet, with a log in memory; everything on real sockets."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec

from hami.config import AgentSettings
from hami.domain.allocation import ContainerShares, DeviceShare, PodOwner, Reservation
from hami.domain.errors import HamiError, StoreUnavailable
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, EpochMs, MiB
from hami.events.catalog.union import Event
from hami.events.codec import seal
from hami.events.envelope import Envelope
from hami.events.log import Draft, NodeFeed
from hami.events.memory import MemoryLeases, MemoryStore
from hami.events.outbox import OutboxState
from hami.nodeagent.announce import NodeObject
from hami.nodeagent.app import Agent, AgentTiming, run_agent
from hami.nodeagent.backends.base import MigBackend
from hami.nodeagent.health import HealthTiming
from hami.nodeagent.kubelet import LinkTiming
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.plugins import RESOURCE
from tests.support.waiting import wait_until

NODE = "node-1"
E = TypeVar("E")

QUICK = AgentTiming(
    inventory_s=0.05,
    delivery_s=0.05,
    open_retry_s=0.05,
    rivals_s=0.05,
    health=HealthTiming(wait_s=0.2, poll_s=0.05, retry_s=0.05),
    link=LinkTiming(poll_s=0.02, register_timeout_s=2.0, back_off_s=0.02, back_off_max_s=0.1, silence_s=0.5),
)


class RecordingPublisher:
    """Implements hami.nodeagent.ports.Publisher: keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[tuple[Event, str]] = []
        self.resent: list[tuple[int, int]] = []
        self.state = OutboxState(epoch=7, backlog=0, dropped=0, delivered=0, stuck_for_s=0.0, idle=True)

    def resend(self, epoch: int, seq: int) -> None:
        self.resent.append((epoch, seq))

    def publish(self, event: Event, *, subject: str = "") -> None:
        self.events.append((event, subject))

    def of(self, kind: type[E]) -> list[E]:
        return [event for event, _ in self.events if isinstance(event, kind)]


class LogVoice:
    """The control plane's side of the node's feed."""

    def __init__(self, store: MemoryStore, *, seq: int = 0) -> None:
        self._store, self._seq = store, seq

    async def say(self, event: Event) -> None:
        self._seq += 1
        draft = Draft(event=event, node=NODE)
        envelope = seal(draft, producer="control", epoch=1, seq=self._seq, occurred_ms=EpochMs(0))
        await self._store.log.append([envelope], [()], feeds=[True])


class _FeedAway:
    """Implements hami.events.log.NodeFeed."""

    def __init__(self, why: HamiError) -> None:
        self._why = why

    async def tail(self, after: str) -> AsyncIterator[Sequence[tuple[str, Envelope]]]:
        await anyio.lowlevel.checkpoint()
        raise self._why
        yield ()


class _LeasesAway(MemoryLeases):
    def __init__(self, why: HamiError) -> None:
        super().__init__()
        self._why = why

    async def keep(self, name: str, value: str, *, ttl_ms: int) -> None:
        raise self._why


class StoreAway:
    """The agent's side of a store that never answers, or that refuses for the reason given."""

    def __init__(self, why: HamiError | None = None) -> None:
        self._why = why or StoreUnavailable()
        self.leases = _LeasesAway(self._why)

    def feed(self, node: str) -> NodeFeed:
        return _FeedAway(self._why)


class World(msgspec.Struct):
    """One agent and what it can be seen by. `publisher` and `store` outlive the agent, as `folder` does."""

    folder: Path
    backend: MigBackend
    publisher: RecordingPublisher
    store: MemoryStore
    agent: Agent


def settings_for(folder: Path) -> AgentSettings:
    return AgentSettings(
        node_name=NODE,
        backend="simulated",
        kubelet_dir=str(folder / "device-plugins"),
        pod_resources_socket=str(folder / "pod-resources/kubelet.sock"),
        state_dir=str(folder / "state"),
        hook_path=str(folder / "hooks"),
        lease_every_s=0.05,
    )


@asynccontextmanager
async def agent_on(
    folder: Path,
    backend: MigBackend,
    *,
    store: MemoryStore | StoreAway | None = None,
    boot_id: str = "boot-1",
    settings: AgentSettings | None = None,
    timing: AgentTiming = QUICK,
    node_object: NodeObject | None = None,
) -> AsyncIterator[World]:
    publisher, log = RecordingPublisher(), store or MemoryStore()
    agent = Agent(
        settings or settings_for(folder),
        backend,
        publisher,
        log.feed(NODE),
        log.leases,
        node_uid="uid-of-node",
        boot_id=boot_id,
        timing=timing,
        node_object=node_object,
    )
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_agent, agent, stop)
        kept = log if isinstance(log, MemoryStore) else MemoryStore()
        yield World(folder=folder, backend=backend, publisher=publisher, store=kept, agent=agent)
        stop.set()


def reservation(uid: str, uuids: Sequence[str], *, name: str = "r-1", container: str = "main", pod: str = "pod") -> Reservation:
    shares = tuple(
        DeviceShare(vendor="NVIDIA", uuid=uuid, memory=MiB(1000), cores=CorePercent(10), index=at)
        for at, uuid in enumerate(uuids)
    )
    return Reservation(
        id=name,
        owner=PodOwner(uid=uid, namespace="default", name=pod),
        node=NODE,
        containers=(ContainerShares(name=container, kind=ContainerKind.APP, shares=shares),),
        scheduler="s",
        deadline_ms=EpochMs(0),
    )


async def offered(api: InMemoryApi, capacity: str, allocatable: str) -> None:
    def seen() -> bool:
        status = api.nodes.get("node-1", {})
        return (status.get("capacity", {}).get(RESOURCE), status.get("allocatable", {}).get(RESOURCE)) == (
            capacity,
            allocatable,
        )

    await wait_until(seen, f"{capacity} devices, {allocatable} allocatable")


async def connected(kubelet: SimKubelet, world: World) -> None:
    await connected_with(kubelet, world, 20)


async def connected_with(kubelet: SimKubelet, world: World, healthy: int) -> None:
    """The agent of this life is listened to, whatever the node object still says of an earlier one."""

    def seen() -> bool:
        return bool(world.agent.plugin.streams) and kubelet.books.capacity().get(RESOURCE) == (20, healthy)

    await wait_until(seen, "the kubelet to listen to this agent")


async def settled(world: World) -> None:
    """The kubelet is told before anybody else: what was published with that is out, and what was remembered is on disk."""
    await wait_until(lambda: world.agent.desk.empty, "the agent's desk to be empty")


async def running(api: InMemoryApi, name: str) -> None:
    await wait_until(lambda: api.status(name).get("phase") == "Running", f"{name} to run")
