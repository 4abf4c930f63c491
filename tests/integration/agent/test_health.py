"""Faults on a running agent: what the kubelet, the log and the next life of the agent are told."""

from pathlib import Path

import msgspec

from hami.domain.device import Health
from hami.domain.digest import device_set_digest
from hami.events.catalog.device import DeviceClearRequested, DeviceHealthChanged, FaultKind, FaultObserved
from hami.events.catalog.handshake import DIGEST, HandshakeReported, HandshakeRequested
from hami.events.catalog.node import NodeRegistered
from hami.events.memory import MemoryStore
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.decide.faults import Counters, Fault
from hami.nodeagent.decide.faults import FaultKind as Seen
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import LogVoice, World, agent_on, connected, connected_with, offered, settled
from tests.support.waiting import wait_until

UUIDS = [card.uuid for card in simulated_cards(2)]


async def test_a_fatal_xid_reaches_the_kubelet_and_the_log(world: World, backend: SimulatedBackend, api: InMemoryApi) -> None:
    backend.strike(UUIDS[0], 79)
    await offered(api, "20", "10")
    await settled(world)
    [changed] = world.publisher.of(DeviceHealthChanged)
    assert (changed.device, changed.was, changed.now) == (UUIDS[0], Health.HEALTHY, Health.UNHEALTHY)
    assert changed.reason.startswith("XID 79")
    await settled(world)
    assert [(event.kind, event.code) for event in world.publisher.of(FaultObserved)] == [(FaultKind.XID, 79)]


async def test_a_fault_of_the_machine_takes_every_card(world: World, backend: SimulatedBackend, api: InMemoryApi) -> None:
    backend.strike(UUIDS[0], 151)
    await offered(api, "20", "0")
    await settled(world)
    assert {event.device for event in world.publisher.of(DeviceHealthChanged)} == set(UUIDS)


