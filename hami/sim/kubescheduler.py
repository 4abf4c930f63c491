"""A simulated kube-scheduler: it calls the extender as a real one does and reacts to its answers as was recorded.

One pod is filtered at a time; binds overlap. Refusals wait for a change in the cluster, errors back off. It does not look at
CPU, memory, taints or affinity: every ready node is offered.
"""

import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import aiohttp
import anyio
import msgspec
from anyio.abc import TaskGroup

from hami.sim.schedulequeue import ScheduleQueue

RawObject = dict[str, Any]


class SchedulerApi(Protocol):
    """What a kube-scheduler needs of the API server. Objects are raw API JSON."""

    def changes(self, kind: str) -> AsyncIterator[tuple[str, RawObject]]:
        """`(ADDED|MODIFIED|DELETED, object)` for ever, beginning with what exists; relists on its own."""
        ...

    async def bind(self, pod: RawObject, node: str) -> None: ...

    async def set_condition(self, pod: RawObject, condition: Mapping[str, str]) -> None: ...

    async def event(self, pod: RawObject, kind: str, reason: str, message: str) -> None: ...


class Extender(msgspec.Struct, frozen=True, kw_only=True):
    """The `extenders` entry of a KubeSchedulerConfiguration (`nodeCacheCapable: true`, `ignorable: false`)."""

    url: str
    filter_verb: str = "filter"
    bind_verb: str = "bind"
    prioritize_verb: str = ""
    http_timeout_s: float = 30.0
    managed_resources: frozenset[str] = frozenset(
        {
            "nvidia.com/gpu",
            "nvidia.com/gpumem",
            "nvidia.com/gpucores",
            "nvidia.com/gpumem-percentage",
            "nvidia.com/priority",
        }
    )

    def manages(self, pod: RawObject) -> bool:
        spec = pod["spec"]
        for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
            resources = container.get("resources", {})
            if self.managed_resources & {*resources.get("limits", {}), *resources.get("requests", {})}:
                return True
        return False


class _Refused(Exception):  # noqa: N818 - control flow inside one cycle, carries the message
    pass


