"""The API calls that hami makes, typed: results are values, refusals are `ApiError` with the API's own words."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from hami.domain.pod import Node, Pod
from hami.kube.access import Access, InCluster, Kubeconfig, Server
from hami.kube.bind import Binding, is_final, settle
from hami.kube.errors import ApiError
from hami.kube.kinds import EVENTS_V1, LEASES, NODES, PODS, HasMetadata, Kind, Lease
from hami.kube.results import BindResult, Bound, Page, Refused, WatchEvent
from hami.kube.transport import MERGE_PATCH, Transport
from hami.kube.wire import Splitter, decode_line, decode_list, decoded

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T", bound=HasMetadata)
Obj = dict[str, Any]

PAGE = 500
_MOST_NOTE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class EventNote:
    """Something to tell the users of an object, as `kubectl describe` shows it."""

    kind: str
    name: str
    namespace: str
    uid: str
    reason: str
    note: str
    action: str
    warning: bool = False
    controller: str = "hami.io/scheduler"
    instance: str = "hami"


def micro_time(moment: datetime) -> str:
    """Leases and events take six digits after the second, never fewer."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class KubeClient:
    """An open client; use it with `async with`."""

    def __init__(self, access: Access, *, connections: int = 64, timeout: float = 30.0, user_agent: str = "hami") -> None:
        self._http = Transport(access, connections=connections, timeout=timeout, user_agent=user_agent)

    @classmethod
    def from_kubeconfig(cls, path: str = "", context: str = "") -> Self:
        return cls(Kubeconfig(path, context))

    @classmethod
    def in_cluster(cls) -> Self:
        return cls(InCluster())

    @classmethod
    def at(cls, url: str, *, authority_pem: str = "", token: str = "", timeout: float = 30.0) -> Self:
        return cls(Server(url, authority_pem, token), timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: "type[BaseException] | None", error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    # --- reading ---

    async def list_pages(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "", limit: int = PAGE
    ) -> AsyncIterator[Page[T]]:
        """Every object, page by page, all of one version. An expired continue token starts over: `Page.first` says so."""
        query = _query(labelSelector=labels, fieldSelector=fields, limit=str(limit))
        token, first = "", True
        while first or token:
            try:
                body = await self._http.request("GET", kind.path(namespace), query=query | _query(**{"continue": token}))
            except ApiError as error:
                if error.code != 410 or not token:
                    raise
                # The remainder could be had with the token of the error, but it would be of a newer version than
                # the pages before: a state that never was.
                token, first = "", True
                continue
            items, meta, bad = decode_list(kind.type, body)
            yield Page(tuple(items), meta.resource_version, first, tuple(bad))
            token, first = meta.continue_, False

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        seconds: int = 290,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Changes after a version, until the server ends the stream (it is asked to after `seconds`) or it breaks (ApiError).

        A version that is too old comes as `Gone`, whichever of its two faces the server shows.
        """
        query = _query(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(seconds),
            labelSelector=labels,
            fieldSelector=fields,
        )
        async with self._http.stream(kind.path(namespace), query=query, silence=seconds + 15.0) as chunks:
            yield _events(kind.type, chunks)

    async def get_pod(self, namespace: str, name: str) -> Pod | None:
        return await self.get(PODS, namespace, name)

    async def get_node(self, name: str) -> Node | None:
        return await self.get(NODES, "", name)

    async def get(self, kind: Kind[T], namespace: str, name: str, *, within: float | None = None) -> T | None:
        """None when there is no such object."""
        try:
            body = await self._http.request("GET", kind.path(namespace, name), within=within)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return decoded(kind.type, body)

    # --- writing what the scheduler and the agent write ---

    async def bind(
        self,
        *,
        uid: str,
        namespace: str,
        name: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        within: float | None = None,
    ) -> BindResult:
        """Put the pod on the node, its annotations in the same write; the uid is a precondition.

        A conflict or a lost answer (none `within` seconds) is settled by reading the pod back.
        """
        wanted = Binding(uid, namespace, name, node, annotations or {}, labels or {})
        try:
            await self._http.request("POST", PODS.path(namespace, name, "binding"), body=wanted.body, within=within)
        except ApiError as error:
            if is_final(error):
                return Refused(error.code, error.message)
            return await settle(wanted, error, lambda: self.get(PODS, namespace, name, within=within))
        return Bound()

    async def patch_pod(self, namespace: str, name: str, patch: Obj, *, subresource: str = "") -> Pod:
        """Merge patch; null removes a key."""
        path = PODS.path(namespace, name, subresource)
        return decoded(Pod, await self._http.request("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def patch_node(self, name: str, patch: Obj, *, subresource: str = "") -> Node:
        """Merge patch; null removes a key."""
        path = NODES.path("", name, subresource)
        return decoded(Node, await self._http.request("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def create_event(self, event: EventNote, moment: datetime) -> None:
        """An events.k8s.io/v1 Event. The note is cut to what that API takes."""
        namespace = event.namespace or "default"
        about = {"kind": event.kind, "name": event.name, "uid": event.uid, "apiVersion": "v1"}
        body = EVENTS_V1.described(
            {
                # A prefix that ends in a dot, as core v1 has it, is refused by this version.
                "metadata": {"generateName": f"{event.name}-", "namespace": namespace},
                "eventTime": micro_time(moment),
                "regarding": about | ({"namespace": event.namespace} if event.namespace else {}),
                "reason": event.reason,
                "action": event.action,
                "note": event.note.encode()[:_MOST_NOTE_BYTES].decode(errors="ignore"),
                "type": "Warning" if event.warning else "Normal",
                "reportingController": event.controller,
                "reportingInstance": event.instance,
            }
        )
        await self._http.request("POST", EVENTS_V1.path(namespace), body=body)

    # --- leases ---

    async def get_lease(self, namespace: str, name: str) -> Lease | None:
        return await self.get(LEASES, namespace, name)

    async def create_lease(self, lease: Lease) -> Lease | None:
        """None when it exists already: somebody was first."""
        return await self._write_lease("POST", LEASES.path(lease.metadata.namespace), lease)

    async def update_lease(self, lease: Lease) -> Lease | None:
        """None when it changed since it was read (`metadata.resource_version`) or is gone."""
        return await self._write_lease("PUT", LEASES.path(lease.metadata.namespace, lease.metadata.name), lease)

    async def _write_lease(self, method: str, path: str, lease: Lease) -> Lease | None:
        meta = {"name": lease.metadata.name, "namespace": lease.metadata.namespace}
        if method == "PUT":
            meta["resourceVersion"] = lease.metadata.resource_version
        body = LEASES.described({"metadata": meta, "spec": msgspec.to_builtins(lease.spec)})
        try:
            return decoded(Lease, await self._http.request(method, path, body=body))
        except ApiError as error:
            if error.code == 409 or (method == "PUT" and error.code == 404):
                return None
            raise

    # --- any object as a dict: the demo, installers and tests ---

    async def create(self, kind: Kind[Any], obj: Obj, *, namespace: str = "") -> Obj:
        where = namespace or (obj.get("metadata") or {}).get("namespace") or ("default" if kind.namespaced else "")
        return _json(await self._http.request("POST", kind.path(where), body=kind.described(obj)))

    async def create_pod(self, pod: Obj, *, namespace: str = "") -> Obj:
        return await self.create(PODS, pod, namespace=namespace)

    async def read(self, kind: Kind[Any], namespace: str, name: str) -> Obj:
        return _json(await self._http.request("GET", kind.path(namespace, name)))

    async def replace(self, kind: Kind[Any], obj: Obj) -> Obj:
        meta = obj["metadata"]
        return _json(
            await self._http.request("PUT", kind.path(meta.get("namespace") or "", meta["name"]), body=kind.described(obj))
        )

    async def patch(
        self, kind: Kind[Any], namespace: str, name: str, patch: Any, *, subresource: str = "", content_type: str = MERGE_PATCH
    ) -> Obj:
        path = kind.path(namespace, name, subresource)
        return _json(await self._http.request("PATCH", path, body=patch, content_type=content_type))

    async def delete(
        self, kind: Kind[Any], namespace: str, name: str, *, grace: int | None = None, uid: str = ""
    ) -> Obj | None:
        """What the API answered; None when there was no such object."""
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            return _json(await self._http.request("DELETE", kind.path(namespace, name), body=options))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def delete_pod(self, namespace: str, name: str, *, grace: int | None = None, uid: str = "") -> Obj | None:
        return await self.delete(PODS, namespace, name, grace=grace, uid=uid)

    async def list(self, kind: Kind[Any], *, namespace: str = "", labels: str = "", fields: str = "") -> "list[Obj]":
        """Everything in one answer."""
        query = _query(labelSelector=labels, fieldSelector=fields)
        found: list[Obj] = _json(await self._http.request("GET", kind.path(namespace), query=query)).get("items") or []
        return found

    async def request(self, method: str, path: str, body: Any = None) -> Obj:
        """Any other call: JSON in, JSON out."""
        return _json(await self._http.request(method, path, body=body))

    async def warm_up(self) -> None:
        """Open the first connection before it counts."""
        await self._http.request("GET", "/version")


def _query(**given: str) -> dict[str, str]:
    return {key: value for key, value in given.items() if value}


def _json(body: bytes) -> Obj:
    decoded: Obj = msgspec.json.decode(body)
    return decoded


async def _events(type_: type[T], chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent[T]]:
    splitter = Splitter()
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            yield decode_line(type_, line)
