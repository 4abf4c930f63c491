"""Verbs that read the log, against a real store."""

import os
import signal
from collections.abc import Sequence

import anyio
import pytest

from hami.cli.exits import Exit
from hami.domain.device import Health
from hami.events.catalog.allocation import AllocationBound, AllocationReleased, AllocationReserved
from hami.events.catalog.device import DeviceHealthChanged, FaultKind, FaultObserved
from hami.events.catalog.governance import LockRefused, LockWaitTimedOut, PlacementRefused
from hami.events.log import Draft
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from tests.support.builders import a_container, a_device, a_node_registered, a_reservation, a_share
from tests.support.cli import Hami, start_hami
from tests.support.drafts import sealed

HEALTH_CHANGED = DeviceHealthChanged(
    device="GPU-b", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="xid-79", evidence="XID 79"
)


def story() -> list[Draft]:
    """Two cards register, one pod waits, is placed and leaves, one card fails. g 2 to 8; g 1 is the store's own."""
    shares = a_container(a_share("GPU-a", 8000, 30))
    reservation = a_reservation("r1", shares, pod="u1", namespace="team-a", name="train", node="n1")
    refused = PlacementRefused(
        owner_uid="u1",
        namespace="team-a",
        name="train",
        request="1x NVIDIA 8000MiB",
        counts={"node unregistered": 1},
        nodes_seen=1,
    )
    bound = AllocationBound(reservation="r1", owner_uid="u1", namespace="team-a")
    released = AllocationReleased(reservation="r1", owner_uid="u1", namespace="team-a", reason="pod_succeeded")
    return [
        Draft(event=refused, subject="u1"),
        Draft(event=a_node_registered(a_device("GPU-a"), a_device("GPU-b", index=1)), node="n1", subject="n1"),
        Draft(event=AllocationReserved(reservation=reservation), node="n1", subject="u1"),
        Draft(event=bound, node="n1", subject="u1"),
        Draft(event=FaultObserved(device="GPU-b", kind=FaultKind.XID, code=79), node="n1", subject="GPU-b"),
        Draft(event=HEALTH_CHANGED, node="n1", subject="GPU-b"),
        Draft(event=released, node="n1", subject="u1"),
    ]


async def write(url: str, drafts: Sequence[Draft], *, init: bool = True) -> None:
    async with Client(url) as client:
        if init:
            await client.command.call("FLUSHALL")
            await initialise(client)
        writer = EventWriter(RedisStore(client).log, "test")
        await writer.start()
        for draft in drafts:
            await writer.append([draft])


async def flush(url: str) -> None:
    async with Client(url) as client:
        await client.command.call("FLUSHALL")


@pytest.fixture
def url(valkey_server: EmbeddedServer) -> str:
    anyio.run(write, valkey_server.url, story())
    return valkey_server.url


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str], url: str) -> Hami:
    return Hami(capsys, url)


# init


def test_init_prepares_an_empty_store_and_says_what_it_did(hami: Hami, url: str) -> None:
    anyio.run(flush, url)
    refused = hami("state")
    assert (refused.code, "run `hami init`" in refused.err) == (Exit.STORE, True)
    assert "identity written" in hami("init").out
    again = hami("init", "-o", "json").json
    assert again["created"] is False
    assert again["warnings"] == []
    assert hami("state").code == Exit.OK


# events


