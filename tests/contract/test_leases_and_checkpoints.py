"""What every Leases and Checkpoints promises."""

from hami.events.envelope import Position
from hami.events.store import Store
from tests.support.waiting import wait_until


async def test_a_lease_is_alive_until_its_time_is_over(store: Store) -> None:
    await store.leases.keep("n1", "1:5", ttl_ms=60_000)
    await store.leases.keep("n2", "1:1", ttl_ms=30)
    assert (await store.leases.alive(["n1", "n3"])) == {"n1": "1:5", "n3": None}

    async def over() -> bool:
        return (await store.leases.alive(["n2"]))["n2"] is None

    await wait_until(over, "n2's lease to run out")


async def test_keeping_again_replaces_value_and_time(store: Store) -> None:
    await store.leases.keep("n1", "old", ttl_ms=30)
    await store.leases.keep("n1", "new", ttl_ms=60_000)
    assert await store.leases.alive(["n1"]) == {"n1": "new"}


async def test_asking_about_nobody_is_answered(store: Store) -> None:
    assert await store.leases.alive([]) == {}


async def test_checkpoints_keep_the_newest_two(store: Store) -> None:
    assert await store.checkpoints.load("cluster") == ()
    for g in (1, 2, 3):
        await store.checkpoints.save("cluster", Position(g, f"{g}-0"), "INC", "s1", bytes([0, 255, g]))
    loaded = await store.checkpoints.load("cluster")
    assert [(position.g, incarnation, schema, state) for position, incarnation, schema, state in loaded] == [
        (3, "INC", "s1", bytes([0, 255, 3])),
        (2, "INC", "s1", bytes([0, 255, 2])),
    ]


async def test_saving_the_same_again_keeps_the_one_before(store: Store) -> None:
    for g in (1, 2, 2):
        await store.checkpoints.save("cluster", Position(g, f"{g}-0"), "INC", "s1", b"x")
    assert [each[0].g for each in await store.checkpoints.load("cluster")] == [2, 1]


async def test_folds_do_not_share_checkpoints(store: Store) -> None:
    await store.checkpoints.save("a", Position(1, "1-0"), "INC", "s1", b"x")
    assert await store.checkpoints.load("b") == ()
