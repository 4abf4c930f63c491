"""What every Locks promises: only one holder, FIFO, tokens that never fall, nobody waits long for the dead."""

import time
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from hami.events.lease import Busy, Held, Release
from hami.events.store import Store
from tests.support.waiting import wait_until

LONG = 60_000


async def take(store: Store, owner: str, *, ttl_ms: int = LONG, wait_ms: int = 0, lock: str = "n1") -> Held:
    got = await store.locks.acquire(lock, owner, ttl_ms=ttl_ms, wait_ms=wait_ms)
    assert isinstance(got, Held), got
    return got


async def queue_of(store: Store, lock: str = "n1") -> tuple[str, ...]:
    state = await store.locks.state(lock)
    return () if state is None else state.waiters


async def test_a_free_lock_is_taken_and_shown(store: Store) -> None:
    assert await store.locks.state("n1") is None
    held = await take(store, "a")
    assert (held.token, held.reclaimed_from) == (1, "")
    state = await store.locks.state("n1")
    assert state is not None
    assert (state.holder, state.token, state.waiters) == ("a", 1, ())
    assert 0 < state.ttl_ms <= LONG


async def age_of(store: Store) -> int:
    state = await store.locks.state("n1")
    assert state is not None
    return state.age_ms


async def test_a_locks_age_is_its_present_holders_and_renewing_does_not_make_it_younger(store: Store) -> None:
    held = await take(store, "a")

    async def aged() -> bool:
        return await age_of(store) >= 100

    await wait_until(aged, "the lock to age")
    assert await store.locks.renew(held, ttl_ms=LONG)
    assert await age_of(store) >= 100
    assert (await take(store, "a")).token == held.token
    assert await age_of(store) >= 100
    await store.locks.release(held)
    began = time.monotonic()
    await take(store, "b")
    assert await age_of(store) <= (time.monotonic() - began) * 1000 + 5


async def test_a_held_lock_is_busy_for_others_at_once(store: Store) -> None:
    held = await take(store, "a")
    busy = await store.locks.acquire("n1", "b", ttl_ms=LONG)
    assert isinstance(busy, Busy)
    assert (busy.holder, busy.token, busy.ahead) == ("a", held.token, 0)
    assert await queue_of(store) == ()


async def test_asking_again_while_holding_gives_the_same_token(store: Store) -> None:
    assert (await take(store, "a")).token == (await take(store, "a")).token


async def test_locks_of_other_names_are_independent(store: Store) -> None:
    await take(store, "a", lock="n1")
    await take(store, "b", lock="n2")
    assert [(state.lock, state.holder) for state in await store.locks.held()] == [("n1", "a"), ("n2", "b")]


async def test_release_frees_and_the_next_token_is_higher(store: Store) -> None:
    first = await take(store, "a")
    assert await store.locks.release(first) is Release.RELEASED
    assert await store.locks.release(first) is Release.ABSENT
    second = await take(store, "b")
    assert second.token > first.token
    assert second.reclaimed_from == ""
    assert [state.holder for state in await store.locks.held()] == ["b"]


async def test_only_the_holder_with_its_token_releases_or_renews(store: Store) -> None:
    held = await take(store, "a")
    for wrong in (Held("n1", "b", held.token), Held("n1", "a", held.token + 1), Held("n1", "a", held.token - 1)):
        assert await store.locks.release(wrong) is Release.STALE
        assert not await store.locks.renew(wrong, ttl_ms=LONG)
    assert await store.locks.renew(held, ttl_ms=LONG)


async def test_an_expired_lock_is_reclaimed_with_the_former_owners_name(store: Store) -> None:
    dead = await take(store, "a", ttl_ms=30)
    await wait_until(lambda: _free(store), "the lock's time to pass")
    assert not await store.locks.renew(dead, ttl_ms=LONG)
    taken = await take(store, "b")
    assert taken.reclaimed_from == "a"
    assert taken.token > dead.token
    assert await store.locks.release(dead) is Release.STALE