class KubeScheduler:
    """Runs until cancelled. `calls` counts extender calls by verb, for tests that hold us to few of them."""

    def __init__(self, api: SchedulerApi, extender: Extender, *, name: str, tls: ssl.SSLContext | None = None) -> None:
        self._api, self._extender, self._name, self._tls = api, extender, name, tls
        self._queue = ScheduleQueue()
        self._pods: dict[str, RawObject] = {}
        self._nodes: dict[str, RawObject] = {}
        self._conditions: dict[str, tuple[str, str]] = {}
        self._poke = anyio.Event()
        self.calls: Counter[str] = Counter()

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else False)
        limit = aiohttp.ClientTimeout(total=self._extender.http_timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as http, anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_nodes)
            tasks.start_soon(self._follow_pods)
            await self._schedule_for_ever(http, tasks)

    async def _follow_nodes(self) -> None:
        async for change, node in self._api.changes("nodes"):
            name = node["metadata"]["name"]
            if change == "DELETED":
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = node
            self._wake()

    async def _follow_pods(self) -> None:
        async for change, pod in self._api.changes("pods"):
            uid = pod["metadata"]["uid"]
            finished = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
            pending = not pod["spec"].get("nodeName") and not finished and "deletionTimestamp" not in pod["metadata"]
            if change == "DELETED" or not pending or pod["spec"].get("schedulerName") != self._name:
                self._pods.pop(uid, None)
                self._conditions.pop(uid, None)
                self._queue.remove(uid)
            else:
                known = uid in self._pods
                self._pods[uid] = pod
                if not known:
                    self._queue.add(uid)
            self._wake()

    def _wake(self) -> None:
        self._queue.wake()
        self._poke.set()

    async def _schedule_for_ever(self, http: aiohttp.ClientSession, tasks: TaskGroup) -> None:
        while True:
            uid = self._queue.pop(time.monotonic())
            if uid is None:
                await self._idle()
            elif uid not in self._pods or not self._nodes:
                self._queue.refused(uid)
            else:
                await self._cycle(http, tasks, self._pods[uid])

    async def _idle(self) -> None:
        thaw = self._queue.next_thaw()
        self._poke = anyio.Event()
        with anyio.move_on_after(60.0 if thaw is None else max(0.0, thaw - time.monotonic())):
            await self._poke.wait()

    async def _cycle(self, http: aiohttp.ClientSession, tasks: TaskGroup, pod: RawObject) -> None:
        """Filter, choose; the bind goes on in its own task."""
        uid = pod["metadata"]["uid"]
        try:
            node = await self._choose(http, pod)
        except _Refused as refusal:
            self._queue.refused(uid)
            await self._tell(pod, "Unschedulable", str(refusal))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._queue.failed(uid, time.monotonic())
            await self._tell(pod, "SchedulerError", str(error) or type(error).__name__)
        else:
            tasks.start_soon(self._bind, http, pod, node)

    async def _choose(self, http: aiohttp.ClientSession, pod: RawObject) -> str:
        names = [name for name, node in self._nodes.items() if not node.get("spec", {}).get("unschedulable")]
        if not self._extender.manages(pod):
            if not names:
                raise _Refused(f"0/{len(self._nodes)} nodes are available")
            return names[0]
        answer = await self._call(http, self._extender.filter_verb, {"Pod": _sent(pod), "Nodes": None, "NodeNames": names})
        if answer.get("Error"):
            raise ValueError(answer["Error"])
        fitting: Sequence[str] = answer.get("NodeNames") or []
        for name in fitting:
            if name not in names:
                raise ValueError(
                    f'extender "{self._extender.url}" claims a filtered node "{name}" which is not found in the input node list'
                )
        if not fitting:
            reasons = Counter((answer.get("FailedNodes") or {}).values())
            text = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
            raise _Refused(f"0/{len(names)} nodes are available: {text or 'no reason given'}.")
        return await self._best(http, pod, fitting)

    async def _best(self, http: aiohttp.ClientSession, pod: RawObject, fitting: Sequence[str]) -> str:
        if len(fitting) == 1 or not self._extender.prioritize_verb:
            return fitting[0]
        body = {"Pod": _sent(pod), "Nodes": None, "NodeNames": list(fitting)}
        try:
            scores = await self._call(http, self._extender.prioritize_verb, body)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return fitting[0]
        by_host = {each["Host"]: each["Score"] for each in scores}
        return max(fitting, key=lambda name: by_host.get(name, 0))

    async def _bind(self, http: aiohttp.ClientSession, pod: RawObject, node: str) -> None:
        meta = pod["metadata"]
        try:
            await self._post_binding(http, pod, node)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._queue.failed(meta["uid"], time.monotonic())
            self._poke.set()
            await self._tell(pod, "SchedulerError", str(error) or type(error).__name__)
            return
        self._queue.remove(meta["uid"])
        await self._api.event(pod, "Normal", "Scheduled", f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}")

    async def _post_binding(self, http: aiohttp.ClientSession, pod: RawObject, node: str) -> None:
        if not self._extender.manages(pod):
            await self._api.bind(pod, node)
            return
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        answer = await self._call(http, self._extender.bind_verb, body)
        if answer.get("Error"):
            raise ValueError(answer["Error"])

    async def _call(self, http: aiohttp.ClientSession, verb: str, body: RawObject) -> Any:
        self.calls[verb] += 1
        async with http.post(f"{self._extender.url}/{verb}", data=msgspec.json.encode(body)) as response:
            raw = await response.read()
            if response.status != 200:
                raise ValueError(f"failed {verb} with extender at URL {self._extender.url}/{verb}, code {response.status}")
        return msgspec.json.decode(raw)

    async def _tell(self, pod: RawObject, reason: str, message: str) -> None:
        """The PodScheduled condition is written only when it says something new, as the real one does."""
        uid = pod["metadata"]["uid"]
        if uid not in self._pods or self._conditions.get(uid) == (reason, message):
            return
        self._conditions[uid] = (reason, message)
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        await self._api.set_condition(pod, condition)
        await self._api.event(pod, "Warning", "FailedScheduling", message)


def _sent(pod: RawObject) -> RawObject:
    """A pod as the extender receives it: no kind, no apiVersion, no managedFields."""
    meta = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {"metadata": meta, "spec": pod["spec"], "status": pod.get("status", {})}
