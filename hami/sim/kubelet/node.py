"""The kubelet itself: registration, admission one pod after another, node status on a timer, restarts."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from hami.nodeagent.pb import deviceplugin_pb2 as dp
from hami.nodeagent.pb import podresources_pb2 as pr
from hami.sim.kubelet.api import Json, KubeletApi, PodChange
from hami.sim.kubelet.devices import DeviceBooks, Holding, Refused, Shelf, asked, containers_in_order
from hami.sim.kubelet.endpoint import Endpoint
from hami.sim.kubelet.pods import KubeletTiming, PodRun
from hami.sim.kubelet.runtime import ContainerView, SimRuntime
from hami.sim.kubelet.servers import serve_pod_resources, serve_registration

_TERMINAL = frozenset({"Succeeded", "Failed"})


class SimKubelet:
    """`root` holds `device-plugins/` and `pod-resources/`; `capacity` is what the node has besides devices.

    `run` for ever; `stop` and `start` (or `restart`) in between leave running containers running, as a real one does.
    """

    def __init__(
        self,
        node: str,
        root: Path,
        api: KubeletApi,
        *,
        runtime: SimRuntime | None = None,
        timing: KubeletTiming | None = None,
        capacity: Mapping[str, str] | None = None,
    ) -> None:
        self.node = node
        self.plugin_dir, self.pod_resources = root / "device-plugins", root / "pod-resources/kubelet.sock"
        self.runtime = runtime or SimRuntime()
        self.books = DeviceBooks(self.plugin_dir / "kubelet_internal_checkpoint")
        self.runs: dict[str, PodRun] = {}
        self._api, self._timing, self._capacity = api, timing or KubeletTiming(), dict(capacity or {})
        self._endpoints: dict[str, Endpoint] = {}
        self._retired: list[Endpoint] = []
        self._pods: dict[str, Json] = {}
        self._told: Json = {}
        self._life: TaskGroup | None = None
        self._wanted, self._up, self._down = anyio.Event(), anyio.Event(), anyio.Event()
        self._wanted.set()
        self._down.set()

    @property
    def socket(self) -> Path:
        return self.plugin_dir / "kubelet.sock"

    async def run(self) -> None:
        async with anyio.create_task_group() as workloads:
            try:
                while True:
                    await self._wanted.wait()
                    await self._live(workloads)
            finally:
                workloads.cancel_scope.cancel()

    async def stop(self) -> None:
        """The kubelet ends; containers and the checkpoint stay."""
        self._wanted = anyio.Event()
        if self._life is not None:
            self._life.cancel_scope.cancel()
        await self._down.wait()

    async def start(self) -> None:
        self._wanted.set()
        await self._up.wait()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def started(self) -> None:
        """Until kubelet.sock is there."""
        await self._up.wait()

    def run_of(self, name: str) -> PodRun:
        """The running pod of that name."""
        return next(run for run in self.runs.values() if run.pod["metadata"]["name"] == name)

    async def _live(self, workloads: TaskGroup) -> None:
        """One life of the kubelet: from its sockets to their end."""
        self.plugin_dir.mkdir(parents=True, exist_ok=True)
        self.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        for path in self.plugin_dir.iterdir():
            if path.is_socket():
                path.unlink()
        self.books.load()
        servers = [
            await serve_registration(self.socket, self._register),
            await serve_pod_resources(self.pod_resources, self._listed, self._offered),
        ]
        self._down = anyio.Event()
        try:
            async with anyio.create_task_group() as self._life:
                self._life.start_soon(self._follow, workloads)
                self._life.start_soon(self._report_node)
                self._up.set()
        finally:
            self._up, self._life = anyio.Event(), None
            with anyio.CancelScope(shield=True):
                for endpoint in (*self._endpoints.values(), *self._retired):
                    await endpoint.close()
                self._endpoints, self._retired = {}, []
                for server in servers:
                    await server.stop(grace=None)
            self._down.set()

    # Plugins

    async def _register(self, request: dp.RegisterRequest) -> str:
        """A second plugin of the same resource replaces the first, whose stream stays open and is no longer listened to."""
        endpoint = Endpoint(request.resource_name, self.plugin_dir / request.endpoint)
        why = await endpoint.dial(self._timing.dial_timeout_s)
        if why or self._life is None:
            await endpoint.close()
            return why or "kubelet is stopping"
        replaced = self._endpoints.get(request.resource_name)
        if replaced is not None:
            self._retired.append(replaced)
        self._endpoints[request.resource_name] = endpoint
        self.books.shelves.setdefault(request.resource_name, Shelf())
        self._life.start_soon(self._listen, endpoint)
        return ""

    async def _listen(self, endpoint: Endpoint) -> None:
        def current() -> bool:
            return self._endpoints.get(endpoint.resource) is endpoint

        def heard(devices: dict[str, bool]) -> None:
            if current():
                shelf = self.books.shelves[endpoint.resource]
                shelf.devices, shelf.present = devices, True
                self.books.save()

        await endpoint.listen(heard)
        if current():
            self.books.shelves[endpoint.resource].present = False

    async def _report_node(self) -> None:
        while True:
            books = self.books.capacity()
            status: Json = {
                "capacity": {**self._capacity, **{name: str(total) for name, (total, _) in books.items()}},
                "allocatable": {**self._capacity, **{name: str(free) for name, (_, free) in books.items()}},
            }
            if status != self._told:
                await self._api.patch_node_status(self.node, status)
                self._told = status
            await anyio.sleep(self._timing.status_every_s)

    # Pods

    async def _follow(self, workloads: TaskGroup) -> None:
        """One change after another: while a plugin takes its time over one pod, the whole node waits."""
        async for change in self._api.watch_pods(self.node):
            await self._on_change(change, workloads)

    async def _on_change(self, change: PodChange, workloads: TaskGroup) -> None:
        pod = change.pod
        uid = pod["metadata"]["uid"]
        run = self.runs.get(uid)
        if change.type == "DELETED":
            self._drop(uid)
        elif pod["metadata"].get("deletionTimestamp"):
            self._drop(uid)
            await self._api.delete_pod(pod["metadata"]["namespace"], pod["metadata"]["name"], uid)
        elif (pod.get("status") or {}).get("phase") in _TERMINAL:
            self._pods.pop(uid, None)
            self.runs.pop(uid, None)
        elif run is not None:
            run.pod = self._pods[uid] = pod
        elif uid not in self._pods:
            await self._admit(pod, workloads)

    async def _admit(self, pod: Json, workloads: TaskGroup) -> None:
        uid = pod["metadata"]["uid"]
        self.books.free(frozenset({*self._pods, uid}))
        self._pods[uid] = pod
        try:
            await self._allocate(pod)
        except Refused as refused:
            self._pods.pop(uid)
            why = f"Allocate failed due to {refused}, which is unexpected"
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": f"Pod was rejected: {why}"}
            await self._report_pod(pod, status)
            return
        run = self.runs[uid] = PodRun(pod, self._start_container, self._report_pod, init_s=self._timing.init_s)
        workloads.start_soon(run.run)

    async def _allocate(self, pod: Json) -> None:
        """Containers in spec order. Devices of finished init containers come round again within the pod."""
        uid = pod["metadata"]["uid"]
        reusable: dict[str, set[str]] = {}
        for container, plain_init in containers_in_order(pod):
            for resource, count in asked(container, self.books.shelves).items():
                again = reusable.setdefault(resource, set())
                key = uid, container["name"], resource
                if key not in self.books.holdings:
                    self.books.holdings[key] = await self._hold(key, count, again)
                    self.books.save()
                ids = set(self.books.holdings[key].ids)
                reusable[resource] = again | ids if plain_init else again - ids

    async def _hold(self, key: tuple[str, str, str], count: int, reusable: set[str]) -> Holding:
        uid, container, resource = key
        again, available, needed = self.books.choose(resource, count, reusable)
        endpoint = self._endpoints[resource]
        ids = list(again)
        if needed:
            wanted: list[str] = []
            if endpoint.options.get_preferred_allocation_available:
                wanted = await endpoint.prefer(available, ids, count)
            liked = [each for each in dict.fromkeys(wanted) if each in available]
            ids += [*liked, *(each for each in available if each not in liked)][:needed]
        answer = await endpoint.allocate(ids)
        return Holding(uid=uid, container=container, resource=resource, ids=tuple(ids), answer=answer.SerializeToString())

    async def _start_container(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> ContainerView:
        held = self.books.held_by(pod["metadata"]["uid"], spec["name"])
        answers = [dp.ContainerAllocateResponse.FromString(each.answer) for each in held]
        view = self.runtime.start(pod, spec, answers)
        for holding in held:
            endpoint = self._endpoints.get(holding.resource)
            why = await endpoint.pre_start(holding.ids) if endpoint is not None else ""
            if why:
                return msgspec.structs.replace(view, error=why)
        return view

    async def _report_pod(self, pod: Mapping[str, Any], status: Json) -> None:
        with contextlib.suppress(KeyError):
            await self._api.patch_pod_status(pod["metadata"]["namespace"], pod["metadata"]["name"], status)

    def _drop(self, uid: str) -> None:
        run = self.runs.pop(uid, None)
        if run is not None:
            run.scope.cancel()
        self._pods.pop(uid, None)
        self.runtime.forget(uid)
        self.books.free(frozenset(self._pods))

    # pod-resources

    def _listed(self) -> list[pr.PodResources]:
        """Running pods only; a finished init container is left out."""
        rows = []
        for uid, run in self.runs.items():
            row = pr.PodResources(name=run.pod["metadata"]["name"], namespace=run.pod["metadata"]["namespace"])
            for spec, _ in containers_in_order(run.pod):
                if spec["name"] in run.finished_init:
                    continue
                entry = row.containers.add(name=spec["name"])
                for holding in self.books.held_by(uid, spec["name"]):
                    entry.devices.add(resource_name=holding.resource, device_ids=holding.ids)
            rows.append(row)
        return rows

    def _offered(self) -> list[pr.ContainerDevices]:
        return [
            pr.ContainerDevices(resource_name=resource, device_ids=[device_id])
            for resource, shelf in self.books.shelves.items()
            if shelf.present
            for device_id in shelf.devices
        ]
