"""What simulated kubelets and kube-schedulers need of the API, over the real client: any API server will do."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from hami.domain.pod import ObjectMeta
from hami.kube.client import EventNote, KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import Kind
from hami.kube.results import Added, Deleted, Modified
from hami.kube.watch import Reflected, Reflector, Replaced
from hami.sim.kubelet.api import PodChange

RawObject = dict[str, Any]
_QUEUED: Final = 10_000


class Whole(msgspec.Struct, kw_only=True):
    """An object with everything in it, as JSON."""

    meta: RawObject = msgspec.field(name="metadata")
    spec: RawObject = msgspec.field(default_factory=dict)
    status: RawObject = msgspec.field(default_factory=dict)

    @property
    def metadata(self) -> ObjectMeta:
        return msgspec.convert(self.meta, ObjectMeta)

    def raw(self) -> RawObject:
        return {"metadata": self.meta, "spec": self.spec, "status": self.status}


WHOLE_KINDS: Final[Mapping[str, Kind[Whole]]] = {
    "pods": Kind("pods", "Pod", Whole),
    "nodes": Kind("nodes", "Node", Whole, namespaced=False),
}


class _Follower:
    """Turns a reflector's news into plain changes, a relist into the differences it means."""

    def __init__(self, out: MemoryObjectSendStream[tuple[str, RawObject]]) -> None:
        self._out = out
        self._known: dict[str, Whole] = {}

    async def emit(self, news: Reflected[Whole]) -> None:
        match news:
            case Replaced(items=items):
                now = {each.meta["uid"]: each for each in items}
                for uid in self._known.keys() - now.keys():
                    await self._out.send(("DELETED", self._known.pop(uid).raw()))
                for each in now.values():
                    await self._changed(each)
            case Added(object=found) | Modified(object=found):
                await self._changed(found)
            case Deleted(object=found):
                self._known.pop(found.meta["uid"], None)
                await self._out.send(("DELETED", found.raw()))
            case _:
                pass

    async def _changed(self, found: Whole) -> None:
        before = self._known.get(found.meta["uid"])
        self._known[found.meta["uid"]] = found
        if before is None:
            await self._out.send(("ADDED", found.raw()))
        elif before.meta.get("resourceVersion") != found.meta.get("resourceVersion"):
            await self._out.send(("MODIFIED", found.raw()))


@asynccontextmanager
async def following(client: KubeClient, kind: str, *, fields: str = "") -> AsyncIterator[AsyncIterator[tuple[str, RawObject]]]:
    """Changes of one kind, beginning with what exists, for ever."""
    send, receive = anyio.create_memory_object_stream[tuple[str, RawObject]](_QUEUED)
    reflector = Reflector(client, WHOLE_KINDS[kind], _Follower(send).emit, fields=fields, seed=random.getrandbits(32))
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(reflector.run)
        yield receive
        tasks.cancel_scope.cancel()


class ClusterAccess:
    """Implements KubeletApi and SchedulerApi."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def changes(self, kind: str) -> AsyncIterator[tuple[str, RawObject]]:
        async with following(self._client, kind) as news:
            async for change in news:
                yield change

    async def watch_pods(self, node: str) -> AsyncIterator[PodChange]:
        async with following(self._client, "pods", fields=f"spec.nodeName={node}") as news:
            async for change, pod in news:
                yield PodChange(change, pod)

    async def bind(self, pod: RawObject, node: str) -> None:
        meta = pod["metadata"]
        await self._client.bind(uid=meta["uid"], namespace=meta["namespace"], name=meta["name"], node=node)

    async def set_condition(self, pod: RawObject, condition: Mapping[str, str]) -> None:
        others = [each for each in pod.get("status", {}).get("conditions", []) if each["type"] != condition["type"]]
        meta = pod["metadata"]
        await self._patched_status("pods", meta["namespace"], meta["name"], {"conditions": [*others, dict(condition)]})

    async def event(self, pod: RawObject, kind: str, reason: str, message: str) -> None:
        meta = pod["metadata"]
        note = EventNote(
            kind="Pod",
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            reason=reason,
            note=message,
            action="Scheduling",
            warning=kind == "Warning",
            controller="hami-scheduler",
        )
        await self._client.create_event(note, datetime.now(UTC))

    async def patch_pod_status(self, namespace: str, name: str, status: RawObject) -> None:
        await self._patched_status("pods", namespace, name, status)

    async def patch_node_status(self, node: str, status: RawObject) -> None:
        await self._patched_status("nodes", "", node, status)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self._client.delete_pod(namespace, name, grace=0, uid=uid)
        except ApiError as error:
            if error.code not in {404, 409}:
                raise

    async def _patched_status(self, kind: str, namespace: str, name: str, status: RawObject) -> None:
        try:
            await self._client.patch(WHOLE_KINDS[kind], namespace, name, {"status": status}, subresource="status")
        except ApiError as error:
            if error.code != 404:
                raise
