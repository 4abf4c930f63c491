"""Appending through the server function against plain XADD of the same bytes, and reading back."""

import time
from collections.abc import Awaitable, Callable, Sequence

import anyio

from benchmarks.row import Row, median, row
from benchmarks.world import a_store, lives, registered
from hami.events.catalog.union import FEED_EVENTS, entities_of
from hami.events.codec import encode_envelope, seal
from hami.events.envelope import START, Envelope
from hami.events.log import Draft
from hami.events.redis.client import Arg
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter, wall_clock

NODES, PIPE, ROUNDS, SINGLES = 1000, 100, 30, 1500


def _sealed(drafts: Sequence[Draft], producer: str) -> list[Envelope]:
    now = wall_clock()
    return [seal(draft, producer=producer, epoch=1, seq=seq, occurred_ms=now) for seq, draft in enumerate(drafts, start=1)]


async def _rate(doing: Callable[[], Awaitable[int]]) -> float:
    begun = time.perf_counter()
    count = await doing()
    return count / (time.perf_counter() - begun)


async def _pipelined(store: RedisStore) -> tuple[float, float, float]:
    """Events a second at PIPE events a round trip: as one append, as an append each, as an XADD each.

    Rounds of the three ways alternate, so that all see the same machine.
    """
    drafts = list(lives(PIPE * ROUNDS // 5, NODES))
    batched, each = _sealed(drafts, "batch"), _sealed(drafts, "each")
    wire, log = store.client.command, store.log
    rates: tuple[list[float], list[float], list[float]] = ([], [], [])
    for start in range(0, len(drafts), PIPE):
        part = slice(start, start + PIPE)
        entities = [entities_of(draft.event, draft.node) for draft in drafts[part]]
        feeds = [isinstance(draft.event, FEED_EVENTS) for draft in drafts[part]]
        ways: tuple[list[tuple[Arg, ...]], ...] = (
            [_call(*log.command_of(batched[part], entities, feeds=feeds))],
            [
                _call(*log.command_of([envelope], [names], feeds=[fed]))
                for envelope, names, fed in zip(each[part], entities, feeds, strict=True)
            ],
            [("XADD", "bench:plain", "*", "d", encode_envelope(envelope)) for envelope in each[part]],
        )
        for commands, samples in zip(ways, rates, strict=True):
            begun = time.perf_counter()
            await wire.pipeline(commands)
            samples.append(len(entities) / (time.perf_counter() - begun))
    assert int(await wire.call("XLEN", store.client.keys.log)) >= 2 * len(drafts)
    return median(rates[0]), median(rates[1]), median(rates[2])


def _call(keys: Sequence[str], args: Sequence[Arg]) -> tuple[Arg, ...]:
    return ("FCALL", "hami_append", len(keys), *keys, *args)


async def _single(store: RedisStore) -> tuple[float, float]:
    """Milliseconds for one append and for one XADD, alternating, each waited for."""
    drafts = list(lives(SINGLES // 5, NODES, seed=3))
    writer = EventWriter(store.log, "single")
    await writer.start()
    raw = [encode_envelope(envelope) for envelope in _sealed(drafts, "x")]
    ours, plain = [], []
    for draft, bytes_ in zip(drafts, raw, strict=True):
        begun = time.perf_counter()
        await writer.append([draft])
        between = time.perf_counter()
        await store.client.command.call("XADD", "bench:plain", "*", "d", bytes_)
        ours.append(between - begun)
        plain.append(time.perf_counter() - between)
    return median(ours) * 1e3, median(plain) * 1e3


async def _measure() -> list[Row]:
    async with a_store() as (_, store):
        await store.log.incarnation()
        writer = EventWriter(store.log, "setup")
        await writer.start()
        await writer.append([registered(i) for i in range(NODES)])
        batch, each, plain = await _pipelined(store)
        ours_ms, plain_ms = await _single(store)

        async def read_all() -> int:
            at, count = START, 0
            while batch := await store.log.read(at):
                at, count = batch[-1].position, count + len(batch)
            return count

        reading = await _rate(read_all)
    return [
        row(
            "append.batch",
            batch,
            "events/s",
            baseline=plain,
            baseline_name=f"XADD, same bytes, {PIPE} a round trip",
            limit=0.5,
            at_least=True,
            note=f"one append of {PIPE} events, as the ingester writes",
        ),
        row(
            "append.pipelined",
            each,
            "events/s",
            baseline=plain,
            baseline_name=f"XADD, same bytes, {PIPE} a round trip",
            note=f"{PIPE} appends of one event in one round trip: docs/adr/0023",
        ),
        row("append.single.p50", ours_ms, "ms", baseline=plain_ms, baseline_name="XADD, same bytes", limit=2.0),
        row("log.read", reading, "events/s", note="read and decoded, no fold"),
    ]


def run() -> list[Row]:
    return anyio.run(_measure)