def test_tail_prints_the_log_from_a_moment_to_its_head(hami: Hami) -> None:
    ran = hami("events", "tail", "--since", "g:1", "--no-follow", "-o", "json")
    assert [line["g"] for line in ran.lines] == [1, 2, 3, 4, 5, 6, 7, 8]
    first = ran.lines[3]
    assert first["type"] == "hami.allocation.reserved"
    assert first["data"]["reservation"]["owner"]["name"] == "train"
    assert first["versions"]["node/n1"] == 2
    assert first["recorded_at"].endswith("Z")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["--type", "allocation.*"], [4, 5, 8]),
        (["--type", "hami.device.health_changed"], [7]),
        (["--type", "node.*", "--type", "placement.refused"], [2, 3]),
        (["--node", "n1"], [3, 4, 5, 6, 7, 8]),
        (["--subject", "GPU-b"], [6, 7]),
        (["--pod", "u1"], [2, 4, 5, 8]),
        (["--pod", "team-a/train"], [2, 4, 5, 8]),
        (["--pod", "team-a/train", "--type", "allocation.released"], [8]),
        (["--pod", "team-b/train"], []),
        (["--since", "g:7"], [7, 8]),
    ],
)
def test_tail_shows_only_what_was_asked_for(hami: Hami, conditions: list[str], expected: list[int]) -> None:
    ran = hami("events", "tail", "--since", "g:1", "--no-follow", "-o", "json", *conditions)
    assert [line["g"] for line in ran.lines] == expected


def test_tail_for_people_says_what_happened(hami: Hami) -> None:
    lines = hami("events", "tail", "--since", "g:1", "--no-follow").out.splitlines()
    assert "reserved r1 for team-a/train on n1: main: 8000 MiB + 30 % of GPU-a" in lines[3]
    assert "healthy -> unhealthy: xid-79 (XID 79)" in lines[6]
    assert "registered 2 NVIDIA devices" in lines[2]


@pytest.mark.parametrize("name", ["g:7", "test/1/6"])
def test_show_prints_one_event_whole(hami: Hami, name: str) -> None:
    shown = hami("events", "show", name).json
    assert (shown["g"], shown["id"], shown["data"]["device"]) == (7, "test/1/6", "GPU-b")
    assert hami("events", "show", shown["entry"]).json == shown


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("g:99", Exit.NOT_FOUND, "the log holds g:1 to g:8"),
        ("test/1/99", Exit.NOT_FOUND, "the last one of test is test/1/7"),
        ("nobody/1/1", Exit.NOT_FOUND, "nobody never wrote"),
        ("1-1", Exit.NOT_FOUND, "no event is stored as 1-1"),
        ("train", Exit.USAGE, "use g:123"),
    ],
)
def test_show_says_what_exists_when_the_event_does_not(hami: Hami, name: str, code: Exit, said: str) -> None:
    ran = hami("events", "show", name)
    assert (ran.code, said in ran.err) == (code, True), ran.err


# state


def test_state_is_the_fold_at_the_head(hami: Hami) -> None:
    state = hami("state", "-o", "json").json
    assert state["g"] == 8
    assert state["allocations"] == []
    by_uuid = {device["uuid"]: device for device in state["nodes"][0]["devices"]}
    assert by_uuid["GPU-a"]["memory_mib"] == {"used": 0, "total": 40960}
    assert (by_uuid["GPU-b"]["health"], by_uuid["GPU-b"]["schedulable"]) == ("unhealthy", False)


def test_state_in_the_past_knows_nothing_of_what_came_later(hami: Hami) -> None:
    state = hami("state", "--at", "g:5", "-o", "json").json
    device = state["nodes"][0]["devices"][0]
    assert device["memory_mib"] == {"used": 8000, "total": 40960}
    assert device["cores_percent"]["used"] == 30
    assert state["nodes"][0]["devices"][1]["health"] == "healthy"
    allocation = state["allocations"][0]
    assert (allocation["phase"], allocation["owner"]["name"]) == ("bound", "train")


def test_state_at_a_time_is_state_at_the_event_recorded_then(hami: Hami) -> None:
    entry = hami("events", "show", "g:8").json["entry"]
    ms = entry.split("-")[0]
    assert hami("state", "--at", ms, "-o", "json").json["g"] == 8
    before = hami("state", "--at", "-1d", "-o", "json").json
    assert (before["g"], before["nodes"], before["recorded_at"]) == (0, [], None)


