"""A node whose cards are cut by MIG, between a real store, the simulated API server and a kubelet."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from hami.config import AgentSettings
from hami.events.catalog.union import Event
from hami.events.epochs import EpochFile
from hami.events.outbox import MemorySpool, Outbox
from hami.kube.kinds import NODES
from hami.nodeagent.app import Agent
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.mig import MigTiming
from hami.sim.kubeapi import ClusterAccess
from hami.sim.kubelet.node import SimKubelet
from hami.sim.kubelet.pods import KubeletTiming
from hami.vendors import identity
from tests.support.agents import NODE, QUICK, settings_for
from tests.support.objects import node, pod
from tests.support.plugins import RESOURCE
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until

CUT = msgspec.structs.replace(QUICK, gate_s=0.02, mig=MigTiming(look_s=0.2, retry_s=0.02))
ONE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}


def cut_settings(folder: Path, **more: Any) -> AgentSettings:
    return msgspec.structs.replace(settings_for(folder), mode="mig", **more)


def backend_with(count: int = 1, mode: str = "enabled") -> SimulatedBackend:
    return SimulatedBackend(simulated_cards(count, mig=mode))


class CutNode:
    """The node `node-1` of a world: its kubelet, its cards, and the agent's lives."""

    def __init__(self, world: World, uid: str, folder: Path, backend: SimulatedBackend, kubelet: SimKubelet) -> None:
        self.world, self.uid, self.folder, self.backend, self.kubelet = world, uid, folder, backend, kubelet

    @asynccontextmanager
    async def agent(self, settings: AgentSettings | None = None) -> AsyncIterator[Agent]:
        """One life of the agent, on the real store."""
        store = self.world.store
        outbox = Outbox(NODE, store.inbox(NODE), MemorySpool(), EpochFile(self.folder / "epoch").next)
        agent = Agent(
            settings or cut_settings(self.folder),
            self.backend,
            outbox,
            store.feed(NODE),
            store.leases,
            node_uid=self.uid,
            boot_id="boot",
            timing=CUT,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run)
            tasks.start_soon(agent.run)
            yield agent
            tasks.cancel_scope.cancel()

    async def fits(self, caller: Caller, made: Obj) -> None:
        """The kubelet must know the resource first: it starts a pod that asks for an unknown one without asking anybody."""
        await wait_until(lambda: self.kubelet.books.capacity().get(RESOURCE, (0, 0))[1], "devices at the kubelet")

        async def chosen() -> bool:
            return bool((await caller.filter(made, [NODE]))["NodeNames"] == [NODE])

        await wait_until(chosen, f"{made['metadata']['name']} to fit")

    async def placed(self, caller: Caller, name: str, limits: dict[str, str] | None = None) -> Obj:
        made = await self.pod(name, limits)
        await self.fits(caller, made)
        assert await caller.bind(made, NODE) == ""
        return made

    async def pod(self, name: str, limits: dict[str, str] | None = None) -> Obj:
        """As the webhook would have left it."""
        wanted = pod(name, namespace="default", limits=limits or ONE)
        path = identity.field_path(identity.visible_key("main"))
        wanted["spec"]["containers"][0]["env"] = [
            {"name": identity.VISIBLE_ENV, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        ]
        return await self.world.kube.create_pod(wanted)

    async def visible(self, name: str) -> tuple[str, ...]:
        """What the running container sees."""
        await wait_until(lambda: self.kubelet.runtime.view(name, "main"), f"{name} to run")
        view = self.kubelet.runtime.view(name, "main")
        assert view is not None
        return view.visible_devices

    async def gone(self, name: str) -> None:
        await self.world.kube.delete_pod("default", name, grace=0)

    async def instances(self, count: int, what: Callable[[Any], bool] = lambda _: True) -> Sequence[Any]:
        def there() -> bool:
            return len([each for each in self.backend.mig.instances if what(each)]) == count

        await wait_until(there, f"{count} instances, not {self.backend.mig.instances}")
        return self.backend.mig.instances

    async def told(self, kind: type[Event], count: int = 1) -> list[Any]:
        return await self.world.seen(kind, count)


@asynccontextmanager
async def cut_node(world: World, folder: Path, backend: SimulatedBackend) -> AsyncIterator[CutNode]:
    made = await world.kube.create(NODES, node(NODE, capacity={"pods": "110"}))
    timing = KubeletTiming(status_every_s=0.02, dial_timeout_s=0.2)
    kubelet = SimKubelet(NODE, folder, ClusterAccess(world.kube), timing=timing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.run)
        await kubelet.started()
        yield CutNode(world, made["metadata"]["uid"], folder, backend, kubelet)
        tasks.cancel_scope.cancel()
