"""What every Inbox and Inboxes promises."""

import anyio

from hami.events.codec import encode_envelope
from hami.events.store import Store
from tests.support.drafts import sealed


async def next_ring(store: Store, wanted: str) -> str:
    """The name once it rings; whoever stops ringing before has broken the promise."""
    with anyio.fail_after(10):
        async for names in store.inboxes.rung():
            if wanted in names:
                return wanted
    raise AssertionError(f"the bell ended before {wanted} rang")


async def test_what_an_agent_puts_is_seen_in_order(store: Store) -> None:
    await store.inbox("n1").put([sealed(1), sealed(2)])
    await store.inbox("n2").put([sealed(1, node="n2")])
    assert [raw for _, raw in await store.inboxes.peek("n1")] == [encode_envelope(sealed(1)), encode_envelope(sealed(2))]
    assert len(await store.inboxes.peek("n1", limit=1)) == 1
    assert await store.inboxes.peek("n3") == []


async def test_a_put_rings_and_what_lay_there_before_is_swept(store: Store) -> None:
    await store.inbox("n1").put([sealed(1)])
    assert await next_ring(store, "n1") == "n1"
    heard: list[str] = []

    async def listen() -> None:
        heard.append(await next_ring(store, "n2"))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await store.inbox("n2").put([sealed(1, node="n2")])
    assert heard == ["n2"]


async def test_dropping_forgets_up_to_that_entry(store: Store) -> None:
    await store.inbox("n1").put([sealed(seq) for seq in (1, 2, 3)])
    entries = await store.inboxes.peek("n1")
    await store.inboxes.drop("n1", entries[1][0])
    assert [entry for entry, _ in await store.inboxes.peek("n1")] == [entries[2][0]]
    await store.inboxes.drop("n1", entries[0][0])
    assert len(await store.inboxes.peek("n1")) == 1


async def test_burying_takes_out_that_entry_only_and_twice_is_once(store: Store) -> None:
    await store.inbox("n1").put([sealed(seq) for seq in (1, 2, 3)])
    entries = await store.inboxes.peek("n1")
    for _ in range(2):
        await store.inboxes.bury("n1", *entries[1], "why")
    assert [entry for entry, _ in await store.inboxes.peek("n1")] == [entries[0][0], entries[2][0]]
