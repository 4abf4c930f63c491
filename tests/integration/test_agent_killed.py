"""An agent process killed with -9 at each step of its work: started again, node, log and kubelet agree."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from hami.domain.allocation import Phase
from hami.domain.cluster import ClusterSnapshot
from hami.domain.device import Health, MigPlacement, MigSlice
from hami.events.catalog.allocation import AllocationBound, AllocationPrepared, AllocationReleased, AllocationReserved
from hami.events.catalog.device import DeviceClearRequested, MigInstanceCreated
from hami.events.catalog.handshake import DIGEST, HandshakeReported, HandshakeRequested
from hami.events.catalog.union import Event
from hami.events.envelope import START
from hami.events.ingester import Ingester
from hami.events.log import Draft
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.nodeagent.backends.simulated import simulated_cards
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.scheduler.handshake import differences
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import NODE, reservation
from tests.support.cli import start_hami
from tests.support.plugins import RESOURCE, container, kubelet_on, pod, socket_folder
from tests.support.waiting import wait_until

UUIDS = [card.uuid for card in simulated_cards(2)]


class Life:
    """One process of the agent; its log is read as it comes, and the line `die_at` is its last."""

    def __init__(self, url: str, folder: Path, *, ordered: bool, mode: str, die_at: str) -> None:
        strategy = "cdi-cri" if ordered else "envvar"
        arguments = [
            *("--redis-url", url, "agent", "--node-name", NODE, "--backend", "simulated"),
            *("--simulated-devices", str(folder / "devices.json"), "--device-list-strategy", strategy),
            *("--kubelet-dir", str(folder / "device-plugins"), "--cdi-dir", str(folder / "cdi")),
            *("--pod-resources-socket", str(folder / "pod-resources/kubelet.sock")),
            *("--state-dir", str(folder / "state"), "--hook-path", str(folder / "hook"), "--mode", mode),
        ]
        self._process = start_hami(arguments)
        self._die_at = die_at
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            if self._die_at and self._die_at in line:
                self._process.kill()

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)
        self._reader.join(timeout=10)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class Node:
    """A kubelet, a log with its ingester, and the lives of one agent."""

    def __init__(self, url: str, folder: Path, store: RedisStore, writer: EventWriter, kubelet: SimKubelet) -> None:
        self._url, self.folder, self._store, self._writer, self.kubelet = url, folder, store, writer, kubelet
        self.ordered, self.mode = False, "hami-core"

    @asynccontextmanager
    async def life(self, *, die_at: str = "") -> AsyncIterator[Life]:
        life = Life(self._url, self.folder, ordered=self.ordered, mode=self.mode, die_at=die_at)
        try:
            yield life
        finally:
            await anyio.to_thread.run_sync(life.end)

    def strike(self, xid: int) -> None:
        self.act({"uuid": UUIDS[0], "xid": xid})

    def act(self, line: dict[str, object]) -> None:
        with (self.folder / "devices.json.faults").open("a") as file:
            file.write(msgspec.json.encode(line).decode() + "\n")

    @property
    def cuts(self) -> list[dict[str, object]]:
        """The MIG instances that there are, whoever lives."""
        file = self.folder / "devices.json.mig"
        found: list[dict[str, object]] = msgspec.json.decode(file.read_bytes())["instances"] if file.exists() else []
        return found

    async def say(self, event: Event) -> None:
        await self._writer.append([Draft(event=event, node=NODE)])

    async def state(self) -> ClusterSnapshot:
        state = new_cluster()
        for record in await self._store.log.read(START, limit=10_000):
            apply(state, record)
        return snapshot(state)

    async def events(self, kind: type[Event]) -> list[Event]:
        return [each.event for each in await self._store.log.read(START, limit=10_000) if isinstance(each.event, kind)]

    async def registered(self) -> None:
        async def there() -> bool:
            node = (await self.state()).nodes.get(NODE)
            return node is not None and len(node.devices) == 2

        await wait_until(there, "the node in the log", timeout=30)

    async def agrees(self) -> None:
        """As a scheduler does it: ask, compare, ask to tell again where something differs; then nothing may differ."""
        report = await self._asked("test")
        differs, devices = differences((await self.state()).nodes[NODE], report)
        if differs or devices:
            report = await self._asked(DIGEST, devices)
        assert differences((await self.state()).nodes[NODE], report) == (False, ())

    async def _asked(self, why: str, devices: tuple[str, ...] = ()) -> HandshakeReported:
        nonce = f"{why}-{len(await self.events(HandshakeRequested))}"
        await self.say(HandshakeRequested(nonce=nonce, why=why, devices=devices))
        answers: list[HandshakeReported] = []

        async def answered() -> bool:
            reports = await self.events(HandshakeReported)
            answers[:] = [each for each in reports if isinstance(each, HandshakeReported) and each.nonce == nonce]
            return bool(answers)

        await wait_until(answered, f"the answer to {why}", timeout=30)
        return answers[0]


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        (path / "devices.json").write_bytes(msgspec.json.encode({"devices": simulated_cards(2)}))
        hooks = path / "hook/vgpu"
        hooks.mkdir(parents=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (hooks / name).touch()
        yield path


@pytest.fixture
def api() -> InMemoryApi:
    return InMemoryApi()


@pytest.fixture
async def node(folder: Path, api: InMemoryApi, valkey_server: EmbeddedServer, valkey_client: Client) -> AsyncIterator[Node]:
    store = RedisStore(valkey_client, sweep_s=0.2)
    writer = EventWriter(store.log, "control")
    await writer.start()
    async with kubelet_on(folder, api) as kubelet, anyio.create_task_group() as tasks:
        tasks.start_soon(Ingester(store.log, store.inboxes, writer).run)
        yield Node(valkey_server.url, folder, store, writer, kubelet)
        tasks.cancel_scope.cancel()


async def healthy(node: Node, count: int) -> None:
    await wait_until(
        lambda: node.kubelet.books.capacity().get(RESOURCE) == (20, count), f"{count} devices at the kubelet", timeout=30
    )


async def dead(life: Life) -> None:
    await wait_until(lambda: life.dead, "the agent to die", timeout=30)


@pytest.mark.parametrize("step", ["agent starts", "registered with the cluster", "registrations"])
async def test_killed_while_it_registers(node: Node, step: str) -> None:
    async with node.life(die_at=step) as first:
        await dead(first)
    async with node.life():
        await node.registered()
        await healthy(node, 20)
        await node.agrees()
    known = (await node.state()).nodes[NODE].devices
    assert [(each.device.uuid, each.health) for each in known] == [(uuid, Health.HEALTHY) for uuid in UUIDS]


@pytest.mark.parametrize("step", ["health changed", "cleared by an operator"])
async def test_killed_while_it_deals_with_a_fault(node: Node, step: str) -> None:
    cleared = step.startswith("cleared")
    async with node.life(die_at=step) as first:
        await node.registered()
        await healthy(node, 20)
        node.strike(54)
        if cleared:
            await healthy(node, 10)
            await node.say(DeviceClearRequested(device=UUIDS[0], actor="kim", reason="replaced"))
        await dead(first)
    async with node.life():
        await healthy(node, 20 if cleared else 10)
        await node.agrees()
        known = {each.device.uuid: each.health for each in (await node.state()).nodes[NODE].devices}
        assert known[UUIDS[0]] is (Health.HEALTHY if cleared else Health.UNHEALTHY)
        assert known[UUIDS[1]] is Health.HEALTHY


@pytest.mark.parametrize("ordered", [False, True], ids=["identity", "ordered"])
async def test_killed_when_a_container_has_its_devices(node: Node, api: InMemoryApi, ordered: bool) -> None:
    node.ordered = ordered
    wanted = reservation("u-1", UUIDS[1:])
    async with node.life(die_at="container prepared") as first:
        await node.registered()
        await healthy(node, 20)
        await bind_and_create(node, api)
        await dead(first)
    async with node.life():
        await prepared(node, wanted.id)
        await node.agrees()
    told = await node.events(AllocationPrepared)
    assert {(each.reservation, each.container, each.difference) for each in told if isinstance(each, AllocationPrepared)} == {
        (wanted.id, "main", "")
    }


async def test_killed_between_the_answer_and_the_kubelets_books(node: Node, api: InMemoryApi) -> None:
    """Whatever the kubelet got: the pod runs with its own card, or is refused. It never runs with another's."""
    node.ordered = True
    async with node.life(die_at="Allocate answered") as first:
        await node.registered()
        await healthy(node, 20)
        await bind_and_create(node, api)
        await dead(first)
    phase = await wait_until(lambda: api.status("u-1").get("phase"), "the pod to be settled", timeout=30)
    async with node.life():
        await healthy(node, 20)
        if phase == "Failed":
            api.delete("u-1")
            again = pod("again", container())
            again["metadata"]["uid"] = "u-1"
            api.create(again, node="node-1")
        await prepared(node, "r-1")
        event = (await node.events(AllocationPrepared))[-1]
        assert isinstance(event, AllocationPrepared)
        assert event.difference == ""
        await node.agrees()


