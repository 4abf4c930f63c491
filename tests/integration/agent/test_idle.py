"""What a node costs when nothing happens on it: heartbeats to the store, and nothing to the Kubernetes API."""

from pathlib import Path

from hami.events.memory import MemoryLeases, MemoryStore
from hami.kube.client import KubeClient
from hami.kube.kinds import NODES
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.sim.apiserver.app import RunningServer
from hami.sim.apiserver.faults import Fault
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import NODE, agent_on, offered
from tests.support.data import load_json
from tests.support.objects import node
from tests.support.waiting import wait_until


class CountingLeases(MemoryLeases):
    renewals = 0

    async def keep(self, name: str, value: str, *, ttl_ms: int) -> None:
        self.renewals += 1
        await super().keep(name, value, ttl_ms=ttl_ms)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.counted = CountingLeases()
        self.leases = self.counted


async def test_scale_01_heartbeats_write_no_node_and_list_no_pod(
    kubelet: SimKubelet,
    folder: Path,
    backend: SimulatedBackend,
    api: InMemoryApi,
    sim: RunningServer,
    sim_client: KubeClient,
) -> None:
    """A node's share of the reported case: so many heartbeats, and its part of the writes is one for each change."""
    case = next(each for each in load_json("pain-cases.json") if each["id"] == "scale-01-no-idle-writes")
    heartbeats = case["then"]["heartbeats_to_stream"] // case["given"]["nodes"]
    await sim_client.create(NODES, node(NODE))
    written = sim.faults.add(Fault(method="PATCH", path="/nodes/"))
    other = [sim.faults.add(Fault(method=method, path="/nodes")) for method in ("PUT", "POST")]
    listed = sim.faults.add(Fault(path="/pods"))
    store = CountingStore()
    async with agent_on(folder, backend, store=store, node_object=sim_client):
        await offered(api, "20", "20")
        await wait_until(lambda: written.hits == 1, "the registration")
        before = store.counted.renewals
        await wait_until(lambda: store.counted.renewals >= before + heartbeats, "the heartbeats")
        assert written.hits == 1
        backend.strike(simulated_cards(2)[0].uuid, 79)
        await wait_until(lambda: written.hits == 1 + case["then"]["node_object_writes_max"], "the change")
        before = store.counted.renewals
        await wait_until(lambda: store.counted.renewals >= before + heartbeats, "more heartbeats")
    assert written.hits == 1 + case["given"]["state_changes"]
    assert [each.hits for each in other] == [0, 0]
    assert listed.hits == case["then"]["pod_list_calls_from_agents"]
