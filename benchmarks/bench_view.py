"""From the log to folded state: replay, the cost of one event, and how long after an append the view shows it."""

import gc
import time

import anyio

from benchmarks.row import Row, median, quantile, row
from benchmarks.world import a_store, lives, registered, reservation
from hami.events.catalog.allocation import AllocationReleased, AllocationReserved
from hami.events.catalog.union import entities_of
from hami.events.codec import seal
from hami.events.envelope import START, Position
from hami.events.log import Draft, Record
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from hami.projections.folds.cluster import apply, new_cluster
from hami.projections.view import LiveView
from hami.scheduler import memory

NODES, PODS, LAGS = 500, 20_000, 300


async def _fill(store: RedisStore) -> None:
    writer = EventWriter(store.log, "setup")
    await writer.start()
    drafts = [registered(i) for i in range(NODES)]
    drafts += lives(PODS, NODES)
    for start in range(0, len(drafts), 500):
        await writer.append(drafts[start : start + 500])


async def _replay(store: RedisStore) -> float:
    """Events a second, read, decoded and folded; the best of five, as other work on the machine only slows.

    With the collector set as the scheduler sets it while it replays (hami/scheduler/memory.py).
    """
    best, usual = 0.0, gc.get_threshold()
    for _ in range(5):
        gc.collect()
        memory.begin()
        state, at, count = new_cluster(), START, 0
        begun = time.perf_counter()
        while batch := await store.log.read(at):
            for record in batch:
                apply(state, record)
            at, count = batch[-1].position, count + len(batch)
        best = max(best, count / (time.perf_counter() - begun))
        assert len(state.nodes) == NODES
        assert not state.allocations
    gc.set_threshold(*usual)
    return best


def _eight_devices() -> float:
    """Microseconds to fold one event of a pod on eight devices."""
    state = new_cluster()
    drafts = [registered(i) for i in range(NODES)]
    for i in range(2000):
        taken = reservation(i, i % NODES, list(range(8)), memory=1000, cores=5)
        drafts.append(Draft(event=AllocationReserved(reservation=taken), node=taken.node))
        released = AllocationReleased(
            reservation=taken.id, owner_uid=taken.owner.uid, namespace="default", reason="pod_deleted"
        )
        drafts.append(Draft(event=released, node=taken.node))
    versions: dict[str, int] = {}
    records = []
    for g, draft in enumerate(drafts, start=1):
        moved = {}
        for entity in entities_of(draft.event, draft.node):
            versions[entity] = moved[entity] = versions.get(entity, 0) + 1
        envelope = seal(draft, producer="b", epoch=1, seq=g, occurred_ms=0)  # type: ignore[arg-type]
        records.append(Record(position=Position(g, f"{g}-0"), envelope=envelope, event=draft.event, versions=moved))
    for record in records[:NODES]:
        apply(state, record)
    samples = []
    for record in records[NODES:]:
        begun = time.perf_counter()
        apply(state, record)
        samples.append(time.perf_counter() - begun)
    return median(samples) * 1e6


async def _lag(store: RedisStore) -> list[float]:
    """Milliseconds from handing an event to the writer until the view has it, at fifty events a second."""
    writer = EventWriter(store.log, "lag")
    await writer.start()
    view = LiveView(store.log, store.checkpoints, incarnation=await store.log.incarnation())
    samples = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(view.run)
        assert await view.wait_caught_up(timeout=60)
        for draft in list(lives(LAGS // 5, NODES, seed=9)):
            begun = time.perf_counter()
            appended = await writer.append([draft])
            assert await view.wait_for(appended.positions[-1], timeout=5)
            samples.append((time.perf_counter() - begun) * 1e3)
            await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    return samples


async def _measure() -> list[Row]:
    async with a_store() as (_, store):
        await _fill(store)
        replay = await _replay(store)
        lag = await _lag(store)
    return [
        row("replay", replay, "events/s", limit=100_000, at_least=True, note=f"{PODS * 5 + NODES} events to folded state"),
        row("view.apply.8_devices", _eight_devices(), "us/event", limit=30.0),
        row("append_to_view.p50", median(lag), "ms", limit=2.0),
        row("append_to_view.p99", quantile(lag, 0.99), "ms"),
    ]


def run() -> list[Row]:
    return anyio.run(_measure, backend_options={"use_uvloop": True})
