"""The race: two scheduler processes asked at the same moment, for the same pods and for the same last card."""

from collections import Counter
from typing import Any

import anyio

from hami.domain.allocation import Allocation, usage_of
from hami.domain.device import DeviceUsage
from hami.kube.kinds import PODS
from hami.sim.demo import pods
from hami.sim.demo.claims import Claims
from hami.sim.demo.stage import NODE_NAMES, Stage

CONTENDERS = 16
WANTED = 30000
"""MiB for each contender: one card holds one of them."""
ELSEWHERE = "race-scheduler"
"""A scheduler name that the simulated kube-scheduler leaves alone, so that only the race asks."""


async def race(stage: Stage, claims: Claims) -> None:
    stage.add_scheduler("scheduler-2").start()
    await claims.eventually("a second scheduler is ready", lambda: stage.ready("scheduler-2"), within=25)
    contenders = [await _contender(stage, i) for i in range(CONTENDERS)]
    answers = await _ask_both(stage, contenders)
    await stage.view.wait_for(await stage.store.log.head(), timeout=5)
    held = _held_by(stage, {each["metadata"]["uid"] for each in contenders})
    placed = Counter(allocation.reservation.scheduler for allocation in held.values())
    refused = sum(1 for answer in answers if not answer.get("NodeNames"))
    seen = ", ".join(f"{count} by {name}" for name, count in sorted(placed.items()))
    claims.check(
        "both were asked for every pod at once; each pod has one reservation at most",
        held=len(held) > 0 and len(answers) == 2 * CONTENDERS,
        seen=f"{len(held)} of {CONTENDERS} pods reserved ({seen}); {refused} answers were refusals",
    )
    over = _overbooked(stage)
    claims.check("no card is given out beyond its memory, cores or slots", held=not over, seen=over or "recounted from the log")
    agreed = _agree(answers, held)
    claims.check("no scheduler named a node that the log does not", held=not agreed, seen=agreed or "every answer checked")
    for each in contenders:
        await stage.kube.delete_pod("default", each["metadata"]["name"], grace=0)


async def _contender(stage: Stage, number: int) -> dict[str, Any]:
    wanted = pods.pod(f"race-{number}", pods.container(gpu=1, gpumem=WANTED), spec={"schedulerName": ELSEWHERE})
    made = await stage.kube.create_pod(wanted)
    return await stage.kube.read(PODS, "default", made["metadata"]["name"])


async def _ask_both(stage: Stage, contenders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every pod to both schedulers, all at once; `asked` names the pod in each answer."""
    answers: list[dict[str, Any]] = []

    async def ask(scheduler: str, pod: dict[str, Any]) -> None:
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(NODE_NAMES)}
        _, answer = await stage.ask(scheduler, "/filter", body)
        answers.append({**answer, "asked": pod["metadata"]["uid"]})

    async with anyio.create_task_group() as tasks:
        for i, pod in enumerate(contenders):
            for scheduler in ("scheduler-1", "scheduler-2") if i % 2 else ("scheduler-2", "scheduler-1"):
                tasks.start_soon(ask, scheduler, pod)
    return answers


def _held_by(stage: Stage, uids: set[str]) -> dict[str, Allocation]:
    return {
        allocation.reservation.owner.uid: allocation
        for allocation in stage.view.state.allocations.values()
        if allocation.reservation.owner.uid in uids
    }


def _agree(answers: list[dict[str, Any]], held: dict[str, Allocation]) -> str:
    """The last word of each pod is in the log; a node that lost its reservation to a later answer is not named twice."""
    for answer in answers:
        names = answer.get("NodeNames") or []
        if names and answer["asked"] not in held:
            return f"{answer['asked']} was promised {names[0]}, the log holds nothing"
    return ""


def _overbooked(stage: Stage) -> str:
    """Recounted from the live allocations, not from the sums that the schedulers keep."""
    used: dict[tuple[str, str], DeviceUsage] = {}
    for allocation in stage.view.state.allocations.values():
        reservation = allocation.reservation
        for uuid, usage in usage_of(reservation.containers, init_done=allocation.init_done).items():
            key = reservation.node, uuid
            used[key] = used[key].plus(usage) if key in used else usage
    for node in stage.view.state.nodes.values():
        for state in node.devices:
            device, sum_ = state.device, used.get((node.name, state.device.uuid), DeviceUsage())
            if sum_.memory > device.memory or sum_.cores > device.cores or sum_.slots > device.slots:
                return f"{device.uuid}: {sum_.memory} of {device.memory} MiB, {sum_.cores} % of {device.cores} %"
    return ""
