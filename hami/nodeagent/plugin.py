"""The device plugin: what the kubelet asks on our socket, answered from memory.

No answer waits for a store, an API or a device library: a slow Allocate would freeze the node, a failed one kills the pod.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec

from hami.nodeagent.board import Board, Offer, Watch
from hami.nodeagent.decide.container import ContainerEdits
from hami.nodeagent.decide.ordered import Refusal
from hami.nodeagent.decide.preferred import preferred
from hami.nodeagent.ordered import OrderedDelivery
from hami.nodeagent.pb import deviceplugin_pb2 as pb

SERVICE: Final = "v1beta1.DevicePlugin"
API_VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One container's answer: the ids the kubelet named, and the folder that went with it. The pod is not known here."""

    number: int
    device_ids: tuple[str, ...]
    cache_dir: str


class Answers:
    """What Allocate says. `edits(number)` makes one container's answer; `wanted(size)` hints which cards to prefer.

    With `ordered` each answer is a container's own, and a call that cannot be told from another's is refused. With `direct`
    the ids themselves are what the container gets: the kubelet picked them, so there is nothing to find out.
    """

    def __init__(
        self,
        edits: Callable[[int], tuple[ContainerEdits, str]],
        *,
        first: int = 1,
        wanted: Callable[[int], Sequence[str]] = lambda _: (),
        on_served: Callable[[Served], None] = lambda _: None,
        ordered: OrderedDelivery | None = None,
        direct: Callable[[Sequence[str]], ContainerEdits | Refusal] | None = None,
    ) -> None:
        self.edits, self.wanted, self.on_served, self.ordered, self.direct = edits, wanted, on_served, ordered, direct
        self._next = first

    def number(self) -> int:
        self._next += 1
        return self._next - 1


class DevicePlugin:
    """A gRPC server on one unix socket, for one resource of the board. Start, stop and start again; the board outlives it."""

    def __init__(self, board: Board, answers: Answers, socket: Path, *, resource: str = "") -> None:
        self.socket, self._resource = socket, resource
        self._board, self._answers = board, answers
        self._server: Any = None
        self._watches: set[Watch] = set()

    @property
    def streams(self) -> int:
        """Open ListAndWatch streams: none means that no kubelet listens to us."""
        return len(self._watches)

    async def start(self) -> None:
        """Serve on the socket, whatever lay there before."""
        self.socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        server.add_insecure_port(f"unix://{self.socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Ends the streams first: an open one would hold up the stop for the whole grace time."""
        if self._server is not None:
            for watch in list(self._watches):
                watch.end()
            await self._server.stop(grace=1.0)
            self._server = None

    def _handlers(self) -> Any:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler

        def method(kind: Any, handler: Any, request: Any) -> Any:
            return kind(handler, request_deserializer=request.FromString, response_serializer=lambda m: m.SerializeToString())

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": method(unary, self._options, pb.Empty),
                "ListAndWatch": method(stream, self._list_and_watch, pb.Empty),
                "GetPreferredAllocation": method(unary, self.preferred_allocation, pb.PreferredAllocationRequest),
                "Allocate": method(unary, self.allocate, pb.AllocateRequest),
                "PreStartContainer": method(unary, self._pre_start, pb.PreStartContainerRequest),
            },
        )

    async def _options(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:
        return options()

    async def _list_and_watch(self, _request: pb.Empty, _context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        watch = self._board.watch()
        self._watches.add(watch)
        try:
            async for offers in watch.listings():
                yield listing([offer for offer in offers if offer.resource == self._resource])
        finally:
            self._watches.discard(watch)
            self._board.forget(watch)

    async def preferred_allocation(
        self, request: pb.PreferredAllocationRequest, _context: Any
    ) -> pb.PreferredAllocationResponse:
        """A hint, never an error. A container without a preference is left to the kubelet by an empty list."""
        answer = pb.PreferredAllocationResponse()
        for ask in request.container_requests:
            wanted = self._answers.wanted(ask.allocation_size)
            ids = preferred(ask.available_deviceIDs, ask.must_include_deviceIDs, ask.allocation_size, wanted)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        answer, given = pb.AllocateResponse(), list[Served]()
        for ask in request.container_requests:
            number, ids = self._answers.number(), tuple(ask.devices_ids)
            made = await self._one(number, ids)
            if isinstance(made, Refusal):
                if self._answers.ordered is not None:
                    self._answers.ordered.take_back([each.number for each in given])
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"hami: {made.why}")
                return answer  # not reached: abort ends the call
            edits, cache_dir = made
            answer.container_responses.append(container_answer(edits))
            given.append(Served(number=number, device_ids=ids, cache_dir=cache_dir))
        for served in given:
            self._answers.on_served(served)
        return answer

    async def _one(self, number: int, ids: Sequence[str]) -> tuple[ContainerEdits, str] | Refusal:
        if self._answers.direct is not None:
            direct = self._answers.direct(ids)
            return direct if isinstance(direct, Refusal) else (direct, "")
        if self._answers.ordered is None:
            return self._answers.edits(number)
        made = await self._answers.ordered.answer(number, ids)
        return made if isinstance(made, Refusal) else (made.edits, made.cache_dir)

    async def _pre_start(self, _request: pb.PreStartContainerRequest, _context: Any) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def options() -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(get_preferred_allocation_available=True)


def listing(offers: Sequence[Offer]) -> pb.ListAndWatchResponse:
    answer = pb.ListAndWatchResponse()
    for offer in offers:
        for device_id in offer.ids:
            device = answer.devices.add(ID=device_id, health=HEALTHY if offer.healthy else UNHEALTHY)
            if offer.numa >= 0:
                device.topology.nodes.add(ID=offer.numa)
    return answer


def container_answer(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=edits.envs,
        mounts=[pb.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only) for m in edits.mounts],
        devices=[pb.DeviceSpec(container_path=d.container, host_path=d.host, permissions=d.permissions) for d in edits.devices],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )
