"""MIG from filter to container: an instance is made before the Binding, is what the container sees, and goes with the pod."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from hami.domain.device import Health
from hami.domain.reasons import Reason
from hami.events.catalog.allocation import AllocationBound, AllocationFailed, AllocationPrepared, AllocationReleased
from hami.events.catalog.device import (
    DeviceHealthChanged,
    HealthWatchPaused,
    HealthWatchResumed,
    MigApplyFailed,
    MigInstanceCreated,
    MigInstanceDestroyed,
)
from hami.nodeagent.backends.simulated import SimulatedBackend
from hami.scheduler import texts
from tests.support.agents import NODE
from tests.support.mig import ONE, CutNode, backend_with, cut_node
from tests.support.plugins import socket_folder
from tests.support.scheduler import World
from tests.support.waiting import wait_until

pytestmark = pytest.mark.simulated  # the kubelet is


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


@pytest.fixture
def backend() -> SimulatedBackend:
    return backend_with()


@pytest.fixture
async def cut(world: World, folder: Path, backend: SimulatedBackend) -> AsyncIterator[CutNode]:
    async with cut_node(world, folder, backend) as made:
        yield made


async def test_a_pod_gets_an_instance_of_its_own_and_gives_it_back(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent():
        made = await cut.placed(caller, "p1")
        [instance] = cut.backend.mig.instances
        assert (instance.profile, instance.placement.start) == ("1g.10gb", 6)
        assert await cut.visible("p1") == (instance.uuid,)
        [created] = await cut.told(MigInstanceCreated)
        [bound] = await cut.told(AllocationBound)
        assert (created.reservation, created.instance.uuid) == (bound.reservation, instance.uuid)
        [prepared] = await cut.told(AllocationPrepared)
        assert (prepared.owner_uid, prepared.difference) == (made["metadata"]["uid"], "")
        view = cut.kubelet.runtime.view("p1", "main")
        assert view is not None
        assert view.mounts == ()
        await cut.gone("p1")
        await cut.instances(0)
        [destroyed] = await cut.told(MigInstanceDestroyed)
        assert (destroyed.instance.uuid, destroyed.why) == (instance.uuid, "its reservation has ended")


async def test_two_pods_at_once_get_two_instances(cut: CutNode) -> None:
    async with cut.world.scheduler(bind_wait_s=5.0) as caller, cut.agent():
        first, second = await cut.pod("p1"), await cut.pod("p2")
        await cut.fits(caller, first)
        await cut.fits(caller, second)
        answers: list[str] = []

        async def bind(made: dict[str, object]) -> None:
            answers.append(await caller.bind(made, NODE))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bind, first)
            tasks.start_soon(bind, second)
        assert answers == ["", ""]
        seen = [*await cut.visible("p1"), *await cut.visible("p2")]
        assert sorted(seen) == sorted(each.uuid for each in cut.backend.mig.instances)
        assert len(set(seen)) == 2


async def test_a_full_card_is_refused_in_hamis_words(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent():
        for number in range(7):
            await cut.placed(caller, f"p{number}")
        more = await cut.pod("more")
        answer = await caller.filter(more, [NODE])
        assert answer["FailedNodes"] == {NODE: f"1/1 {Reason.CARD_TIME_SLICING_EXHAUSTED}"}
        await cut.gone("p0")
        await cut.fits(caller, more)
        assert await caller.bind(more, NODE) == ""


async def test_a_card_without_a_place_large_enough_is_refused_in_hamis_words(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent():
        await cut.placed(caller, "p0")
        large = await cut.pod("large", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "60000"})
        answer = await caller.filter(large, [NODE])
        assert answer["FailedNodes"] == {NODE: f"1/1 {Reason.CARD_MIG_TOPOLOGY_INFEASIBLE}"}
        huge = await cut.pod("huge", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "80000"})
        answer = await caller.filter(huge, [NODE])
        assert answer["FailedNodes"] == {NODE: f"1/1 {Reason.CARD_INSUFFICIENT_MEMORY}"}


async def test_several_instances_of_one_card_go_to_one_container(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent():
        await cut.placed(caller, "p1", {**ONE, "nvidia.com/gpu": "3"})
        assert sorted(await cut.visible("p1")) == sorted(each.uuid for each in cut.backend.mig.instances)
        assert len(cut.backend.mig.instances) == 3


async def test_a_node_that_makes_nothing_in_time_frees_everything(cut: CutNode) -> None:
    """The agent is dead when the bind comes; what it makes too late is taken away again."""
    async with cut.world.scheduler(mig_wait_s=0.3) as caller:
        async with cut.agent():
            made = await cut.pod("p1")
            await cut.fits(caller, made)
        assert await caller.bind(made, NODE) == texts.MIG_SLOW
        [failed] = await cut.told(AllocationFailed)
        assert failed.reason == "the node did not make the MIG instance in time"
        assert "nodeName" not in (await cut.world.pod_of("p1"))["spec"]
        assert await cut.world.store.locks.state(NODE) is None
    async with cut.world.scheduler() as patient, cut.agent() as agent:
        await wait_until(lambda: agent.book.read, "the feed to be read")
        await cut.fits(patient, made)
        assert await patient.bind(made, NODE) == ""
        assert await cut.visible("p1") == tuple(each.uuid for each in await cut.instances(1))


async def test_a_node_that_cannot_make_it_says_so_and_bind_does_not_wait(cut: CutNode) -> None:
    cut.backend.mig.refuse("compute", "Insufficient Resources", times=100_000)
    async with cut.world.scheduler(mig_wait_s=8.0) as caller, cut.agent():
        made = await cut.pod("p1")
        await cut.fits(caller, made)
        with anyio.fail_after(6):
            assert await caller.bind(made, NODE) == texts.MIG_FAILED
        [said] = await cut.told(MigApplyFailed)
        assert (said.error, said.instance.profile) == ("Insufficient Resources", "1g.10gb")
        [failed] = await cut.told(AllocationFailed)
        assert failed.reason == "the node could not make the MIG instance: Insufficient Resources"
        await cut.instances(0)
        cut.backend.mig.relent()
        await cut.fits(caller, made)
        assert await caller.bind(made, NODE) == ""


async def test_what_fails_once_is_tried_again_within_the_same_bind(cut: CutNode) -> None:
    cut.backend.mig.refuse("gpu", "In use by another client", times=1)
    cut.backend.mig.refuse("compute", "In use by another client", times=1)
    async with cut.world.scheduler() as caller, cut.agent():
        await cut.placed(caller, "p1")
        assert len(cut.backend.mig.instances) == 1
        assert await cut.world.events(MigApplyFailed) == []


async def test_the_wait_ends_when_the_pod_goes(cut: CutNode) -> None:
    async with cut.world.scheduler(mig_wait_s=8.0) as caller:
        async with cut.agent():
            made = await cut.pod("p1")
            await cut.fits(caller, made)
        answers: list[str] = []

        async def bind() -> None:
            answers.append(await caller.bind(made, NODE))

        with anyio.fail_after(6):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bind)
                await cut.told(AllocationBound)
                await cut.gone("p1")
        assert answers == [texts.NO_RESERVATION]


async def test_a_faulty_instance_is_its_pods_affair_and_is_forgotten_with_it(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent() as agent:
        made = await cut.placed(caller, "p1")
        [instance] = cut.backend.mig.instances
        cut.backend.strike(instance.card, 78, gpu_instance=instance.gpu_instance, compute_instance=instance.compute_instance)
        [changed] = await cut.told(DeviceHealthChanged)
        assert (changed.device, changed.now) == (instance.uuid, Health.SUSPECT)
        await cut.placed(caller, "p2")
        [burst] = agent.memory.state.cards[instance.uuid].faults[0].bursts
        assert burst.workloads == (made["metadata"]["uid"],)
        await cut.gone("p1")
        await cut.instances(1)
        await wait_until(lambda: instance.uuid not in agent.memory.state.cards, "it to be forgotten")
        await cut.placed(caller, "p3")
        assert (await cut.visible("p3"))[0] == instance.uuid


async def test_a_bind_waits_for_no_node_whose_operator_changes_mig(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent():
        made = await cut.pod("p1")
        await cut.fits(caller, made)
        lock = cut.folder / "state/mig-apply.lock"
        lock.touch()
        await cut.told(HealthWatchPaused)
        await cut.world.settled(caller)
        assert await caller.bind(made, NODE) == texts.MIG_PAUSED
        assert await cut.world.events(AllocationBound) == []
        lock.unlink()
        await cut.told(HealthWatchResumed)
        await cut.world.settled(caller)
        assert await caller.bind(made, NODE) == ""


async def test_what_a_reboot_took_is_made_again_at_its_place(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller:
        async with cut.agent():
            await cut.placed(caller, "p1")
            [before] = cut.backend.mig.instances
            await cut.visible("p1")
        cut.backend.mig.forget_all()
        async with cut.agent():
            [after] = await cut.instances(1, lambda each: each.uuid)
            assert (after.place, after.uuid) == (before.place, before.uuid)


async def test_an_instance_whose_pod_left_while_the_agent_was_away_goes(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller:
        async with cut.agent():
            await cut.placed(caller, "p1")
            await cut.placed(caller, "p2")
            kept = (await cut.visible("p2"))[0]
        await cut.gone("p1")
        await cut.told(AllocationReleased)
        async with cut.agent():
            [left] = await cut.instances(1)
            assert left.uuid == kept


async def test_an_instance_outlives_the_feed_that_told_of_its_reservation(cut: CutNode) -> None:
    """A feed keeps the newest entries for a week; a pod may run for a year."""
    async with cut.world.scheduler() as caller:
        async with cut.agent():
            await cut.placed(caller, "p1")
            [made] = cut.backend.mig.instances
            await cut.told(AllocationPrepared)
        client = cut.world.redis
        await client.command.call("DEL", client.keys.feed(NODE))
        async with cut.agent() as agent:
            await wait_until(lambda: agent.book.read, "the feed to be read")
            await cut.placed(caller, "p2")
            assert made.uuid in {each.uuid for each in cut.backend.mig.instances}
            await cut.gone("p1")
            await cut.instances(1)


async def test_an_operators_instance_goes_when_it_is_idle_and_stays_when_it_is_not(cut: CutNode) -> None:
    uuid = (await cut.backend.inventory()).devices[0].uuid
    idle, busy = cut.backend.mig.put(uuid, "1g.10gb", 6), cut.backend.mig.put(uuid, "1g.10gb", 0)
    cut.backend.mig.occupy(busy.uuid)
    async with cut.world.scheduler() as caller, cut.agent():
        await cut.instances(1)
        [destroyed] = await cut.told(MigInstanceDestroyed)
        assert (destroyed.instance.uuid, destroyed.why) == (idle.uuid, "nobody's")
        await cut.placed(caller, "p1")
        assert busy.uuid in {each.uuid for each in cut.backend.mig.instances}


async def test_a_process_that_is_slow_to_end_holds_only_its_own_instance(cut: CutNode) -> None:
    async with cut.world.scheduler() as caller, cut.agent():
        await cut.placed(caller, "p1")
        await cut.placed(caller, "p2")
        stuck, other = (await cut.visible("p1"))[0], (await cut.visible("p2"))[0]
        cut.backend.mig.occupy(stuck)
        await cut.gone("p1")
        await cut.gone("p2")
        [left] = await cut.instances(1)
        assert (left.uuid, other != stuck) == (stuck, True)
        cut.backend.mig.occupy(stuck, busy=False)
        await cut.instances(0)


async def test_a_card_is_put_into_mig_mode_when_it_is_idle(world: World, folder: Path) -> None:
    backend = backend_with(2, "disabled")
    busy = [card.uuid for card in (await backend.inventory()).devices][1]
    backend.mig.occupy(busy)
    async with cut_node(world, folder, backend) as cut, world.scheduler() as caller, cut.agent() as agent:
        await wait_until(lambda: len(agent.board.offers) == 1, "the idle card to be offered")
        await cut.placed(caller, "p1")
        backend.mig.occupy(busy, busy=False)
        await wait_until(lambda: len(agent.board.offers) == 2, "the other card to be offered")


async def test_an_instance_that_looks_bare_for_a_moment_is_not_taken_from_its_pod(cut: CutNode) -> None:
    """A library that does not show a compute instance, and refuses another one, has it all the same."""
    async with cut.world.scheduler() as caller, cut.agent():
        await cut.placed(caller, "p1")
        [made] = cut.backend.mig.instances
        cut.backend.mig.veil(made.uuid)
        looks = cut.backend.mig.refused
        await wait_until(lambda: cut.backend.mig.refused > looks + 1, "it to be tried")
        cut.backend.mig.veil("")
        assert cut.backend.mig.instances == (made,)
