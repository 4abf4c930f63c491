"""Binding a pod, and finding out what became of it when the answer was a conflict or none at all."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hami.domain.pod import Pod
from hami.kube.errors import ApiError
from hami.kube.results import AlreadyBound, BindResult, Bound, Refused, Unknown


@dataclass(frozen=True, slots=True)
class Binding:
    """The write: node name, annotations and labels land on the pod together, if it still is the pod of that uid."""

    uid: str
    namespace: str
    name: str
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        meta: dict[str, Any] = {"name": self.name, "namespace": self.namespace, "uid": self.uid}
        if self.annotations:
            meta["annotations"] = dict(self.annotations)
        if self.labels:
            meta["labels"] = dict(self.labels)
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


def is_final(error: ApiError) -> bool:
    """Whether the API's refusal settles it. A conflict may be our own earlier success; a 5xx may have been carried out."""
    return error.code != 409 and 400 <= error.code < 500


async def settle(wanted: Binding, failed: ApiError, read: Callable[[], Awaitable[Pod | None]]) -> BindResult:
    """Read the pod back and say what is true."""
    try:
        pod = await read()
    except ApiError as error:
        return Unknown(f"{failed.message}; reading the pod back: {error.message}")
    if pod is None:
        return Refused(404, f'pods "{wanted.name}" not found')
    if pod.metadata.uid != wanted.uid:
        return Refused(409, f"pod {wanted.name} was replaced: its uid is {pod.metadata.uid}, not {wanted.uid}")
    node, notes = pod.spec.node_name or "", pod.metadata.notes
    if node == wanted.node and all(notes.get(key) == value for key, value in wanted.annotations.items()):
        return Bound(earlier=True)
    if node:
        return AlreadyBound(node)
    unsettled = failed.unanswered or failed.code >= 500
    return Unknown(failed.message) if unsettled else Refused(failed.code, failed.message)
