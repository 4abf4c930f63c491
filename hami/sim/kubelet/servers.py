"""What the kubelet serves: Registration on kubelet.sock, pod-resources v1 on its own socket."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from hami.nodeagent.pb import deviceplugin_pb2 as dp
from hami.nodeagent.pb import podresources_pb2 as pr

VERSION: Final = "v1beta1"


def refusal(request: dp.RegisterRequest) -> str:
    """Why a registration is not accepted; empty when it is."""
    if request.version != VERSION:
        supported = f'["{VERSION}"]'
        return f'requested API version "{request.version}" is not supported by kubelet. Supported version is {supported}'
    domain = request.resource_name.partition("/")[0]
    if "/" not in request.resource_name or domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return f'the ResourceName "{request.resource_name}" is invalid'
    return ""


async def serve_registration(socket: Path, register: Callable[[dp.RegisterRequest], Awaitable[str]]) -> Any:
    """`register` answers why it failed, empty for success."""

    async def handle(request: dp.RegisterRequest, context: Any) -> dp.Empty:
        why = refusal(request) or await register(request)
        if why:
            await context.abort(grpc.StatusCode.UNKNOWN, why)
        return dp.Empty()

    return await _serve(socket, "v1beta1.Registration", {"Register": (handle, dp.RegisterRequest)})


async def serve_pod_resources(
    socket: Path,
    listed: Callable[[], list[pr.PodResources]],
    allocatable: Callable[[], list[pr.ContainerDevices]],
) -> Any:
    async def list_pods(_request: pr.ListPodResourcesRequest, _context: Any) -> pr.ListPodResourcesResponse:
        return pr.ListPodResourcesResponse(pod_resources=listed())

    async def offered(_request: pr.AllocatableResourcesRequest, _context: Any) -> pr.AllocatableResourcesResponse:
        return pr.AllocatableResourcesResponse(devices=allocatable())

    async def get(request: pr.GetPodResourcesRequest, context: Any) -> pr.GetPodResourcesResponse:
        for pod in listed():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pr.GetPodResourcesResponse(pod_resources=pod)
        await context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        raise AssertionError

    return await _serve(
        socket,
        "v1.PodResourcesLister",
        {
            "List": (list_pods, pr.ListPodResourcesRequest),
            "GetAllocatableResources": (offered, pr.AllocatableResourcesRequest),
            "Get": (get, pr.GetPodResourcesRequest),
        },
    )


async def _serve(socket: Path, service: str, methods: dict[str, tuple[Any, Any]]) -> Any:
    server = grpc.aio.server()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            handler, request_deserializer=request.FromString, response_serializer=lambda m: m.SerializeToString()
        )
        for name, (handler, request) in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix://{socket}")  # over a stale file too
    await server.start()
    return server
