"""An operator changes MIG: the agent lets go of the cards, says for how long nobody looked, and looks again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.domain.device import Health
from hami.domain.errors import DeviceUnavailable
from hami.events.catalog.device import DeviceHealthChanged, HealthWatchPaused, HealthWatchResumed
from hami.events.catalog.node import NodeRegistered
from hami.nodeagent.backends.base import Inventory
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.decide.faults import Evidence, Fault
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import World, agent_on, connected, offered, running, settings_for, settled
from tests.support.mig import CUT
from tests.support.plugins import container, pod
from tests.support.waiting import wait_until

CARDS = simulated_cards(2, mig="enabled")
UUIDS = [card.uuid for card in CARDS]


class Watched(SimulatedBackend):
    """Says whether anybody holds the library, and fails whoever asks while nobody does."""

    def __init__(self) -> None:
        super().__init__(CARDS)
        self.is_open, self.trespasses, self.probed = False, 0, list[str]()

    async def open(self) -> None:
        await super().open()
        self.is_open = True

    async def close(self) -> None:
        await super().close()
        self.is_open = False

    async def inventory(self) -> Inventory:
        self._asked()
        return await super().inventory()

    async def wait_faults(self, timeout_s: float) -> tuple[Fault, ...]:
        self._asked()
        return await super().wait_faults(timeout_s)

    async def probe(self, uuid: str) -> tuple[Evidence, tuple[Fault, ...]]:
        self._asked()
        self.probed.append(uuid)
        return await super().probe(uuid)

    def _asked(self) -> None:
        if not self.is_open:
            self.trespasses += 1
            raise DeviceUnavailable("not open")


@pytest.fixture
def backend() -> Watched:
    return Watched()


@asynccontextmanager
async def life(folder: Path, backend: Watched, **more: Any) -> AsyncIterator[World]:
    timing = msgspec.structs.replace(CUT, **more)
    async with agent_on(folder, backend, timing=timing) as world:
        yield world


def lock(folder: Path) -> Path:
    return folder / "state/mig-apply.lock"


async def closed(folder: Path) -> None:
    lock(folder).touch()
    await cleared(folder)


async def cleared(folder: Path) -> None:
    await wait_until((folder / "state/mig-apply.lock.clear").exists, "the agent to let go")


async def opened(folder: Path, world: World) -> HealthWatchResumed:
    lock(folder).unlink()
    await wait_until(lambda: world.publisher.of(HealthWatchResumed), "the watch to go on")
    assert not (folder / "state/mig-apply.lock.clear").exists()
    [resumed] = world.publisher.of(HealthWatchResumed)
    return resumed


async def test_while_the_gate_is_closed_nobody_asks_the_cards(
    kubelet: SimKubelet, folder: Path, backend: Watched, api: InMemoryApi
) -> None:
    async with life(folder, backend) as world:
        await connected(kubelet, world)
        assert world.publisher.of(HealthWatchPaused) == []
        await closed(folder)
        await settled(world)
        assert (backend.is_open, [each.holder for each in world.publisher.of(HealthWatchPaused)]) == (False, ["mig-apply"])
        registrations = len(world.publisher.of(NodeRegistered))
        # The kubelet is served all the while.
        api.create(pod("meanwhile", container()), node="node-1")
        await running(api, "meanwhile")
        assert (backend.trespasses, backend.is_open) == (0, False)
        assert len(world.publisher.of(NodeRegistered)) == registrations
        resumed = await opened(folder, world)
        assert resumed.holder == "mig-apply"
        assert resumed.blind_ms > 0
        assert backend.is_open
        assert backend.trespasses == 0


async def test_every_card_is_asked_before_the_watch_is_said_to_go_on(
    kubelet: SimKubelet, folder: Path, backend: Watched
) -> None:
    async with life(folder, backend) as world:
        await connected(kubelet, world)
        await closed(folder)
        await settled(world)
        backend.probed.clear()
        backend.act(UUIDS[0], 1)
        await opened(folder, world)
        kinds = [type(event) for event, _ in world.publisher.events]
        assert kinds.index(DeviceHealthChanged) < kinds.index(HealthWatchResumed)
        assert backend.probed[:2] == UUIDS
        [changed] = world.publisher.of(DeviceHealthChanged)
        assert (changed.device, changed.now) == (UUIDS[0], Health.UNHEALTHY)


async def test_what_the_operator_changed_is_registered_before_the_watch_goes_on(
    kubelet: SimKubelet, folder: Path, backend: Watched
) -> None:
    async with life(folder, backend, inventory_s=60.0) as world:
        await connected(kubelet, world)
        await closed(folder)
        await settled(world)
        backend.lose(UUIDS[1])
        backend.restore(UUIDS[1])
        backend.mig.put(UUIDS[0], "1g.10gb", 6)
        await opened(folder, world)
        assert len(world.agent.registrar.pieces) == 1


async def test_an_agent_that_died_meanwhile_still_knows_for_how_long(
    kubelet: SimKubelet, folder: Path, backend: Watched
) -> None:
    async with life(folder, backend) as world:
        await connected(kubelet, world)
        await closed(folder)
        await settled(world)
        since = world.agent.memory.state.paused_ms
    lock(folder).unlink()
    async with life(folder, backend) as second:
        await wait_until(lambda: second.publisher.of(HealthWatchResumed), "the watch to go on")
        [resumed] = second.publisher.of(HealthWatchResumed)
        assert second.publisher.of(HealthWatchPaused) == []
        assert resumed.blind_ms > 0
        assert since > 0
        assert second.agent.memory.state.paused_ms == 0


async def test_an_agent_that_starts_at_a_closed_gate_waits(
    kubelet: SimKubelet, folder: Path, backend: Watched, api: InMemoryApi
) -> None:
    lock(folder).parent.mkdir()
    lock(folder).touch()
    async with life(folder, backend) as world:
        await cleared(folder)
        await settled(world)
        assert (backend.is_open, backend.trespasses) == (False, 0)
        assert world.publisher.of(NodeRegistered) == []
        await opened(folder, world)
        await offered(api, "20", "20")
        assert isinstance(world.publisher.events[0][0], HealthWatchPaused)


async def test_a_gate_that_is_somewhere_else(folder: Path, kubelet: SimKubelet, backend: Watched, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(settings_for(folder), mig_gate=str(tmp_path / "hold"))
    async with agent_on(folder, backend, settings=settings, timing=CUT) as world:
        await connected(kubelet, world)
        (tmp_path / "hold").touch()
        await wait_until((tmp_path / "hold.clear").exists, "the agent to let go")
        await settled(world)
        assert world.publisher.of(HealthWatchPaused)
