"""Decisions alone at 5,000 nodes x 8 devices: known and new shapes, contention, refusal, growth; a closed loop over HTTP."""

import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import anyio
import msgspec
from prometheus_client import generate_latest

from benchmarks.bench_filter import NODES, PODS, api_server, fill, scheduler_process
from benchmarks.row import Row, median, quantile, row
from benchmarks.world import a_store, node_name, registered, reservation, standing
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, EpochMs, MiB
from hami.events.catalog.allocation import AllocationReleased, AllocationReserved
from hami.events.catalog.union import entities_of
from hami.events.codec import Place, decode_record, encode_envelope, encode_place, seal
from hami.events.envelope import Position
from hami.events.log import Draft, Record
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.scheduler.decide.place import Placement, Unschedulable, place
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import NODE_POLICY, SchedulingPolicy
from hami.scheduler.metrics import Metrics
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of

ROUNDS, WORKERS, LOOP_PODS = 1000, 8, 600
MIXED = ("NVIDIA", "MLU", "DCU", "AMD", "Mthreads", "kunlun")
VENDORS = vendors_of(DeviceConfig())
POLICY = SchedulingPolicy()


class Bench:
    """A cluster as a live view and planes have it; `turn` gives one node a pod, as between two decisions of a busy one."""

    def __init__(self, nodes: int, pods: int, *, memory: int = 0, vendors: Sequence[str] = ("NVIDIA",)) -> None:
        self.state, self.g = new_cluster(), 0
        self.versions: dict[str, int] = {}
        drafts = [registered(i, vendors[i % len(vendors)]) for i in range(nodes)]
        if memory:
            drafts += [
                Draft(
                    event=AllocationReserved(reservation=reservation(i, i, list(range(8)), memory=memory, cores=0)),
                    node=node_name(i),
                )
                for i in range(nodes)
            ]
        else:
            drafts += standing(pods, nodes)
        for draft in drafts:
            apply(self.state, self.record(draft))
        self.planes = Planes(VENDORS)
        self.planes.sync(self.snapshot)
        self.state.drain_touched()
        self.names = tuple(node_name(i) for i in range(nodes))
        self._next = nodes

    def record(self, draft: Draft) -> Record:
        self.g += 1
        for entity in entities_of(draft.event, draft.node):
            self.versions[entity] = self.versions.get(entity, 0) + 1
        envelope = seal(draft, producer="bench", epoch=1, seq=self.g, occurred_ms=EpochMs(0))
        moved = {each: self.versions[each] for each in entities_of(draft.event, draft.node)}
        return Record(position=Position(self.g, f"{self.g}-0"), envelope=envelope, event=draft.event, versions=moved)

    @property
    def snapshot(self) -> ClusterSnapshot:
        return snapshot(self.state)

    def turn(self, i: int) -> Iterator[Record]:
        taken = reservation(10_000_000 + i, i * 7919 % len(self.names), [i % 8], memory=100, cores=0)
        yield self.record(Draft(event=AllocationReserved(reservation=taken), node=taken.node))
        gone = AllocationReleased(reservation=taken.id, owner_uid=taken.owner.uid, namespace="default", reason="pod_deleted")
        yield self.record(Draft(event=gone, node=taken.node))

    def take(self, record: Record) -> None:
        apply(self.state, record)
        self.planes.sync(self.snapshot, self.state.drain_touched())

    def decide(self, request: PodRequest) -> Placement | Unschedulable:
        return place(self.snapshot, self.planes, request, self.names, POLICY, exclude_owner=request.uid)


def a_request(*containers: tuple[int, int, int]) -> PodRequest:
    """(cards, MiB, percent) of each container."""
    asked = tuple(
        ContainerRequest(
            name=f"c{number}",
            kind=ContainerKind.APP,
            requests=(DeviceRequest(vendor="NVIDIA", count=count, memory=MiB(memory), cores=CorePercent(cores)),),
        )
        for number, (count, memory, cores) in enumerate(containers)
    )
    return PodRequest(uid="asking", namespace="bench", name="asking", containers=asked)


