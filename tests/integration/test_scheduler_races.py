"""Two schedulers over one log: one pod, one last card, one binding. Whoever loses says so and nothing is given twice."""

import anyio

from hami.events.catalog.allocation import AllocationBound, AllocationLapsed, AllocationReserved
from hami.events.catalog.governance import QuotaChanged
from hami.kube.kinds import QUOTAS
from tests.integration.test_scheduler import WHOLE
from tests.support.scheduler import Caller, Obj, World
from tests.support.waiting import wait_until


async def _both(world: World, first: tuple[Caller, Obj], second: tuple[Caller, Obj], names: list[str]) -> list[Obj]:
    answers: list[Obj] = [{}, {}]

    async def ask(place: int, caller: Caller, pod: Obj) -> None:
        answers[place] = await caller.filter(pod, names)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 0, *first)
        tasks.start_soon(ask, 1, *second)
    return answers


async def test_two_schedulers_and_the_last_card(world: World) -> None:
    await world.add_node("n1")
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        for round_ in range(5):
            pods = [await world.add_pod(f"p{round_}-{each}", limits=WHOLE) for each in "ab"]
            answers = await _both(world, (a, pods[0]), (b, pods[1]), ["n1"])
            winners = [pod for pod, answer in zip(pods, answers, strict=True) if answer["NodeNames"]]
            losers = [answer for answer in answers if not answer["NodeNames"]]
            assert len(winners) == 1, answers
            assert losers[0]["FailedNodes"]["n1"].startswith("1/1 ")
            assert losers[0]["Error"] == ""
            for pod in pods:
                await world.kube.delete_pod("default", pod["metadata"]["name"], grace=0)

            async def free() -> bool:
                return await a.metric('hami_reservations{phase="reserved"}') == 0

            await wait_until(free, "the card to be free again")
            await world.settled(b)


async def test_two_schedulers_and_one_pod(world: World) -> None:
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.add_pod("p1", limits=WHOLE)
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        answers = await _both(world, (a, pod), (b, pod), ["n1", "n2"])
        assert all(answer["NodeNames"] or answer["Error"] for answer in answers)
        live = len(await world.events(AllocationReserved)) - len(await world.events(AllocationLapsed))
        assert live == 1
        last = (await world.events(AllocationReserved))[-1].reservation.node
        errors: list[str] = ["", ""]

        async def bind(place: int, caller: Caller, where: str) -> None:
            errors[place] = await caller.bind(pod, where)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bind, 0, a, last)
            tasks.start_soon(bind, 1, b, last)
        assert "" in errors
    assert (await world.pod_of("p1"))["spec"]["nodeName"] == last
    assert len(await world.events(AllocationBound)) == 1


async def test_one_pod_offered_different_nodes_holds_one_reservation(world: World) -> None:
    """No node and no quota is shared here: only the pod's own version stands between them."""
    await world.add_node("n1")
    await world.add_node("n2")
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        for number in range(5):
            pod = await world.add_pod(f"p{number}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(a.filter, pod, ["n1"])
                tasks.start_soon(b.filter, pod, ["n2"])
            reserved, lapsed = await world.events(AllocationReserved), await world.events(AllocationLapsed)
            assert len(reserved) - len(lapsed) == number + 1


async def test_filter_on_one_replica_and_bind_on_the_other(world: World) -> None:
    await world.add_node("n1")
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        for number in range(5):
            pod = await world.add_pod(f"p{number}")
            assert (await a.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            assert await b.bind(pod, "n1") == ""


async def test_many_pods_at_once_never_overcommit(world: World) -> None:
    for name in ("n1", "n2"):
        await world.add_node(name)
    pods = [
        await world.add_pod(f"p{number}", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"}) for number in range(8)
    ]
    placed: list[str] = []

    async def schedule(caller: Caller, pod: Obj) -> None:
        for _ in range(4):
            found = await caller.filter(pod, ["n1", "n2"])
            if not found["NodeNames"]:
                if found["Error"]:
                    continue
                return
            if await caller.bind(pod, found["NodeNames"][0]) == "":
                placed.append(found["NodeNames"][0])
                return

    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b, anyio.create_task_group() as tasks:
        for number, pod in enumerate(pods):
            tasks.start_soon(schedule, (a, b)[number % 2], pod)
    assert sorted(placed) == ["n1", "n1", "n2", "n2"]


async def test_two_schedulers_two_nodes_and_a_quota_for_one(world: World) -> None:
    """Different cards, the same limit: the quota's version lets one through."""
    for name in ("n1", "n2"):
        await world.add_node(name)
    hard = {"limits.nvidia.com/gpumem": "1500"}
    await world.kube.create(QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}})
    async with world.scheduler(id="a") as a, world.scheduler(id="b") as b:
        await world.seen(QuotaChanged)
        await world.settled(a)
        await world.settled(b)
        for round_ in range(4):
            pods = [await world.add_pod(f"q{round_}-{each}") for each in "ab"]
            answers: list[Obj] = [{}, {}]

            async def ask(place: int, caller: Caller, pod: Obj, name: str, answers: list[Obj] = answers) -> None:
                answers[place] = await caller.filter(pod, [name])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, 0, a, pods[0], "n1")
                tasks.start_soon(ask, 1, b, pods[1], "n2")
            assert sorted(bool(answer["NodeNames"]) for answer in answers) == [False, True], answers
            assert [answer["Error"] for answer in answers] == ["", ""]
            for pod in pods:
                await world.kube.delete_pod("default", pod["metadata"]["name"], grace=0)

            async def free() -> bool:
                return await a.metric('hami_reservations{phase="reserved"}') == 0

            await wait_until(free, "the quota to be free again")
            await world.settled(b)
