"""A device plugin that does what a test tells it, and a place for sockets (their paths must stay short)."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc

from hami.nodeagent.board import Board, Offer
from hami.nodeagent.decide.container import ContainerEdits
from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.plugin import Answers, DevicePlugin
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from hami.sim.kubelet.pods import KubeletTiming

CARDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000")
RESOURCE = "nvidia.com/gpu"


@contextmanager
def socket_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hk"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ScriptedPlugin(DevicePlugin):
    """Two cards of five, as in the recordings. `script` maps a method to an error text or a ready answer."""

    def __init__(self, socket: Path, *, wanted: Sequence[str] = ()) -> None:
        self.board = Board()
        self.board.show(Offer(uuid=uuid, slots=5) for uuid in CARDS)
        self.calls: list[tuple[str, Any]] = []
        self.script: dict[str, Any] = {}
        super().__init__(self.board, Answers(self._edits, wanted=lambda _: wanted), socket)

    def _edits(self, number: int) -> tuple[ContainerEdits, str]:
        return ContainerEdits(envs={"NVIDIA_VISIBLE_DEVICES": "void", "FROM_PLUGIN": str(number)}), ""

    async def allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        self.calls.append(("Allocate", [list(each.devices_ids) for each in request.container_requests]))
        return await self._say("Allocate", context) or await super().allocate(request, context)

    async def preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        self.calls.append(("GetPreferredAllocation", [each.allocation_size for each in request.container_requests]))
        return await self._say("GetPreferredAllocation", context) or await super().preferred_allocation(request, context)

    async def _say(self, method: str, context: Any) -> Any:
        scripted = self.script.get(method)
        if isinstance(scripted, str):
            await context.abort(grpc.StatusCode.INTERNAL, scripted)
        return scripted


def pod(
    name: str, *containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), notes: dict[str, str] | None = None
) -> dict[str, Any]:
    spec = {"initContainers": list(init), "containers": list(containers)}
    return {"metadata": {"name": name, "annotations": notes or {}}, "spec": spec}


def container(name: str = "main", gpus: int = 1, **extra: Any) -> dict[str, Any]:
    limits = {RESOURCE: str(gpus)} if gpus else {}
    return {"name": name, "image": "plain", "resources": {"limits": limits}, **extra}


@asynccontextmanager
async def kubelet_on(folder: Path, api: InMemoryApi, *, status_every_s: float = 0.02) -> AsyncIterator[SimKubelet]:
    kubelet = SimKubelet("node-1", folder, api, timing=KubeletTiming(status_every_s=status_every_s, dial_timeout_s=0.2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.run)
        await kubelet.started()
        yield kubelet
        tasks.cancel_scope.cancel()