def timed(count: int, doing: Callable[[int], object], before: Callable[[int], object] = lambda _: None) -> list[float]:
    """Milliseconds of each call, in the time of its thread: on a shared machine the wall's clock measures the neighbours."""
    samples = []
    for i in range(count):
        before(i)
        begun = time.thread_time()
        doing(i)
        samples.append((time.thread_time() - begun) * 1e3)
    return samples


def _changes(bench: Bench) -> Callable[[int], None]:
    def change(i: int) -> None:
        for record in bench.turn(i):
            bench.take(record)

    return change


def _decisions(bench: Bench) -> list[Row]:
    where = f"{NODES} nodes x 8 devices, {PODS} pods; a node changes before each"
    shape = a_request((1, 1000, 5))
    bench.decide(shape)
    known = timed(ROUNDS, lambda _: bench.decide(shape), _changes(bench))
    fresh = [a_request((1, 1000 + i, 5)) for i in range(ROUNDS)]
    new = timed(ROUNDS, lambda i: bench.decide(fresh[i]), _changes(bench))
    unfit = [a_request((1, 90_000 + i, 5)) for i in range(30)]
    refused = timed(len(unfit), lambda i: bench.decide(unfit[i]))
    found = bench.decide(unfit[0])
    assert isinstance(found, Unschedulable)
    assert len(found.reasons) == NODES
    return [
        row("decide.known.p99", quantile(known, 0.99), "ms", limit=0.3, note=where),
        row("decide.known.p50", median(known), "ms"),
        row("decide.new_shape.p99", quantile(new, 0.99), "ms", limit=0.6, note=where),
        row("decide.new_shape.p50", median(new), "ms"),
        row("decide.refusal", median(refused), "ms", limit=10.0, note=f"a new shape each, {NODES} reasons"),
    ]


def _contended() -> Row:
    """On every node each container fits alone and both together seem to; only the exact walk says no."""
    bench = Bench(NODES, 0, memory=13_000)
    asked = [a_request((4, 9_000 + i, 0), (8, 2_000, 0)) for i in range(10)]
    small = [i for i in range(NODES) if i % 5 >= 3]
    bench.names = tuple(node_name(i) for i in small)
    samples = timed(len(asked), lambda i: bench.decide(asked[i]))
    assert isinstance(bench.decide(asked[0]), Unschedulable)
    return row(
        "decide.contended", median(samples), "ms", limit=15.0, note=f"two containers, {len(small)} nodes that only seem to fit"
    )


def _mixed() -> list[Row]:
    """Six vendors in one cluster: for a vendor with the standard rules, and for one whose cards are judged one by one."""
    bench, rows = Bench(NODES, 0, vendors=MIXED), []
    for name, word in (("standard", "NVIDIA"), ("own_rules", "MLU")):
        asked = DeviceRequest(vendor=word, count=1, memory=MiB(1024), cores=CorePercent(5))
        containers = (ContainerRequest(name="c", kind=ContainerKind.APP, requests=(asked,)),)
        shape = PodRequest(uid="asking", namespace="bench", name="asking", containers=containers)
        assert isinstance(bench.decide(shape), Placement)
        samples = timed(ROUNDS, lambda _, shape=shape: bench.decide(shape), _changes(bench))  # type: ignore[misc]
        limit = 0.3 if name == "standard" else None
        note = f"{len(MIXED)} vendors, {word} asked; a node changes before each"
        rows.append(row(f"decide.mixed.{name}.p99", quantile(samples, 0.99), "ms", limit=limit, note=note))
    return rows


def _events(bench: Bench) -> list[Row]:
    records = [each for i in range(ROUNDS) for each in bench.turn(i)]
    folds = timed(len(records), lambda i: apply(bench.state, records[i]))
    bench.planes.sync(bench.snapshot, bench.state.drain_touched())
    more = [each for i in range(ROUNDS) for each in bench.turn(i)]
    both = timed(len(more), lambda i: bench.take(more[i]))
    whole = timed(5, lambda _: Planes(VENDORS).sync(bench.snapshot))
    return [
        row("event.apply", median(folds) * 1e3, "us", note="fold of one reservation or release"),
        row("event.planes", (median(both) - median(folds)) * 1e3, "us", limit=30.0, note="its node on the planes"),
        row("planes.all", min(whole), "ms", note="planes of 40,000 registered devices"),
        row("view.whole", min(_whole_view()), "ms", limit=150.0, note="from the log to state and planes, 40,000 devices"),
    ]


