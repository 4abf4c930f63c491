"""What the kubelet gave to whom, after the fact: its pod-resources API and its checkpoint file.

The API names pods but hides finished init containers; the checkpoint has every container by pod uid. Both are read; neither
is trusted to be there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import msgspec

from hami.domain.errors import InvalidInput
from hami.nodeagent.pb import podresources_pb2 as pb

LIST: Final = "/v1.PodResourcesLister/List"
CHECKPOINT: Final = "kubelet_internal_checkpoint"


class GivenTo(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of one resource that one container was given, and the answer of ours that the kubelet stored with them."""

    uid: str
    container: str
    device_ids: tuple[str, ...]
    answer: bytes = b""


class PodResources:
    """A connection to the pod-resources socket; use as an async context manager."""

    def __init__(self, socket: Path, *, resource: str = "nvidia.com/gpu", timeout_s: float = 5.0) -> None:
        self._socket, self._resource, self._timeout_s = socket, resource, timeout_s
        self._channel: Any = None

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options=[("grpc.use_local_subchannel_pool", 1)])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(grace=None)

    async def listed(self) -> Mapping[tuple[str, str, str], tuple[str, ...]] | None:
        """(namespace, pod, container) -> ids of our resource, running containers only; None when nobody answers."""
        call = self._channel.unary_unary(
            LIST,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        try:
            answer: pb.ListPodResourcesResponse = await call(pb.ListPodResourcesRequest(), timeout=self._timeout_s)
        except grpc.aio.AioRpcError:
            return None
        found: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                ids = [each for row in container.devices if row.resource_name == self._resource for each in row.device_ids]
                if ids:
                    found[pod.namespace, pod.name, container.name] = tuple(ids)
        return found


class _Entry(msgspec.Struct, rename="pascal"):
    resource_name: str
    container_name: str
    pod_uid: str = msgspec.field(name="PodUID")
    device_ids: dict[str, list[str]] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: bytes = b""


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None
    registered_devices: dict[str, list[str] | None] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data


def read_checkpoint(path: Path, resource: str) -> tuple[GivenTo, ...] | None:
    """Every container that holds ids of the resource, in order of allocation; None when there is no checkpoint.

    Raises InvalidInput when the file cannot be read as one.
    """
    data = _data_of(path)
    if data is None:
        return None
    return tuple(
        GivenTo(
            uid=entry.pod_uid,
            container=entry.container_name,
            device_ids=tuple(each for ids in (entry.device_ids or {}).values() for each in ids),
            answer=entry.alloc_resp,
        )
        for entry in data.pod_device_entries or ()
        if entry.resource_name == resource
    )


def registered_ids(path: Path, resource: str) -> frozenset[str] | None:
    """The healthy ids of whichever plugin the kubelet listens to for the resource; None when there is no checkpoint.

    Raises InvalidInput when the file cannot be read as one.
    """
    data = _data_of(path)
    return None if data is None else frozenset((data.registered_devices or {}).get(resource) or ())


def _data_of(path: Path) -> _Data | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(raw, type=_Checkpoint).data
    except (msgspec.MsgspecError, json.JSONDecodeError) as error:
        raise InvalidInput("kubelet checkpoint", path.name, str(error)) from error
