"""The kubelet's side of one device plugin: dial, ask for options, listen, allocate."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import grpc

from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.sim.kubelet.devices import Refused

_SERVICE: Final = "/v1beta1.DevicePlugin/"


class Endpoint:
    """A connection to one plugin. `options` is what it said of itself when we dialled."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource, self.socket = resource, socket
        self.options = pb.DevicePluginOptions()
        self._channel = grpc.aio.insecure_channel(f"unix://{socket}", options=[("grpc.use_local_subchannel_pool", 1)])

    async def dial(self, timeout_s: float) -> str:
        """Empty when the plugin answered, else why not."""
        if not self.socket.exists():
            await anyio.sleep(timeout_s)
            return "failed to dial device plugin: context deadline exceeded"
        try:
            self.options = await self._unary("GetDevicePluginOptions", pb.DevicePluginOptions)(pb.Empty(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return f"failed to get device plugin options: {words(error)}"
        return ""

    async def listen(self, heard: Callable[[dict[str, bool]], None]) -> None:
        """Every list the plugin sends, until the stream ends for whatever reason."""
        call = self._channel.unary_stream(
            _SERVICE + "ListAndWatch",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )
        try:
            async for answer in call(pb.Empty()):
                heard({device.ID: device.health == "Healthy" for device in answer.devices})
        except grpc.aio.AioRpcError:
            return

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """The plugin's choice, which may be anything; an error refuses the pod."""
        request = pb.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size)
        method = self._unary("GetPreferredAllocation", pb.PreferredAllocationResponse)
        try:
            answer = await method(request)
        except grpc.aio.AioRpcError as error:
            raise Refused(f"device plugin GetPreferredAllocation rpc failed with err: {words(error)}") from None
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        try:
            answer = await self._unary("Allocate", pb.AllocateResponse)(request)
        except grpc.aio.AioRpcError as error:
            raise Refused(words(error)) from None
        if not answer.container_responses:
            raise Refused("no containers return in allocation response ")
        response: pb.ContainerAllocateResponse = answer.container_responses[0]
        return response

    async def pre_start(self, ids: Sequence[str]) -> str:
        """Empty when the container may start, else the text that its status carries."""
        if not self.options.pre_start_required:
            return ""
        method = self._unary("PreStartContainer", pb.PreStartContainerResponse)
        try:
            await method(pb.PreStartContainerRequest(devices_ids=ids), timeout=30)
        except grpc.aio.AioRpcError as error:
            return f"device plugin PreStartContainer rpc failed with err: {words(error)}"
        return ""

    async def close(self) -> None:
        await self._channel.close(grace=None)

    def _unary(self, name: str, response: Any) -> Any:
        return self._channel.unary_unary(
            _SERVICE + name, request_serializer=lambda m: m.SerializeToString(), response_deserializer=response.FromString
        )


def words(error: grpc.aio.AioRpcError) -> str:
    """As Go prints a gRPC status: `rpc error: code = Internal desc = ...`."""
    name = "".join(part.capitalize() for part in error.code().name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"
