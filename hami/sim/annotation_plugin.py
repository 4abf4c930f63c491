"""A third-party device plugin that speaks HAMi's annotations, for tests and demos: registers, reports, serves pods, may die.

What it does at one Allocate is what such plugins do, one call of the API after the other: find the pod by the node's lock, take
the next container's devices out of to-allocate, say success once nothing is left, take the lock away. It can be killed after
each of these; its successor begins anew.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from hami.domain.device import Device, Health
from hami.domain.errors import HamiError
from hami.kube.client import KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import NODES, PODS
from hami.vendors import identity
from hami.vendors.registers import encode_register
from hami.vendors.vendor import Vendor

Obj = dict[str, Any]

TRIES: Final = 5


class Step(StrEnum):
    """What a plugin has just done when it is killed."""

    FOUND = "it knows which pod is meant"
    ERASED = "it took the container's devices out of to-allocate"
    SAID = "it wrote bind-phase"


class Killed(HamiError):  # noqa: N818 - reads as a sentence where it is raised
    """The plugin died in the middle of its work."""


class NoPod(HamiError):  # noqa: N818 - as above
    """No pod waits on this node: the kubelet's call is refused."""


def colon_form(devices: Sequence[Device]) -> str:
    """HAMi's older text, seven fields a device."""
    return "".join(
        f"{d.uuid},{d.slots},{d.memory},{d.cores},{d.model},{d.numa},{str(d.health is Health.HEALTHY).lower()}:"
        for d in devices
    )


class AnnotationPlugin:
    """One vendor's plugin on one node. `clock` is what it writes down as the time: any time at all."""

    def __init__(
        self,
        api: KubeClient,
        node: str,
        vendor: Vendor,
        devices: Sequence[Device] = (),
        *,
        colon: bool = False,
        clock: str = "",
    ) -> None:
        self._api, self.node, self.vendor, self.devices = api, node, vendor, tuple(devices)
        self._colon, self._clock = colon, clock or "2026-01-01 00:00:00"
        self._beats = 0
        self.kill_after: Step | None = None

    # --- telling what it has ---

    @property
    def announcement(self) -> str:
        return colon_form(self.devices) if self._colon else encode_register(self.devices)

    async def register(self, text: str | None = None) -> None:
        """Write the devices, and that it is there, as its loop does every half minute."""
        notes = {self.vendor.keys.register: self.announcement if text is None else text}
        if self.vendor.keys.handshake:
            notes[self.vendor.keys.handshake] = self._report()
        await self._api.patch_node(self.node, {"metadata": {"annotations": notes}})

    async def report(self) -> None:
        await self._api.patch_node(self.node, {"metadata": {"annotations": {self.vendor.keys.handshake: self._report()}}})

    def _report(self) -> str:
        """Its clock may stand still, but no two reports are alike."""
        self._beats += 1
        return f"Reported_{self._clock}.{self._beats}"

    async def advertise(self, amounts: Mapping[str, str]) -> None:
        """What its kubelet makes of its ListAndWatch."""
        status = {"capacity": dict(amounts), "allocatable": dict(amounts)}
        await self._api.patch_node(self.node, {"status": status}, subresource="status")

    async def asked(self) -> bool:
        """Whether the scheduler's question stands on the node."""
        notes = (await self._node())["metadata"].get("annotations") or {}
        return "Requesting_" in notes.get(self.vendor.keys.handshake, "")

    # --- serving ---

    async def allocate(self) -> list[str]:
        """One call of the kubelet, for one container: the uuids it is given. Raises NoPod, Killed."""
        pod = await self._pending()
        self._dies(Step.FOUND)
        given = await self._erase(pod)
        self._dies(Step.ERASED)
        if not await self._left(pod):
            await self._say(pod, "success")
            self._dies(Step.SAID)
            await self._release(pod)
        return given

    async def refuse(self) -> None:
        """It cannot serve the pod: says so and takes the lock away."""
        pod = await self._pending()
        await self._say(pod, "failed")
        self._dies(Step.SAID)
        await self._release(pod)

    async def release_lock(self) -> None:
        """As a plugin does that knows nothing of bind-phase: it only takes its lock away."""
        await self._api.patch_node(self.node, {"metadata": {"annotations": {self.vendor.keys.lock: None}}})

    def _dies(self, step: Step) -> None:
        if self.kill_after is step:
            self.kill_after = None
            raise Killed(f"the plugin on {self.node} died: {step}")

    async def _node(self) -> Obj:
        return await self._api.read(NODES, "", self.node)

    async def _pending(self) -> Obj:
        """The pod that the lock names, whatever it looks like; without a name, the first that says it is being allocated."""
        lock = ((await self._node())["metadata"].get("annotations") or {}).get(self.vendor.keys.lock, "")
        parts = lock.split(",")
        if len(parts) == 3:
            return await self._api.read(PODS, parts[1], parts[2])
        for pod in await self._api.list(PODS, fields=f"spec.nodeName={self.node}"):
            notes = pod["metadata"].get("annotations") or {}
            if (
                pod["status"]["phase"] == "Pending"
                and notes.get(identity.BIND_TIME)
                and notes.get(identity.BIND_PHASE) in {"allocating", "success"}
                and notes.get(identity.NODE) == self.node
            ):
                return pod
        raise NoPod(f"no binding pod found on node {self.node}")

    async def _erase(self, pod: Obj) -> list[str]:
        key = self.vendor.keys.to_allocate
        parts = pod["metadata"]["annotations"].get(key, "").split(";")
        at = next((number for number, part in enumerate(parts) if part), None)
        if at is None:
            raise NoPod("no pending device allocation found")
        given = [segment.split(",")[0] for segment in parts[at].split(":") if segment]
        parts[at] = ""
        await self._patch(pod, {key: ";".join(parts)})
        return given

    async def _left(self, pod: Obj) -> bool:
        meta = (await self._api.read(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))["metadata"]
        return any(meta["annotations"].get(self.vendor.keys.to_allocate, "").split(";"))

    async def _say(self, pod: Obj, phase: str) -> None:
        await self._patch(pod, {identity.BIND_PHASE: phase})

    async def _patch(self, pod: Obj, notes: dict[str, str]) -> None:
        meta = pod["metadata"]
        await self._api.patch_pod(meta["namespace"], meta["name"], {"metadata": {"annotations": notes}})

    async def _release(self, pod: Obj) -> None:
        """Only a lock that names this pod, or nobody."""
        for _ in range(TRIES):
            node, key = await self._node(), self.vendor.keys.lock
            parts = (node["metadata"].get("annotations") or {}).get(key, "").split(",")
            if (
                not key
                or parts == [""]
                or (len(parts) == 3 and parts[1:] != [pod["metadata"][k] for k in ("namespace", "name")])
            ):
                return
            version = node["metadata"]["resourceVersion"]
            try:
                await self._api.patch_node(self.node, {"metadata": {"resourceVersion": version, "annotations": {key: None}}})
            except ApiError as error:
                if error.code != 409:
                    raise
            else:
                return