async def bind_and_create(node: Node, api: InMemoryApi) -> None:
    await node.say(AllocationReserved(reservation=reservation("u-1", UUIDS[1:])))
    await node.say(AllocationBound(reservation="r-1", owner_uid="u-1"))
    spec = pod("u-1", container())
    spec["metadata"]["uid"] = "u-1"
    api.create(spec, node="node-1")


async def prepared(node: Node, name: str) -> None:
    async def there() -> bool:
        found = (await node.state()).allocations.get(name)
        return found is not None and found.phase is Phase.PREPARED

    await wait_until(there, "prepared in the log", timeout=30)


WANTED = MigSlice("1g.10gb", MigPlacement(6, 1))
MAKING = [
    pytest.param("MIG instance wanted", "gpu", 0, id="remembered"),
    pytest.param("MIG GPU instance made", "compute", 1, id="GPU instance made"),
    pytest.param("MIG compute instance made", "", 1, id="compute instance made"),
    pytest.param("MIG instance told", "", 1, id="told"),
]
"""Line that is the last, step that hangs then, instances that the dead leaves behind."""


@pytest.fixture
def cut(node: Node, folder: Path) -> Node:
    node.mode = "mig"
    (folder / "devices.json").write_bytes(msgspec.json.encode({"devices": simulated_cards(2, mig="enabled")}))
    return node