def test_state_for_people_shows_use_against_total(hami: Hami) -> None:
    out = hami("state", "--at", "g:5").out
    assert "8000/40960" in out
    assert "team-a/train" in out
    assert "quotas: none" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--node", "n9"], Exit.NOT_FOUND, "there are: n1"),
        (["--at", "g:99"], Exit.NOT_FOUND, "g:1 to g:8"),
        (["--at", "teatime"], Exit.USAGE, "--at: 'teatime'"),
    ],
)
def test_state_says_what_is_wrong(hami: Hami, arguments: list[str], code: Exit, said: str) -> None:
    ran = hami("state", *arguments)
    assert (ran.code, said in ran.err) == (code, True), ran.err


# locks


async def hold(url: str) -> None:
    async with Client(url) as client:
        locks = RedisStore(client).locks
        await locks.acquire("node/n1", "u1", ttl_ms=60_000)


def test_locks_shows_holder_and_time_left(hami: Hami, url: str) -> None:
    assert "locks: none" in hami("locks").out
    anyio.run(hold, url)
    (lock,) = hami("locks", "-o", "json").json["locks"]
    assert (lock["lock"], lock["holder"], lock["waiters"]) == ("node/n1", "u1", [])
    assert 0 < lock["ttl_ms"] <= 60_000
    assert lock["age_ms"] >= 0
    assert lock["last_refusal"] is None
    assert "u1" in hami("locks").out


async def crowd(url: str) -> None:
    """u1 holds, u2 and u3 wait until they are cut off; then u4's wait is refused and an old holder's write as well."""
    async with Client(url) as client:
        locks = RedisStore(client).locks
        await locks.acquire("n1", "u1", ttl_ms=60_000)
        for owner in ("u2", "u3"):
            keys = client.keys
            await client.fcall(
                "hami_lock_acquire",
                [keys.lock("n1"), keys.queue("n1"), keys.locks],
                ["n1", keys.wake_prefix("n1"), owner, 60_000, 60_000],
            )


def test_locks_shows_age_waiters_and_the_last_refusal(hami: Hami, url: str) -> None:
    anyio.run(crowd, url)
    gave_up = LockWaitTimedOut(lock="n1", waiter="u4", holder="u1", waited_ms=8000)
    lost = LockRefused(lock="n2", by="u9", why="the lock is held by nobody with token 0")
    drafts = [Draft(event=gave_up, node="n1", subject="u4"), Draft(event=lost, node="n2", subject="u9")]
    anyio.run(lambda: write(url, drafts, init=False))
    first, second = hami("locks", "-o", "json").json["locks"]
    assert (first["lock"], first["holder"], first["waiters"]) == ("n1", "u1", ["u2", "u3"])
    assert first["age_ms"] >= 0
    assert first["last_refusal"]["why"] == "lock n1: u4 waited 8000 ms for u1"
    assert (second["lock"], second["holder"], second["age_ms"]) == ("n2", None, None)
    assert second["last_refusal"]["why"].startswith("lock n2: refused u9: ")
    shown = hami("locks").out
    for words in ("HELD FOR", "u2, u3", "u4 waited 8000 ms for u1", "refused u9"):
        assert words in shown


# Following, pipes and signals


def test_tail_follows_and_ends_quietly_on_interrupt(url: str) -> None:
    process = start_hami(["--redis-url", url, "events", "tail", "--since", "g:8", "-o", "json"])
    try:
        assert process.stdout is not None
        assert '"g":8' in process.stdout.readline()
        anyio.run(lambda: write(url, [Draft(event=HEALTH_CHANGED, node="n1", subject="GPU-b")], init=False))
        assert '"g":9' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (Exit.INTERRUPTED, "")
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_while_still_connecting_is_not_lost(url: str) -> None:
    for _ in range(3):
        process = start_hami(["--redis-url", url, "events", "tail", "--since", "g:8", "-o", "json"])
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
            assert (process.returncode, err) == (Exit.INTERRUPTED, "")
        finally:
            process.kill()
            process.communicate()