def _whole_view() -> list[float]:
    """From the bytes of the log to a view that decides: decoded, folded, on planes. The collector as at a scheduler's start."""
    entries = []
    for i in range(NODES):
        draft = registered(i)
        envelope = seal(draft, producer=f"agent-{i}", epoch=1, seq=1, occurred_ms=EpochMs(0))
        entries.append((f"{i + 1}-0", encode_envelope(envelope), encode_place(Place(i + 1, {f"node/{draft.node}": 1}))))

    def build(_: int) -> None:
        state = new_cluster()
        for entry in entries:
            apply(state, decode_record(*entry))
        Planes(VENDORS).sync(snapshot(state))

    return timed(5, build)


def _growth() -> Row:
    shape, samples = a_request((1, 1000, 5)), {}
    for nodes in (100, 10_000):
        bench = Bench(nodes, nodes * 4)
        bench.decide(shape)
        samples[nodes] = median(timed(300, lambda _, on=bench: on.decide(shape), _changes(bench)))  # type: ignore[misc]
    return row(
        "decide.growth",
        samples[10_000],
        "ms",
        baseline=samples[100],
        baseline_name="100 nodes instead of 10,000",
        note="known shape, median",
    )


def _scrape(bench: Bench) -> Row:
    metrics = Metrics(VENDORS)
    metrics.freeze(bench.snapshot)
    return row(
        "metrics.scrape",
        min(timed(3, lambda _: generate_latest(metrics.registry))),
        "ms",
        note="40,000 devices: beyond 60,000 series it says what it left out",
    )


async def _life(http: aiohttp.ClientSession, base: str, i: int, names: list[str], policy: str) -> None:
    uid = f"loop-{i}"
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "500"}
    spec = {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}
    pod = {"metadata": {"name": uid, "namespace": "default", "uid": uid, "annotations": {NODE_POLICY: policy}}, "spec": spec}
    body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})
    async with http.post(f"{base}/filter", data=body) as response:
        answer = msgspec.json.decode(await response.read())
    assert answer["NodeNames"], answer["Error"] or answer["FailedNodes"]
    node = answer["NodeNames"][0]
    told = {"PodName": uid, "PodNamespace": "default", "PodUID": uid, "Node": node}
    async with http.post(f"{base}/bind", data=msgspec.json.encode(told)) as response:
        error = msgspec.json.decode(await response.read())["Error"]
    assert not error, error


async def _closed_loop() -> list[Row]:
    names = [node_name(i) for i in range(100)]
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="hb-") as folder:
        at = Path(folder)
        async with a_store() as (server, store), api_server(at, 100, 0, LOOP_PODS) as kubeconfig:
            await fill(store, 100, 0)
            async with scheduler_process(server.url, kubeconfig, at) as (base, _), aiohttp.ClientSession() as http:
                left = iter(range(LOOP_PODS))

                async def work(count: int, policy: str) -> None:
                    for i in itertools.islice(left, count):
                        await _life(http, base, i, names, policy)

                for policy in ("spread", "binpack"):
                    begun = time.perf_counter()
                    async with anyio.create_task_group() as tasks:
                        for _ in range(WORKERS):
                            tasks.start_soon(work, LOOP_PODS // 2 // WORKERS, policy)
                    rates[policy] = LOOP_PODS // 2 // WORKERS * WORKERS / (time.perf_counter() - begun)
    note = f"filter and bind, {WORKERS} at a time, 100 nodes; client, scheduler, store and API server share the machine"
    return [
        row("loop.pods", rates["spread"], "pods/s", limit=150.0, at_least=True, note=note),
        row("loop.pods.one_node", rates["binpack"], "pods/s", note="all on one node: binds wait for its lock"),
    ]


def run() -> list[Row]:
    bench = Bench(NODES, PODS)
    gc.collect()
    gc.freeze()
    rows = [*_decisions(bench), *_events(bench), _scrape(bench)]
    del bench
    rows += [*_mixed(), _contended(), _growth(), *anyio.run(_closed_loop)]
    gc.unfreeze()
    return rows
