"""Lock troubles that users of GPU sharing reported (tests/data/pain-cases.json), replayed on every store.

Names of events and fields in the cases are invented there; what counts is who holds the lock, and who does not.
"""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from hami.domain.errors import Conflict, StaleFence
from hami.events.lease import Busy, Held, Release
from hami.events.log import Fence
from hami.events.store import Store
from hami.events.writer import EventWriter
from tests.support.drafts import lost
from tests.support.waiting import wait_until

CASES: dict[str, Any] = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data/pain-cases.json").read_text())
}
RELEASES = {"stale_token": Release.STALE}


async def take(store: Store, lock: str, owner: str, *, ttl_ms: int = 300_000) -> Held:
    got = await store.locks.acquire(lock, owner, ttl_ms=ttl_ms)
    assert isinstance(got, Held)
    return got


async def test_a_pod_whose_name_is_a_prefix_does_not_free_anothers_lock(store: Store) -> None:
    case = CASES["lock-01-prefix-name"]
    node, owner, release = case["given"]["node"], case["given"]["lock"]["owner"]["uid"], case["when"][0]
    held = await take(store, node, owner)
    assert await store.locks.release(Held(node, release["by"]["uid"], held.token - 1)) is Release.STALE
    assert await store.locks.release(Held(node, release["by"]["uid"], held.token)) is Release.STALE
    state = await store.locks.state(node)
    assert state is not None
    assert state.holder == case["then"]["lock_owner_uid"]


async def test_the_lock_of_a_deleted_pod_is_free_at_once(store: Store) -> None:
    case = CASES["lock-02-owner-deleted"]
    node, gone, following = case["given"]["node"], case["given"]["lock"]["owner"]["uid"], case["when"][0]["by"]["uid"]
    before = await take(store, node, gone)
    with anyio.fail_after(case["then"]["waited_s_max"]):
        async with anyio.create_task_group() as tasks:
            got: list[Held | Busy] = []

            async def wait() -> None:
                got.append(await store.locks.acquire(node, following, ttl_ms=1000, wait_ms=10_000))

            async def queued() -> bool:
                state = await store.locks.state(node)
                return state is not None and state.waiters == (following,)

            tasks.start_soon(wait)
            await wait_until(queued, "the next pod to wait")
            assert await store.locks.evict(node, gone) is Release.RELEASED
    assert isinstance(got[0], Held)
    assert got[0].token > before.token


async def test_while_the_holder_waits_for_its_allocate_nobody_else_gets_the_lock(store: Store) -> None:
    """Ordered delivery: the holder renews past any TTL; the case's 300 s are 60 ms here."""
    case = CASES["lock-05-expiry-while-waiting"]
    node = case["given"]["node"]
    first, second = (each["pod_uid"] for each in case["given"]["reservations"])
    held = await take(store, node, first, ttl_ms=60)
    began = await store.log.now()
    while await store.log.now() < began + 200:
        assert await store.locks.renew(held, ttl_ms=60_000)
        refused = await store.locks.acquire(node, second, ttl_ms=1000)
        assert isinstance(refused, Busy)
        assert refused.holder == first
    assert await store.locks.release(held) is Release.RELEASED
    assert (await take(store, node, second)).token > held.token


async def test_two_vendors_of_one_pod_share_its_lock(store: Store) -> None:
    case = CASES["lock-06-two-vendors-one-pod"]
    tokens = {(await take(store, case["given"]["node"], step["by_uid"])).token for step in case["when"]}
    assert len(tokens) == case["then"]["distinct_tokens"]


async def test_who_looked_before_its_time_ran_out_cannot_free_the_next_ones_lock(store: Store) -> None:
    case = CASES["lock-07-compare-and-delete"]
    key = case["given"]["key"]
    late = await take(store, key, "A", ttl_ms=30)

    async def ran_out() -> bool:
        return await store.locks.state(key) is None

    await wait_until(ran_out, "A's time to pass")
    held = await take(store, key, "B")
    assert held.token > late.token
    assert await store.locks.release(late) is RELEASES[case["then"]["release_A_result"]]
    state = await store.locks.state(key)
    assert state is not None
    assert (state.holder, state.token) == (case["then"]["holder"], held.token)
    writer = EventWriter(store.log, "control")
    await writer.start()
    with pytest.raises(StaleFence):
        await writer.append([lost()], fence=Fence(key, "A", late.token))


async def test_two_decisions_on_one_state_of_a_node_end_with_one_reservation(store: Store) -> None:
    case = CASES["race-01-two-filters"]
    outcomes: list[str] = []

    async def decide(name: str) -> None:
        writer = EventWriter(store.log, name)
        await writer.start()
        try:
            await writer.append([lost("vega-01", name)], expected={"node/vega-01": 0})
            outcomes.append("reserved")
        except Conflict as conflict:
            outcomes.append("refused" if conflict.actual == {"node/vega-01": 1} else str(conflict))

    async with anyio.create_task_group() as tasks:
        for step in case["when"][0]["steps"]:
            tasks.start_soon(decide, step["filter"])
    then = case["then"]
    assert sorted(outcomes) == ["refused"] * then["refused_count"] + ["reserved"] * then["reserved_count"]
