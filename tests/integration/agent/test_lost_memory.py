"""An agent whose record of its cards is lost, and cards that went while nobody watched: nothing is laundered."""

from pathlib import Path

import pytest

from hami.domain.device import Health
from hami.events.catalog.device import DeviceClearRequested, DeviceHealthChanged, FaultKind, FaultObserved
from hami.events.catalog.handshake import DIGEST, FORGOTTEN, HandshakeReported, HandshakeRequested, Held
from hami.events.catalog.node import NodeRegistered
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.state import COPY, FILE
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import LogVoice, agent_on, connected, connected_with, offered, settled
from tests.support.waiting import wait_until

CARDS = simulated_cards(2)
UUIDS = [card.uuid for card in CARDS]
BAD = {UUIDS[0]: Held(Health.UNHEALTHY, "XID 79 fallen off the bus")}


@pytest.fixture
async def struck(kubelet: SimKubelet, folder: Path, api: InMemoryApi) -> Path:
    """The folder of an agent that saw the first card fail, and is gone."""
    backend = SimulatedBackend(CARDS)
    async with agent_on(folder, backend):
        await offered(api, "20", "20")
        backend.strike(UUIDS[0], 79)
        await offered(api, "20", "10")
    return folder


def damage(folder: Path, *names: str) -> None:
    for name in names:
        (folder / "state" / name).write_bytes(b'{"cards": ')


@pytest.mark.parametrize("name", [FILE, COPY])
async def test_one_of_the_two_files_is_enough(struck: Path, kubelet: SimKubelet, name: str) -> None:
    damage(struck, name)
    async with agent_on(struck, SimulatedBackend(CARDS)) as world:
        await connected_with(kubelet, world, 10)
        await settled(world)
        [event] = world.publisher.of(NodeRegistered)
        assert [device.health for device in event.devices] == [Health.UNHEALTHY, Health.HEALTHY]
        await settled(world)
        assert world.publisher.of(HandshakeReported) == []


async def test_without_a_record_cards_are_unknown_until_the_log_has_told(struck: Path, kubelet: SimKubelet) -> None:
    damage(struck, FILE, COPY)
    for _ in range(2):  # a restart in between proves nothing
        async with agent_on(struck, SimulatedBackend(CARDS)) as world:
            await connected_with(kubelet, world, 0)
            await settled(world)
            [event] = world.publisher.of(NodeRegistered)
            assert {device.health for device in event.devices} == {Health.UNKNOWN}
            await settled(world)
            [report] = world.publisher.of(HandshakeReported)
            assert sorted(report.forgotten) == UUIDS
            await settled(world)
            assert world.publisher.of(DeviceHealthChanged) == []
    async with agent_on(struck, SimulatedBackend(CARDS)) as world:
        await connected_with(kubelet, world, 0)
        await wait_until(lambda: world.agent.book.read, "the feed to be read")
        await LogVoice(world.store).say(HandshakeRequested(nonce="n-1", why=FORGOTTEN, held=BAD))
        await connected_with(kubelet, world, 10)
        await settled(world)
        told = {event.device: (event.now, event.reason) for event in world.publisher.of(DeviceHealthChanged)}
        assert told == {UUIDS[0]: (Health.UNHEALTHY, BAD[UUIDS[0]].reason), UUIDS[1]: (Health.HEALTHY, "")}
        await settled(world)
        answer = world.publisher.of(HandshakeReported)[-1]
        assert (answer.forgotten, answer.health) == ((), {UUIDS[0]: Health.UNHEALTHY})
    async with agent_on(struck, SimulatedBackend(CARDS)) as again:
        await connected_with(kubelet, again, 10)
        await settled(again)
        assert len(again.publisher.of(HandshakeReported)) == 0


