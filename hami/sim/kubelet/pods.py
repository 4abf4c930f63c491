"""One pod's life on the node: init containers in turn, then the rest, until it finishes, is killed or deleted."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from hami.sim.kubelet.runtime import ContainerView

Json = dict[str, Any]
Start = Callable[[Mapping[str, Any], Mapping[str, Any]], Awaitable[ContainerView]]
Report = Callable[[Mapping[str, Any], Json], Awaitable[None]]
RUN_SECONDS = "sim.hami.io/run-seconds"
EXIT_CODE = "sim.hami.io/exit-code"


class PodRun:
    """Follows the pod object as it changes: environment is resolved anew at each start of a container."""

    def __init__(self, pod: Json, start: Start, report: Report, *, init_s: float) -> None:
        self.pod = pod
        self.finished_init: set[str] = set()
        self.done = False
        self.scope = anyio.CancelScope()
        self._start, self._report, self._init_s = start, report, init_s
        self._views: dict[str, ContainerView] = {}
        self._finish = anyio.Event()
        self._exit_code = 0

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def finish(self, exit_code: int = 0) -> None:
        """The workload ends by itself."""
        self._exit_code = exit_code
        self._finish.set()

    async def restart(self, container: str) -> None:
        """The container is killed and started again in place, with the same devices."""
        spec = next(each for each in self._specs() if each["name"] == container)
        self._views[container] = await self._start(self.pod, spec)
        await self._say("Running")

    async def run(self) -> None:
        with self.scope:
            if not await self._start_all():
                return
            await self._say("Running")
            await self._wait()
            self.done = True
            await self._say("Failed" if self._exit_code else "Succeeded")

    async def _start_all(self) -> bool:
        for spec in self._specs():
            view = self._views[spec["name"]] = await self._start(self.pod, spec)
            if view.error:
                await self._say("Pending")
                return False
            if self._is_init(spec):
                await anyio.sleep(self._init_s)
                self.finished_init.add(spec["name"])
        return True

    async def _wait(self) -> None:
        """Until told, or for as long as the pod's annotation says."""
        notes = self.pod["metadata"].get("annotations") or {}
        self._exit_code = int(notes.get(EXIT_CODE, "0"))
        if RUN_SECONDS in notes:
            with anyio.move_on_after(float(notes[RUN_SECONDS])):
                await self._finish.wait()
        else:
            await self._finish.wait()

    def _specs(self) -> Sequence[Mapping[str, Any]]:
        spec = self.pod["spec"]
        return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]

    def _is_init(self, spec: Mapping[str, Any]) -> bool:
        return spec in (self.pod["spec"].get("initContainers") or ()) and spec.get("restartPolicy") != "Always"

    async def _say(self, phase: str) -> None:
        init = [each["name"] for each in self.pod["spec"].get("initContainers") or ()]
        rows = [self._row(spec) for spec in self._specs()]
        status: Json = {
            "phase": phase,
            "initContainerStatuses": [row for row in rows if row["name"] in init],
            "containerStatuses": [row for row in rows if row["name"] not in init],
        }
        await self._report(self.pod, status)

    def _row(self, spec: Mapping[str, Any]) -> Json:
        name = spec["name"]
        view = self._views.get(name)
        row: Json = {"name": name, "image": spec.get("image", ""), "ready": False, "restartCount": 0}
        if view is None:
            return {**row, "state": {"waiting": {"reason": "PodInitializing"}}}
        if view.error:
            reason = "CreateContainerConfigError" if view.error.startswith("device plugin") else "CreateContainerError"
            return {**row, "state": {"waiting": {"reason": reason, "message": view.error}}}
        row["restartCount"] = view.starts - 1
        if name in self.finished_init:
            return {**row, "ready": True, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
        if self.done:
            reason = "Error" if self._exit_code else "Completed"
            return {**row, "state": {"terminated": {"exitCode": self._exit_code, "reason": reason}}}
        return {**row, "ready": True, "state": {"running": {}}}


class KubeletTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `status_every_s`: device changes reach the node object only that often; `init_s`: how long an init runs."""

    status_every_s: float = 10.0
    dial_timeout_s: float = 10.0
    init_s: float = 0.0
