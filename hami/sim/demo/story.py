"""The demo's chapters. Each acts on the stage like a user or like bad luck, and claims what must follow."""

import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from hami.domain.allocation import Phase
from hami.domain.device import Health
from hami.kube.kinds import PODS
from hami.projections.checkpoint import digest_of
from hami.sim.demo import pods
from hami.sim.demo.claims import Claims
from hami.sim.demo.race import race
from hami.sim.demo.stage import CARDS, NODE_NAMES, Stage, set_up

Look = Callable[[], Awaitable[tuple[bool, str]]]


async def tell(claims: Claims, *, serve: bool = False) -> None:
    """The whole story. Claims that did not hold are in `claims`; only a bug raises."""
    with tempfile.TemporaryDirectory(prefix="hami-demo-") as folder:
        async with set_up(Path(folder)) as stage:
            story = Story(stage, claims)
            for chapter in (story.start, story.place, story.fault, story.outage, story.restart, story.race, story.audit):
                await chapter()
            if serve:
                await story.serve()


class Story:
    def __init__(self, stage: Stage, claims: Claims) -> None:
        self.stage, self.claims, self.screen = stage, claims, claims.screen

    # 1

    async def start(self) -> None:
        self.screen.chapter("A cluster: 3 nodes with 4 GPUs each, real agents, a real scheduler, a real event log")
        total = len(NODE_NAMES) * CARDS

        async def registered() -> tuple[bool, str]:
            for process in (*self.stage.agents.values(), *self.stage.schedulers.values()):
                process.check()
            nodes = self.stage.view.state.nodes
            devices = sum(len(node.devices) for node in nodes.values())
            return devices == total, f"{devices} devices of {len(nodes)} nodes in the log"

        async def offered() -> tuple[bool, str]:
            slots = [await self._allocatable(name) for name in NODE_NAMES]
            return all(slots), f"nvidia.com/gpu allocatable: {', '.join(map(str, slots))}"

        await self.claims.eventually("every device is registered in the log", registered, within=25)
        await self.claims.eventually("the scheduler is ready", lambda: self.stage.ready("scheduler-1"), within=25)
        await self.claims.eventually("each kubelet offers the shared devices", offered, within=15)

    async def _allocatable(self, node: str) -> int:
        found = await self.stage.kube.get_node(node)
        status = found.status if found is not None else None
        return int(str((status.allocatable or {}).get("nvidia.com/gpu", 0))) if status is not None else 0

    # 2

    async def place(self) -> None:
        self.screen.chapter("Pods of several shapes")
        for _, shape in pods.SHAPES:
            await self.stage.kube.create_pod(shape)
        rows: list[list[str]] = []
        for words, shape in pods.SHAPES:
            name = shape["metadata"]["name"]
            await self.claims.eventually(f"{name} ({words}) sees exactly what was reserved", self._served(name), within=15)
            names = [each["name"] for each in (*shape["spec"].get("initContainers", []), *shape["spec"]["containers"])]
            rows += [[name, each, self._node_of(name), pods.seen_in_words(self._seen(name, each))] for each in names]
        self.screen.table(["pod", "container", "node", "what the container sees"], rows)
        await self._bypass()
        await self._too_big()

    def _served(self, name: str) -> Look:
        async def look() -> tuple[bool, str]:
            allocation = self._allocation(name)
            if allocation is None:
                return False, await self._condition(name)
            for container in allocation.reservation.containers:
                wrong = pods.differences(self._seen(name, container.name), container)
                if container.shares and wrong:
                    return False, f"container {container.name}: {wrong}"
            return allocation.phase is Phase.PREPARED, f"{allocation.phase} on {pods.rows_of(allocation)}"

        return look

    async def _bypass(self) -> None:
        await self.stage.kube.create_pod(pods.bypassing(NODE_NAMES[0]))

        async def sees_nothing() -> tuple[bool, str]:
            view = self._seen("bypass", "main", NODE_NAMES[0])
            return view is not None and not view.visible_devices, pods.seen_in_words(view)

        await self.claims.eventually("a pod that bypasses hami gets no GPU, not somebody else's", sees_nothing, within=10)

    async def _too_big(self) -> None:
        await self.stage.kube.create_pod(pods.pod("huge", pods.container(gpu=1, gpumem=900_000)))

        async def refused() -> tuple[bool, str]:
            said = await self._condition("huge")
            return "CardInsufficientMemory" in said, said

        await self.claims.eventually("a pod that fits nowhere is told why, in HAMi's words", refused, within=10)
        await self.stage.kube.delete_pod("default", "huge", grace=0)

    # 3

    async def fault(self) -> None:
        self.screen.chapter("XID 79: a card falls off the bus")
        victim = self._allocation("infer")
        if victim is None:
            self.claims.check("there is a pod to hit", held=False, seen="infer has no allocation")
            return
        node, uuid = victim.reservation.node, victim.reservation.containers[0].shares[0].uuid
        self.screen.say(f"{uuid} on {node} reports XID 79")
        self.stage.strike(node, uuid, 79)
        await self.claims.eventually("the log says that the card is unhealthy", self._health(node, uuid), within=10)
        await self.claims.eventually("the kubelet was told as well", self._kubelet_health(node, uuid), within=10)
        hit = sorted(
            allocation.reservation.owner.name
            for allocation in self.stage.view.state.allocations.values()
            if any(share.uuid == uuid for each in allocation.reservation.containers for share in each.shares)
        )
        self.claims.check("the pods on that card are known", held="infer" in hit, seen=", ".join(hit) or "none")
        await self.stage.kube.create_pod(pods.pod("after-fault", pods.container(gpu=1, gpumem=2000)))
        await self.claims.eventually("a new pod is placed elsewhere", self._avoids("after-fault", uuid), within=10)

    def _health(self, node: str, uuid: str) -> Look:
        async def look() -> tuple[bool, str]:
            for state in self.stage.view.state.nodes[node].devices:
                if state.device.uuid == uuid:
                    return state.health is Health.UNHEALTHY, f"{state.health}: {state.health_reason}"
            return False, "the card is not in the view"

        return look

    def _kubelet_health(self, node: str, uuid: str) -> Look:
        async def look() -> tuple[bool, str]:
            shelves = self.stage.kubelets[node].books.shelves
            mine = [well for each, well in shelves["nvidia.com/gpu"].devices.items() if each.startswith(uuid)]
            return bool(mine) and not any(mine), f"{len(mine)} slots of {uuid}, {sum(mine)} healthy"

        return look

    def _avoids(self, name: str, uuid: str) -> Look:
        async def look() -> tuple[bool, str]:
            allocation = self._allocation(name)
            if allocation is None:
                return False, await self._condition(name)
            held = {share.uuid for each in allocation.reservation.containers for share in each.shares}
            return uuid not in held, pods.rows_of(allocation)

        return look

    # 4

    async def outage(self) -> None:
        self.screen.chapter("The event store dies (kill -9) and comes back")
        before = (await self.stage.store.log.head()).g
        self.stage.server.kill()
        node, uuid = "node-c", "GPU-cccc3"
        self.stage.strike(node, uuid, 79)
        await self.claims.eventually(
            "without a store, the kubelet still learns of a fault", self._kubelet_health(node, uuid), within=10
        )
        await self.stage.kube.create_pod(pods.pod("patient", pods.container(gpu=1, gpumem=1000)))
        await self.claims.eventually("without a store, nothing is placed on a guess", self._waits("patient"), within=10)
        await self.stage.server.start()
        await self.claims.eventually("the fault seen meanwhile reaches the log", self._health(node, uuid), within=15)
        await self.claims.eventually("the waiting pod is placed", self._served("patient"), within=20)
        entries = await self.stage.store.log.read(self.stage.view.state.position.__class__(0, "0-0"), limit=before)
        whole = [record.position.g for record in entries] == list(range(1, before + 1))
        seen = f"of events 1 to {before}, {len(entries)} are there"
        self.claims.check("no acknowledged event was lost", held=whole, seen=seen)

    def _waits(self, name: str) -> Look:
        async def look() -> tuple[bool, str]:
            found = await self.stage.kube.get_pod("default", name)
            said = await self._condition(name)
            return found is not None and not found.spec.node_name and "hami" in said, said

        return look

    # 5

    async def restart(self) -> None:
        self.screen.chapter("The scheduler dies (kill -9) and is rebuilt from the log")
        scheduler = self.stage.schedulers["scheduler-1"]
        before = await self._settled_digest("scheduler-1")
        scheduler.kill()
        scheduler.start()
        await self.claims.eventually("it is ready again", lambda: self.stage.ready("scheduler-1"), within=20)

        async def same() -> tuple[bool, str]:
            _, now = await self.stage.ask("scheduler-1", "/debug/view")
            ours = digest_of(self.stage.view.state)
            at = self.stage.view.state.position.g
            equal = now["g"] == at and now["digest"] == ours
            return equal, f"at event {now['g']} it holds state {now['digest'][:12]}, another reader of the log {ours[:12]}"

        self.claims.check("before the end its state equalled another reader's", held=before[0], seen=before[1])
        await self.claims.eventually("the rebuilt state equals the running one", same, within=10)

    async def _settled_digest(self, name: str) -> tuple[bool, str]:
        """The scheduler's and our own digest at the same event."""
        for _ in range(100):
            _, theirs = await self.stage.ask(name, "/debug/view")
            if await self.stage.view.wait_for(int(theirs["g"]), timeout=2) and self.stage.view.position.g == theirs["g"]:
                ours = digest_of(self.stage.view.state)
                return ours == theirs["digest"], f"event {theirs['g']}: {theirs['digest'][:12]} and {ours[:12]}"
            await anyio.sleep(0.05)
        return False, "the two never stood at the same event"

    # 6

    async def race(self) -> None:
        self.screen.chapter("Two schedulers race for the same cards")
        await race(self.stage, self.claims)

    # 7

    async def audit(self) -> None:
        self.screen.chapter("One pod's audit trail, from the log")
        await self.stage.kube.delete_pod("default", "half", grace=0)

        async def released() -> tuple[bool, str]:
            held = self._allocation("half")
            return held is None, "nothing is held any more" if held is None else f"still held on {pods.rows_of(held)}"

        await self.claims.eventually("deleting a pod frees its share", released, within=10)
        told = await self._hami("audit", "pod", "default/half", "--output", "json")
        story = [entry["type"].removeprefix("hami.") for entry in _entries(told)]
        wanted = [
            "placement.requested",
            "allocation.reserved",
            "allocation.bound",
            "allocation.prepared",
            "allocation.released",
        ]
        kept = [each for each in story if each in wanted]
        self.claims.check("the log tells the pod's whole life", held=kept == wanted, seen=" -> ".join(story))
        self.screen.say("$ hami audit pod default/half")
        for line in (await self._hami("audit", "pod", "default/half")).splitlines():
            self.screen.say(line)

    async def serve(self) -> None:
        self.screen.chapter("Still up: look around, Ctrl-C ends it")
        self.screen.say(f"export HAMI_REDIS_URL={self.stage.server.url}")
        self.screen.say("hami state; hami events tail; hami audit pod default/infer")
        self.screen.say(f"kubectl --kubeconfig {self.stage.folder}/kubeconfig.json get pods")
        await anyio.sleep_forever()

    # What can be seen

    def _allocation(self, name: str) -> Any:
        for allocation in self.stage.view.state.allocations.values():
            if allocation.reservation.owner.name == name:
                return allocation
        return None

    def _node_of(self, name: str) -> str:
        allocation = self._allocation(name)
        return "-" if allocation is None else str(allocation.reservation.node)

    def _seen(self, name: str, container: str, node: str = "") -> Any:
        kubelet = self.stage.kubelets.get(node or self._node_of(name))
        return None if kubelet is None else kubelet.runtime.view(name, container)

    async def _condition(self, name: str) -> str:
        """Why the API says a pod is not scheduled."""
        raw = await self.stage.kube.read(PODS, "default", name)
        for condition in raw.get("status", {}).get("conditions", []):
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message", ""))
        return f"no condition yet, node {raw['spec'].get('nodeName') or 'none'}"

    async def _hami(self, *arguments: str) -> str:
        import sys  # noqa: PLC0415 - only here

        done = await anyio.run_process([sys.executable, "-m", "hami.cli", *arguments], env=self.stage.env, check=False)
        return done.stdout.decode() or done.stderr.decode()


def _entries(told: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(told)
    except ValueError:
        return []
    found = document.get("events", []) if isinstance(document, dict) else document
    return list(found)