def test_a_reader_that_had_enough_is_no_error(url: str) -> None:
    process = start_hami(["--redis-url", url, "events", "tail", "--since", "g:1", "-o", "json"])
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        anyio.run(lambda: write(url, story(), init=False))
        assert process.wait(timeout=10) == Exit.OK
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def test_the_store_can_be_named_by_environment(url: str) -> None:
    process = start_hami(["state", "-o", "json"], env={**os.environ, "HAMI_REDIS_URL": url})
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert '"g": 8' in out


def test_now_is_the_stores_own_time(hami: Hami) -> None:
    assert hami("state", "--at", "now", "-o", "json").json["g"] == 8


# audit


@pytest.mark.parametrize("name", ["team-a/train", "u1"])
def test_a_pods_story_runs_from_refusal_to_release(hami: Hami, name: str) -> None:
    events = hami("audit", "pod", name, "-o", "json").json["events"]
    assert [event["type"].removeprefix("hami.") for event in events] == [
        "placement.refused",
        "allocation.reserved",
        "allocation.bound",
        "allocation.released",
    ]


def test_a_devices_story_holds_its_tenants_and_its_faults(hami: Hami) -> None:
    events = hami("audit", "device", "GPU-a", "-o", "json").json["events"]
    assert [event["g"] for event in events] == [3, 4, 5, 8]
    assert "team-a/train" in hami("audit", "device", "GPU-a").out
    out = hami("audit", "device", "GPU-b").out
    assert "healthy -> unhealthy: xid-79" in out
    assert "train" not in out


def test_a_nodes_story_is_all_that_was_recorded_of_it(hami: Hami) -> None:
    events = hami("audit", "node", "n1", "-o", "json").json["events"]
    assert [event["g"] for event in events] == [3, 4, 5, 6, 7, 8]
    assert "released r1: pod_succeeded" in hami("audit", "node", "n1").out


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("pod", "team-a/trian", "similar: team-a/train"),
        ("pod", "train", "similar: team-a/train"),
        ("device", "GPU-c", "similar: GPU-"),
        ("node", "zebra", "among others: n1"),
    ],
)
def test_an_unknown_name_is_answered_with_what_exists(hami: Hami, kind: str, name: str, said: str) -> None:
    ran = hami("audit", kind, name)
    assert (ran.code, said in ran.err) == (Exit.NOT_FOUND, True), ran.err


def test_an_empty_log_knows_nobody(hami: Hami, url: str) -> None:
    anyio.run(write, url, [])
    assert "it knows none at all" in hami("audit", "node", "n1").err


# Dead letters


async def bury(url: str) -> None:
    async with Client(url) as client:
        store = RedisStore(client)
        await store.inbox("n1").put([sealed(1, producer="agent-n1")])
        ((entry, raw),) = await store.inboxes.peek("n1")
        await store.inboxes.bury("n1", entry, raw, "agents may not write node.lost")


async def inbox_of(url: str) -> list[bytes]:
    async with Client(url) as client:
        return [raw for _, raw in await RedisStore(client).inboxes.peek("n1")]


def test_a_dead_letter_is_listed_with_its_reason_and_can_go_back(hami: Hami, url: str) -> None:
    assert "dead letters: none" in hami("dlq", "list").out
    anyio.run(bury, url)
    (letter,) = hami("dlq", "list", "-o", "json").json["dead_letters"]
    assert (letter["node"], letter["type"], letter["why"]) == ("n1", "hami.node.lost", "agents may not write node.lost")
    assert anyio.run(inbox_of, url) == []
    assert hami("dlq", "replay", letter["id"]).code == Exit.OK
    assert len(anyio.run(inbox_of, url)) == 1
    gone = hami("dlq", "replay", letter["id"])
    assert (gone.code, "there are: none" in gone.err) == (Exit.NOT_FOUND, True)
    assert hami("dlq", "replay", "first").code == Exit.USAGE