async def test_a_question_of_an_earlier_life_is_no_word_on_this_one(struck: Path, kubelet: SimKubelet) -> None:
    """It was asked before the log had heard what the life in between reported."""
    damage(struck, FILE, COPY)
    async with agent_on(struck, SimulatedBackend(CARDS)) as world:
        store = world.store
        await connected_with(kubelet, world, 0)
    await LogVoice(store).say(HandshakeRequested(nonce="n-1", why="periodic", held={}))
    async with agent_on(struck, SimulatedBackend(CARDS), store=store) as again:
        await connected_with(kubelet, again, 0)
        await wait_until(lambda: again.agent.book.read, "the feed to be read")
        assert sorted(again.agent.health.forgotten) == UUIDS


async def test_an_operators_word_makes_a_forgotten_card_good(struck: Path, kubelet: SimKubelet) -> None:
    damage(struck, FILE, COPY)
    async with agent_on(struck, SimulatedBackend(CARDS)) as world:
        await connected_with(kubelet, world, 0)
        await LogVoice(world.store).say(DeviceClearRequested(device=UUIDS[1], actor="kim", reason="tested"))
        await connected_with(kubelet, world, 10)


async def test_a_lost_folder_takes_the_logs_word_where_it_is_worse(
    kubelet: SimKubelet, folder: Path, backend: SimulatedBackend
) -> None:
    async with agent_on(folder, backend) as world:
        await connected(kubelet, world)
        await wait_until(lambda: world.agent.book.read, "the feed to be read")
        await LogVoice(world.store).say(HandshakeRequested(nonce="n-1", why=DIGEST, devices=tuple(BAD), held=BAD))
        await connected_with(kubelet, world, 10)
        await settled(world)
        assert world.publisher.of(DeviceHealthChanged)[-1].now is Health.UNHEALTHY
        await LogVoice(world.store, seq=1).say(HandshakeRequested(nonce="n-2", why=DIGEST, held={UUIDS[1]: BAD[UUIDS[0]]}))
        await wait_until(lambda: len(world.publisher.of(HandshakeReported)) == 2, "both answers")
        assert world.agent.health.health_of(UUIDS[1]) is Health.HEALTHY, "by then the node has a record of its own"


async def test_a_card_that_went_while_the_agent_was_down_is_a_fault_and_stays_in_the_set(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi
) -> None:
    async with agent_on(folder, SimulatedBackend(CARDS)):
        await offered(api, "20", "20")
    async with agent_on(folder, SimulatedBackend(CARDS[1:])) as world:
        await connected_with(kubelet, world, 10)
        await settled(world)
        [fault] = world.publisher.of(FaultObserved)
        assert (fault.device, fault.kind, fault.detail) == (UUIDS[0], FaultKind.GPU_LOST, "gpu-lost: no such card")
        await settled(world)
        [changed] = world.publisher.of(DeviceHealthChanged)
        assert (changed.device, changed.now) == (UUIDS[0], Health.UNHEALTHY)
        await settled(world)
        [event] = world.publisher.of(NodeRegistered)
        assert [(each.uuid, each.health) for each in event.devices] == [
            (UUIDS[0], Health.UNHEALTHY),
            (UUIDS[1], Health.HEALTHY),
        ]


async def test_a_missing_card_leaves_the_set_when_an_operator_says_that_it_is_gone(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    async with agent_on(folder, backend) as world:
        await offered(api, "20", "20")
        backend.lose(UUIDS[0])
        await offered(api, "20", "10")
        await LogVoice(world.store).say(DeviceClearRequested(device=UUIDS[0], actor="kim", reason="card taken out"))
        await offered(api, "10", "10")
        await settled(world)
        first, second = world.publisher.of(NodeRegistered)
        assert [[each.uuid for each in event.devices] for event in (first, second)] == [UUIDS, UUIDS[1:]]
        backend.restore(UUIDS[0])
        await wait_until(lambda: len(world.publisher.of(NodeRegistered)) == 3, "a card that is put in again")
    async with agent_on(folder, SimulatedBackend(CARDS)) as again:
        await wait_until(lambda: again.publisher.of(NodeRegistered), "registration")
        await settled(again)
        assert again.publisher.of(FaultObserved) == []
