"""What a kubelet needs of the Kubernetes API, and an implementation in memory for tests of the kubelet alone."""

import copy
from collections.abc import AsyncIterator
from typing import Any, Protocol

import anyio
import msgspec

Json = dict[str, Any]


class PodChange(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED or DELETED; `pod` the whole object as JSON."""

    type: str
    pod: Json


class KubeletApi(Protocol):
    """The API server, as one node's kubelet uses it. Writes of an object that is gone do nothing."""

    def watch_pods(self, node: str) -> AsyncIterator[PodChange]:
        """Every pod bound to the node: those there are as ADDED first, then changes, for ever."""
        ...

    async def patch_pod_status(self, namespace: str, name: str, status: Json) -> None: ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """The last step of a deletion: the object goes."""
        ...

    async def patch_node_status(self, node: str, status: Json) -> None: ...


class InMemoryApi:
    """KubeletApi with the other end open: create pods, bind them, edit annotations, delete."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Json] = {}
        self.nodes: dict[str, Json] = {}
        self._version = 0
        self._history: list[tuple[int, str, Json]] = []
        self._changed = anyio.Event()

    def create(self, pod: Json, *, node: str) -> Json:
        """A pod that is bound from the start."""
        made = copy.deepcopy(pod)
        made.setdefault("metadata", {}).setdefault("namespace", "default")
        made["metadata"].setdefault("uid", f"uid-{made['metadata']['name']}-{self._version}")
        made["spec"]["nodeName"] = node
        made["status"] = {"phase": "Pending"}
        self.pods[made["metadata"]["namespace"], made["metadata"]["name"]] = made
        self._note("ADDED", made)
        return made

    def annotate(self, name: str, annotations: dict[str, str], *, namespace: str = "default") -> None:
        pod = self.pods[namespace, name]
        pod["metadata"].setdefault("annotations", {}).update(annotations)
        self._note("MODIFIED", pod)

    def delete(self, name: str, *, namespace: str = "default") -> None:
        """Ask for a deletion; the kubelet completes it."""
        pod = self.pods[namespace, name]
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._note("MODIFIED", pod)

    def force_delete(self, name: str, *, namespace: str = "default") -> None:
        pod = self.pods.pop((namespace, name))
        self._note("DELETED", pod)

    def status(self, name: str, *, namespace: str = "default") -> Json:
        pod = self.pods.get((namespace, name), {})
        found: Json = pod.get("status", {})
        return found

    async def watch_pods(self, node: str) -> AsyncIterator[PodChange]:
        seen = self._version
        for pod in list(self.pods.values()):
            if pod["spec"].get("nodeName") == node:
                yield PodChange("ADDED", copy.deepcopy(pod))
        while True:
            fresh = [entry for entry in self._history if entry[0] > seen]
            for version, kind, pod in fresh:
                seen = version
                if pod["spec"].get("nodeName") == node:
                    yield PodChange(kind, pod)
            if not fresh:
                await self._changed.wait()

    async def patch_pod_status(self, namespace: str, name: str, status: Json) -> None:
        pod = self.pods.get((namespace, name))
        if pod is not None and pod["status"] != {**pod["status"], **status}:
            pod["status"] = {**pod["status"], **status}
            self._note("MODIFIED", pod)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        pod = self.pods.get((namespace, name))
        if pod is not None and pod["metadata"]["uid"] == uid:
            self.force_delete(name, namespace=namespace)

    async def patch_node_status(self, node: str, status: Json) -> None:
        self.nodes[node] = {**self.nodes.get(node, {}), **status}

    def _note(self, kind: str, pod: Json) -> None:
        self._version += 1
        self._history.append((self._version, kind, copy.deepcopy(pod)))
        self._changed.set()
        self._changed = anyio.Event()