async def test_an_application_error_is_on_record_and_changes_nothing(
    world: World, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    for _ in range(3):
        backend.strike(UUIDS[0], 13)
    backend.strike(UUIDS[1], 31)
    await wait_until(lambda: len(world.publisher.of(FaultObserved)) == 2, "one record for each burst")
    await settled(world)
    assert world.publisher.of(DeviceHealthChanged) == []
    await offered(api, "20", "20")


async def test_a_fault_that_names_no_card_condemns_none(world: World, backend: SimulatedBackend, api: InMemoryApi) -> None:
    backend.fault(Fault(uuid="", kind=Seen.XID, code=79))
    await wait_until(lambda: world.publisher.of(FaultObserved), "a record")
    await settled(world)
    assert world.publisher.of(DeviceHealthChanged) == []
    await offered(api, "20", "20")


async def test_a_lost_card_stays_in_the_set_and_takes_no_other_with_it(
    world: World, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    backend.lose(UUIDS[1])
    await offered(api, "20", "10")
    await settled(world)
    assert {event.device for event in world.publisher.of(DeviceHealthChanged)} == {UUIDS[1]}
    assert len(world.publisher.of(NodeRegistered)) == 1


async def test_a_restart_of_the_agent_launders_no_fault(kubelet: SimKubelet, folder: Path, api: InMemoryApi) -> None:
    cards = simulated_cards(2)
    first = SimulatedBackend(cards)
    async with agent_on(folder, first):
        await offered(api, "20", "20")
        first.strike(UUIDS[0], 79)
        await offered(api, "20", "10")
    async with agent_on(folder, SimulatedBackend(cards)) as again:
        await wait_until(lambda: again.agent.plugin.streams, "the kubelet to listen to this agent")
        await offered(api, "20", "10")
        await settled(again)
        [event] = again.publisher.of(NodeRegistered)
        assert [device.health for device in event.devices] == [Health.UNHEALTHY, Health.HEALTHY]
        await settled(again)
        assert again.publisher.of(DeviceHealthChanged) == []


async def test_a_library_that_stops_answering_makes_cards_unknown_until_it_answers(
    world: World, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    backend.break_library("driver gone")
    await offered(api, "20", "0")
    await settled(world)
    assert {event.now for event in world.publisher.of(DeviceHealthChanged)} == {Health.UNKNOWN}
    backend.break_library("")
    await offered(api, "20", "20")
    await settled(world)
    assert [event.now for event in world.publisher.of(DeviceHealthChanged)][-2:] == [Health.HEALTHY, Health.HEALTHY]


async def test_a_driver_that_comes_late_is_waited_for(
    kubelet: SimKubelet, folder: Path, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    backend.break_library("not installed yet")
    async with agent_on(folder, backend) as world:
        await settled(world)
        assert world.publisher.of(NodeRegistered) == []
        backend.break_library("")
        await offered(api, "20", "20")


async def test_uncorrected_errors_are_seen_without_any_xid_and_survive_a_restart(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    backend.count(UUIDS[0], Counters(uncorrected=2, remap_pending=False))
    async with agent_on(folder, backend) as world:
        await wait_until(lambda: world.publisher.of(FaultObserved), "the growth")
        await settled(world)
        [event] = world.publisher.of(FaultObserved)
        assert (event.device, event.kind, event.code) == (UUIDS[0], FaultKind.ECC, 2)
        await settled(world)
        [changed] = world.publisher.of(DeviceHealthChanged)
        assert (changed.now, changed.reason) == (Health.SUSPECT, "uncorrected ECC errors")
    async with agent_on(folder, backend) as again:
        await connected(kubelet, again)
        backend.count(UUIDS[0], Counters(uncorrected=5, remap_pending=False))
        backend.count(UUIDS[1], Counters(uncorrected=1, remap_pending=False))
        await wait_until(lambda: again.publisher.of(FaultObserved), "the other card's growth")
        await settled(again)
        assert UUIDS[1] in {event.device for event in again.publisher.of(FaultObserved)}
        assert all(event.code != 5 for event in again.publisher.of(FaultObserved))


async def test_a_link_fault_makes_linked_cards_suspect_and_no_other(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi
) -> None:
    cards = list(simulated_cards(3))
    cards[1] = msgspec.structs.replace(cards[1], pair_scores={cards[0].uuid: 110})
    backend = SimulatedBackend(tuple(cards))
    async with agent_on(folder, backend) as world:
        await offered(api, "30", "30")
        backend.strike(cards[0].uuid, 74)
        await offered(api, "30", "20")
        await wait_until(lambda: len(world.publisher.of(DeviceHealthChanged)) == 2, "both ends of the link")
        await settled(world)
        told = {event.device: event.now for event in world.publisher.of(DeviceHealthChanged)}
        assert told == {cards[0].uuid: Health.UNHEALTHY, cards[1].uuid: Health.SUSPECT}
        await settled(world)
        assert [event.device for event in world.publisher.of(FaultObserved)] == [cards[0].uuid]


async def test_a_library_that_hangs_after_a_firmware_fault_takes_the_node(
    world: World, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    backend.strike(UUIDS[0], 119)
    await offered(api, "20", "10")
    backend.break_library("no answer")
    await offered(api, "20", "0")
    backend.break_library("")
    await wait_until(lambda: world.agent.health.health_of(UUIDS[1]) is Health.UNHEALTHY, "the other card to stay down")
    await settled(world)
    assert any("hangs since" in event.detail for event in world.publisher.of(FaultObserved))


async def test_an_unmonitored_card_is_told_once_and_stays_offered(
    kubelet: SimKubelet, folder: Path, backend: SimulatedBackend, api: InMemoryApi
) -> None:
    backend.silence(UUIDS[0], "not supported")
    async with agent_on(folder, backend) as world:
        await offered(api, "20", "20")
        await wait_until(lambda: world.publisher.of(FaultObserved), "the record")
        await settled(world)
        [event] = world.publisher.of(FaultObserved)
        assert (event.device, event.kind) == (UUIDS[0], FaultKind.UNMONITORED)


async def test_a_log_that_has_it_differently_is_told_the_set_and_the_health_again(
    world: World, backend: SimulatedBackend
) -> None:
    backend.strike(UUIDS[0], 79)
    await wait_until(lambda: world.publisher.of(DeviceHealthChanged), "the fault")
    await LogVoice(world.store).say(HandshakeRequested(nonce="n-1", why=DIGEST, devices=(UUIDS[0],)))
    await wait_until(lambda: world.publisher.of(HandshakeReported), "the answer")
    await settled(world)
    first, second = world.publisher.of(NodeRegistered)
    assert device_set_digest(first.devices) == device_set_digest(second.devices)
    assert [device.health for device in second.devices] == [Health.UNHEALTHY, Health.HEALTHY]
    await settled(world)
    again = world.publisher.of(DeviceHealthChanged)[-1]
    assert (again.device, again.now) == (UUIDS[0], Health.UNHEALTHY)
    assert again.reason.startswith("XID 79")
    await settled(world)
    [answer] = world.publisher.of(HandshakeReported)
    assert (answer.vendor, answer.health) == ("NVIDIA", {UUIDS[0]: Health.UNHEALTHY})
    await settled(world)
    kinds = [type(event) for event, _ in world.publisher.events]
    assert kinds[-1] is HandshakeReported


async def test_an_operators_word_clears_a_fault_once_and_outlives_a_restart(
    kubelet: SimKubelet, folder: Path, api: InMemoryApi, backend: SimulatedBackend
) -> None:
    store = MemoryStore()
    voice = LogVoice(store)
    async with agent_on(folder, backend, store=store) as world:
        await offered(api, "20", "20")
        backend.strike(UUIDS[0], 54)
        await offered(api, "20", "10")
        await voice.say(DeviceClearRequested(device=UUIDS[0], actor="kim", reason="power supply replaced"))
        await offered(api, "20", "20")
        await settled(world)
        cleared = world.publisher.of(DeviceHealthChanged)[-1]
        assert (cleared.was, cleared.now, cleared.actor, cleared.reason) == (
            Health.UNHEALTHY,
            Health.HEALTHY,
            "kim",
            "power supply replaced",
        )
        backend.strike(UUIDS[0], 54)
        await offered(api, "20", "10")
    async with agent_on(folder, backend, store=store) as again:
        await connected_with(kubelet, again, 10)
        await voice.say(DeviceClearRequested(device=UUIDS[1], actor="kim", reason="for nothing"))
        await wait_until(lambda: again.publisher.of(DeviceHealthChanged), "an answer, changed or not")
        await settled(again)
        [answer] = again.publisher.of(DeviceHealthChanged)
        assert (answer.device, answer.was, answer.now) == (UUIDS[1], Health.HEALTHY, Health.HEALTHY)
        await offered(api, "20", "10")
