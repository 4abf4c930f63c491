"""The board: everyone sees the latest list, nobody is woken for nothing, a watch ends at once when told."""

import anyio

from hami.nodeagent.board import Board, Offer, Watch


def offers(*uuids: str, healthy: bool = True) -> list[Offer]:
    return [Offer(uuid=uuid, slots=2, healthy=healthy) for uuid in uuids]


async def collect(watch: Watch, seen: list[tuple[Offer, ...]]) -> None:
    seen.extend([listing async for listing in watch.listings()])


def test_a_card_is_listed_slot_by_slot() -> None:
    assert offers("GPU-a")[0].ids == ("GPU-a-0", "GPU-a-1")


async def test_every_watch_sees_the_list_now_and_after_each_change() -> None:
    board = Board()
    seen: list[list[tuple[Offer, ...]]] = [[], []]
    board.show(offers("a", "b"))
    watches = [board.watch(), board.watch()]
    async with anyio.create_task_group() as tasks:
        for watch, into in zip(watches, seen, strict=True):
            tasks.start_soon(collect, watch, into)
        await anyio.wait_all_tasks_blocked()
        board.mark("a", healthy=False)
        await anyio.wait_all_tasks_blocked()
        for watch in watches:
            watch.end()
    for listings in seen:
        assert [[offer.healthy for offer in listing] for listing in listings] == [[True, True], [False, True]]


async def test_what_changes_nothing_wakes_nobody() -> None:
    board = Board()
    seen: list[tuple[Offer, ...]] = []
    board.show(offers("a"))
    watch = board.watch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect, watch, seen)
        await anyio.wait_all_tasks_blocked()
        board.show(offers("a"))
        board.mark("a", healthy=True)
        board.mark("unknown", healthy=False)
        await anyio.wait_all_tasks_blocked()
        watch.end()
    assert len(seen) == 1


async def test_a_slow_reader_gets_the_latest_only() -> None:
    board = Board()
    board.show(offers("a", "b"))
    watch = board.watch()
    listings = watch.listings()
    await anext(listings)
    board.mark("a", healthy=False)
    board.mark("b", healthy=False)
    assert [offer.healthy for offer in await anext(listings)] == [False, False]
    watch.end()
    assert [each async for each in listings] == []


async def test_a_forgotten_watch_is_left_alone() -> None:
    board = Board()
    watch = board.watch()
    board.forget(watch)
    board.show(offers("a"))
    listings = watch.listings()
    assert len(await anext(listings)) == 1
    with anyio.move_on_after(0.05) as scope:
        board.show(offers("a", "b"))
        await anext(listings)
    assert scope.cancelled_caught
