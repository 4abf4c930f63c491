"""The reflector against everything a watch can do to its reader."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from hami.domain.errors import HamiError, InvalidInput
from hami.domain.pod import Pod
from hami.kube.client import KubeClient
from hami.kube.kinds import PODS
from hami.kube.results import Added, Bookmark, Deleted, Modified, Skipped
from hami.kube.watch import Backoff, Interrupted, Reflected, Reflector, Replaced
from hami.sim.apiserver.app import RunningServer, Settings, serving
from hami.sim.apiserver.faults import Fault
from tests.support.objects import pod
from tests.support.waiting import wait_until

QUICK = Backoff(first=0.005, most=0.02)


class Followed:
    """Keeps what a reflector said, and the state it adds up to."""

    def __init__(self) -> None:
        self.told: list[Reflected[Pod]] = []
        self.state: dict[str, Pod] = {}

    async def take(self, event: Reflected[Pod]) -> None:
        self.told.append(event)
        match event:
            case Replaced(items):
                self.state = {each.key: each for each in items}
            case Added(found) | Modified(found):
                self.state[found.key] = found
            case Deleted(found):
                self.state.pop(found.key, None)

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(each, kind) for each in self.told)

    @property
    def names(self) -> list[str]:
        return sorted(each.metadata.name for each in self.state.values())


@asynccontextmanager
async def following(client: KubeClient, **options: Any) -> AsyncIterator[Followed]:
    followed = Followed()
    reflector = Reflector(client, PODS, followed.take, backoff=QUICK, seed=1, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reflector.run)
        await wait_until(lambda: followed.count(Replaced) > 0, "the first list")
        yield followed
        tasks.cancel_scope.cancel()


async def test_lists_in_pages_then_follows_every_change(sim: RunningServer, sim_client: KubeClient) -> None:
    sim.load("pods", [pod(f"p{index}", namespace="default") for index in range(7)])
    async with following(sim_client, page=3) as followed:
        assert followed.names == [f"p{index}" for index in range(7)]
        await sim_client.create_pod(pod("new"))
        await sim_client.patch_pod("default", "new", {"metadata": {"annotations": {"a": "b"}}})
        await sim_client.delete_pod("default", "p0", grace=0)
        await wait_until(lambda: followed.count(Deleted) == 1, "the deletion")
        assert followed.names == ["new", *(f"p{index}" for index in range(1, 7))]
        assert followed.state["default/new"].metadata.annotations == {"a": "b"}
        assert followed.count(Replaced) == 1


async def test_an_object_that_leaves_the_selection_is_deleted(sim_client: KubeClient) -> None:
    await sim_client.create_pod(pod("a", labels={"app": "demo"}))
    async with following(sim_client, labels="app=demo") as followed:
        assert followed.names == ["a"]
        await sim_client.patch_pod("default", "a", {"metadata": {"labels": {"app": None}}})
        await wait_until(lambda: followed.count(Deleted) == 1, "the pod leaves the selection")
        assert followed.names == []
        await sim_client.patch_pod("default", "a", {"metadata": {"labels": {"app": "demo"}}})
        await wait_until(lambda: followed.names == ["a"], "the pod enters it again")
        assert followed.count(Added) == 1


async def test_a_continue_token_that_expires_starts_the_list_over(sim: RunningServer, sim_client: KubeClient) -> None:
    sim.load("pods", [pod(f"p{index}", namespace="default") for index in range(4)])
    pages = sim_client.list_pages(PODS, limit=3)
    first = await anext(pages)
    assert len(first.items) == 3
    await sim_client.create_pod(pod("p9"))
    sim.compact()
    rest = [page async for page in pages]
    assert [page.first for page in rest] == [True, False]
    assert [each.metadata.name for page in rest for each in page.items] == ["p0", "p1", "p2", "p3", "p9"]


@pytest.mark.parametrize(
    "fault", [Fault(watch=True, times=1, expire=True), Fault(watch=True, times=1, status=410, message="gone")]
)
async def test_410_in_the_stream_or_as_status_lists_again(fault: Fault, sim: RunningServer, sim_client: KubeClient) -> None:
    sim.faults.add(fault)
    async with following(sim_client) as followed:
        await wait_until(lambda: followed.count(Replaced) == 2, "a second list")
        await sim_client.create_pod(pod("a"))
        await wait_until(lambda: followed.names == ["a"], "the watch after it")
        assert followed.count(Interrupted) == 0


async def test_a_reader_that_falls_behind_the_ring_lists_again() -> None:
    async with serving(Settings(ring_size=5)) as sim, KubeClient.at(sim.url) as client:
        gate = sim.faults.add(Fault(watch=True, times=1, delay=0.3))
        async with following(client) as followed:
            await wait_until(lambda: gate.hits == 1, "the watch has begun")
            for index in range(8):
                await client.create_pod(pod(f"p{index}"))
            await wait_until(lambda: len(followed.names) == 8, "all pods, by a second list")
            assert followed.count(Replaced) == 2


async def test_a_watch_that_ends_is_resumed_where_it_ended(sim: RunningServer, sim_client: KubeClient) -> None:
    ending = sim.faults.add(Fault(watch=True, times=3, close_after=1))
    async with following(sim_client) as followed:
        for index in range(6):
            await sim_client.create_pod(pod(f"p{index}"))
        await wait_until(lambda: len(followed.names) == 6, "every pod")
        assert ending.hits == 3
        assert followed.count(Replaced) == 1
        added = [each.object.metadata.name for each in followed.told if isinstance(each, Added)]
        assert added == [f"p{index}" for index in range(6)]


async def test_a_connection_cut_inside_a_line_loses_nothing(sim: RunningServer, sim_client: KubeClient) -> None:
    sim.faults.add(Fault(watch=True, times=2, close_after=1, cut=True))
    async with following(sim_client) as followed:
        for index in range(4):
            await sim_client.create_pod(pod(f"p{index}"))
        await wait_until(lambda: len(followed.names) == 4, "every pod")
        assert followed.count(Replaced) == 1
        assert followed.count(Interrupted) == 2
        assert followed.count(Skipped) == 0


async def test_a_server_that_fails_for_a_while_is_asked_again(sim: RunningServer, sim_client: KubeClient) -> None:
    sim.faults.add(Fault(method="GET", path="/pods", times=2, status=503, message="etcd leader changed"))
    # The HTTP client itself retries once when a kept connection is lost; the second loss reaches us.
    dropped = sim.faults.add(Fault(method="GET", path="/pods", times=2, drop=True))
    async with following(sim_client) as followed:
        assert (followed.count(Interrupted), dropped.hits) == (3, 2)
        assert isinstance(followed.told[0], Interrupted)
        assert "etcd leader changed" in followed.told[0].why


async def test_a_bad_object_in_a_list_costs_only_itself(sim: RunningServer, sim_client: KubeClient) -> None:
    bad = pod("bad", namespace="default")
    bad["spec"]["nodeName"] = 7
    sim.load("pods", [pod("a", namespace="default"), bad, pod("c", namespace="default")])
    async with following(sim_client) as followed:
        assert followed.names == ["a", "c"]
        (skipped,) = [each for each in followed.told if isinstance(each, Skipped)]
        assert skipped.name == "default/bad"
        assert "nodeName" in skipped.why


async def test_bad_lines_in_a_watch_cost_only_themselves(sim: RunningServer, sim_client: KubeClient) -> None:
    lines = (
        b'{"type":"MODIFIED","object":{"metadata":{"name":"bad","namespace":"default"},"spec":{"nodeName":7}}}\n'
        b'{"type":"NOVEL","object":{"metadata":{"name":"odd","namespace":"default"}}}\n'
        b"\n"
        b"not json\n"
    )
    sim.faults.add(Fault(watch=True, times=1, inject=lines))
    async with following(sim_client) as followed:
        await sim_client.create_pod(pod("a"))
        await wait_until(lambda: followed.names == ["a"], "the pod after the bad lines")
        skipped = [each.name for each in followed.told if isinstance(each, Skipped)]
        assert skipped == ["default/bad", "default/odd", "(unreadable)"]
        assert followed.count(Replaced) == 1


async def test_lines_split_anywhere_between_chunks_are_whole(sim: RunningServer, sim_client: KubeClient) -> None:
    big = {f"hami.io/{index}": "x" * 1000 for index in range(200)}
    async with following(sim_client) as followed:
        await sim_client.create_pod(pod("big", annotations=big))
        await sim_client.create_pod(pod("small"))
        await wait_until(lambda: followed.names == ["big", "small"], "both pods")
        assert followed.state["default/big"].metadata.annotations == big


async def test_bookmarks_move_the_version_so_that_a_quiet_watch_never_expires(
    sim: RunningServer, sim_client: KubeClient
) -> None:
    async with following(sim_client, labels="never=here") as followed:
        for index in range(3):
            await sim_client.create_pod(pod(f"p{index}"))
        await wait_until(
            lambda: any(isinstance(each, Bookmark) and int(each.resource_version) >= sim.revision for each in followed.told),
            "a bookmark at the newest version",
        )
        assert followed.count(Added) == 0


async def test_a_watch_of_one_second_is_renewed_without_a_new_list(sim_client: KubeClient) -> None:
    async with following(sim_client, watch_seconds=1) as followed:
        before = followed.count(Bookmark)
        await wait_until(lambda: followed.count(Bookmark) > before + 6, "bookmarks of several watches")
        assert followed.count(Replaced) == 1
        assert followed.count(Interrupted) == 0


async def test_a_receiver_that_fails_ends_the_reflector_instead_of_being_retried(sim_client: KubeClient) -> None:
    async def fail(_: object) -> None:
        raise InvalidInput("pod", "x", "our own bug")

    reflector = Reflector(sim_client, PODS, fail, backoff=QUICK)
    with pytest.raises(HamiError, match="the receiver of pods failed"), anyio.fail_after(5):
        await reflector.run()
