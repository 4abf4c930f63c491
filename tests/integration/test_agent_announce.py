"""HAMi's register annotation: on a real API server's terms, written when it changes and not otherwise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from hami.domain.device import Device
from hami.kube.client import KubeClient
from hami.kube.kinds import NODES
from hami.nodeagent.announce import Announcer
from hami.nodeagent.backends.simulated import simulated_cards
from hami.nodeagent.board import Board, Offer
from hami.sim.apiserver.app import RunningServer
from hami.sim.apiserver.faults import Fault
from hami.vendors.registers import decode_pair_scores, decode_register
from tests.support.objects import node
from tests.support.waiting import wait_until

REGISTER, SCORES = "hami.io/node-nvidia-register", "hami.io/node-nvidia-score"


class Told:
    """A device set and a board that show it."""

    def __init__(self) -> None:
        self.board = Board()
        self.devices: tuple[Device, ...] = ()

    def tell(self, *devices: Device) -> None:
        self.devices = devices
        self.board.show(Offer(uuid=each.uuid, slots=each.slots) for each in devices)
        self.board.again()


@asynccontextmanager
async def announcing(told: Told, api: KubeClient, *, scores: bool = False) -> AsyncIterator[Announcer]:
    announcer = Announcer("n1", api, told.board, lambda: told.devices, pair_scores=scores)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(announcer.run)
        yield announcer
        tasks.cancel_scope.cancel()


def annotations(sim: RunningServer) -> dict[str, Any]:
    [found] = sim.objects("nodes")
    return dict(found["metadata"].get("annotations") or {})


def version(sim: RunningServer) -> str:
    return str(sim.objects("nodes")[0]["metadata"]["resourceVersion"])


async def shown(sim: RunningServer, *health: bool) -> None:
    def there() -> bool:
        text = annotations(sim).get(REGISTER, "[]")
        return [each.health for each in decode_register(text)] == list(health)

    await wait_until(there, f"health {health} in the annotation")


async def test_it_is_written_once_and_again_on_change_only(sim: RunningServer, sim_client: KubeClient) -> None:
    await sim_client.create(NODES, node("n1"))
    told, cards = Told(), simulated_cards(2)
    async with announcing(told, sim_client) as announcer:
        told.tell(*cards)
        await shown(sim, True, True)
        first = version(sim)
        for _ in range(5):
            told.tell(*cards)
            await anyio.lowlevel.checkpoint()
        told.board.mark(cards[1].uuid, healthy=False)
        await shown(sim, True, False)
        await wait_until(lambda: announcer.writes == 2, "two writes")
        assert version(sim) != first
        assert SCORES not in annotations(sim)
    [one, _] = decode_register(annotations(sim)[REGISTER])
    assert (one.id, one.count, one.devmem, one.type, one.numa) == (cards[0].uuid, 1, 81920, cards[0].model, 0)


async def test_a_restart_writes_nothing_that_stands_there(sim: RunningServer, sim_client: KubeClient) -> None:
    await sim_client.create(NODES, node("n1"))
    told, cards = Told(), simulated_cards(2)
    told.tell(*cards)
    async with announcing(told, sim_client):
        await shown(sim, True, True)
    before = version(sim)
    async with announcing(told, sim_client) as again:
        told.board.mark(cards[0].uuid, healthy=False)
        await shown(sim, False, True)
        await wait_until(lambda: again.writes == 1, "one write")
    assert version(sim) != before


async def test_what_the_api_did_not_acknowledge_is_written_again(sim: RunningServer, sim_client: KubeClient) -> None:
    await sim_client.create(NODES, node("n1"))
    fault = sim.faults.add(Fault(path="/api/v1/nodes", status=503, times=2))
    told = Told()
    async with announcing(told, sim_client) as announcer:
        told.tell(*simulated_cards(1))
        await shown(sim, True)
        await wait_until(lambda: announcer.writes == 1, "one write")
    assert fault.hits == 2


async def test_pair_scores_go_along_when_they_are_asked_for(sim: RunningServer, sim_client: KubeClient) -> None:
    await sim_client.create(NODES, node("n1"))
    one, other = simulated_cards(2)
    one = msgspec.structs.replace(one, pair_scores={other.uuid: 110}, numa=-1)
    told = Told()
    async with announcing(told, sim_client, scores=True):
        told.tell(one, other)
        await shown(sim, True, True)
    assert decode_pair_scores(annotations(sim)[SCORES]) == {one.uuid: {other.uuid: 110}, other.uuid: {}}
    assert decode_register(annotations(sim)[REGISTER])[0].numa == 0