async def wants(node: Node) -> None:
    held = reservation("u-1", UUIDS[:1])
    [main] = held.containers
    share = msgspec.structs.replace(main.shares[0], mig=WANTED)
    planned = msgspec.structs.replace(held, containers=(msgspec.structs.replace(main, shares=(share,)),))
    await node.say(AllocationReserved(reservation=planned))
    await node.say(AllocationBound(reservation="r-1", owner_uid="u-1"))


async def releases(node: Node) -> None:
    await node.say(AllocationReleased(reservation="r-1", owner_uid="u-1", reason="pod_deleted"))


async def named(node: Node) -> str:
    """The instance's name, as the log has it for the reservation."""
    found: list[str] = []

    async def there() -> bool:
        held = (await node.state()).allocations["r-1"].reservation.containers[0].shares[0].mig
        found[:] = [held.uuid] if held is not None and held.uuid else []
        return bool(found)

    await wait_until(there, "the instance in the log", timeout=30)
    return found[0]


async def hang(node: Node, life: Life, step: str) -> None:
    node.act({"uuid": "", "hold": step})
    await wait_until(lambda: any("hangs from now on" in each for each in life.lines), "the step to hang", timeout=30)


async def dies_making(node: Node, line: str, hangs_in: str, left: int) -> None:
    async with node.life(die_at=line) as first:
        await node.registered()
        if hangs_in:
            await hang(node, first, hangs_in)
        await wants(node)
        await dead(first)
    assert len(node.cuts) == left


@pytest.mark.parametrize(("line", "hangs_in", "left"), MAKING)
async def test_killed_while_it_makes_an_instance(cut: Node, line: str, hangs_in: str, left: int) -> None:
    """The next life completes it: one instance, at its place, under the name that the log has."""
    await dies_making(cut, line, hangs_in, left)
    async with cut.life():
        name = await named(cut)
        [made] = cut.cuts
        assert (made["uuid"], made["profile"], made["placement"]) == (name, "1g.10gb", {"start": 6, "size": 1})
        told = [each for each in await cut.events(MigInstanceCreated) if isinstance(each, MigInstanceCreated)]
        assert {each.instance.uuid for each in told} == {name}
        await cut.agrees()


@pytest.mark.parametrize(("line", "hangs_in", "left"), MAKING)
async def test_killed_while_it_makes_an_instance_that_nobody_wants_any_more(
    cut: Node, line: str, hangs_in: str, left: int
) -> None:
    """The next life takes away whatever there is of it."""
    await dies_making(cut, line, hangs_in, left)
    await releases(cut)
    async with cut.life() as second:
        await wait_until(lambda: not cut.cuts and any("registrations" in each for each in second.lines), "all gone", timeout=30)
        await cut.agrees()


@pytest.mark.parametrize(
    ("line", "hangs_in"),
    [
        pytest.param("MIG compute instance gone", "drop_gpu", id="compute instance gone"),
        pytest.param("MIG instance destroyed", "", id="destroyed"),
    ],
)
async def test_killed_while_it_destroys_an_instance(cut: Node, line: str, hangs_in: str) -> None:
    """The next life finishes it, and the place is there for another pod."""
    async with cut.life(die_at=line) as first:
        await cut.registered()
        await wants(cut)
        await named(cut)
        if hangs_in:
            await hang(cut, first, hangs_in)
        await releases(cut)
        await dead(first)
    assert len(cut.cuts) == (1 if hangs_in else 0)
    async with cut.life():
        await wait_until(lambda: not cut.cuts, "the rest to go", timeout=30)
        await wants(cut)
        name = await named(cut)
        assert [each["uuid"] for each in cut.cuts] == [name]
        await cut.agrees()