async def _free(store: Store, lock: str = "n1") -> bool:
    return await store.locks.state(lock) is None


async def test_waiters_get_it_in_the_order_they_came(store: Store) -> None:
    first, order = await take(store, "a"), []

    async def wait_for(owner: str) -> None:
        held = await take(store, owner, wait_ms=10_000)
        order.append((owner, held.token))
        await store.locks.release(held)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for i, owner in enumerate(("b", "c", "d"), start=1):
                tasks.start_soon(wait_for, owner)
                await wait_until(partial(_queued, store, i), f"{owner} to queue")
            await store.locks.release(first)
    assert [owner for owner, _ in order] == ["b", "c", "d"]
    assert [token for _, token in order] == sorted({token for _, token in order})


async def _queued(store: Store, count: int) -> bool:
    return len(await queue_of(store)) == count


async def test_nobody_overtakes_a_waiter(store: Store) -> None:
    first = await take(store, "a")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: take(store, "b", wait_ms=5_000))
            await wait_until(lambda: _queued(store, 1), "b to queue")
            await store.locks.release(first)
            busy = await store.locks.acquire("n1", "c", ttl_ms=LONG)
    assert isinstance(busy, Busy)
    assert busy.holder == "b"


async def test_waiting_ends_at_its_limit_and_leaves_no_trace(store: Store) -> None:
    await take(store, "a")
    busy = await store.locks.acquire("n1", "b", ttl_ms=LONG, wait_ms=50)
    assert isinstance(busy, Busy)
    assert busy.holder == "a"
    assert busy.waited_ms >= 50
    assert await queue_of(store) == ()


async def test_a_waiter_gets_a_lock_whose_holder_died(store: Store) -> None:
    await take(store, "a", ttl_ms=100)
    with anyio.fail_after(5):
        held = await take(store, "b", wait_ms=4_000)
    assert held.owner == "b"


async def test_a_cancelled_waiter_does_not_hold_up_the_next(store: Store) -> None:
    first = await take(store, "a")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def ghost() -> None:
                with scope:
                    await take(store, "ghost", wait_ms=8_000)

            tasks.start_soon(ghost)
            await wait_until(lambda: _queued(store, 1), "the ghost to queue")
            scope.cancel()
        await store.locks.release(first)
        assert (await take(store, "b")).owner == "b"


async def test_evicting_the_owner_frees_whatever_its_token_and_its_place_in_the_queue(store: Store) -> None:
    await take(store, "a")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def waiter() -> None:
                with scope:
                    await store.locks.acquire("n1", "gone", ttl_ms=LONG, wait_ms=8_000)

            tasks.start_soon(waiter)
            await wait_until(lambda: _queued(store, 1), "the waiter to queue")
            scope.cancel()
    assert await store.locks.evict("n1", "gone") is Release.STALE
    assert await queue_of(store) == ()
    assert await store.locks.evict("n1", "a") is Release.RELEASED
    assert await store.locks.evict("n1", "a") is Release.ABSENT
    assert (await take(store, "b")).reclaimed_from == ""


@pytest.mark.parametrize("owner", ["with space", "with:colon", "pod/ünï"])
async def test_any_text_can_be_an_owner(store: Store, owner: str) -> None:
    held = await take(store, owner)
    state = await store.locks.state("n1")
    assert state is not None
    assert state.holder == owner
    assert await store.locks.release(held) is Release.RELEASED


async def test_many_waiters_never_hold_it_together(store: Store) -> None:
    inside, most, served = 0, 0, 0

    async def work(owner: str) -> None:
        nonlocal inside, most, served
        held = await take(store, owner, wait_ms=15_000)
        inside += 1
        most = max(most, inside)
        await anyio.lowlevel.checkpoint()
        inside -= 1
        served += 1
        assert await store.locks.release(held) is Release.RELEASED

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for i in range(16):
                tasks.start_soon(work, f"pod-{i}")
    assert (most, served) == (1, 16)
