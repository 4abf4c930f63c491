"""An imagined container runtime: it starts nothing and remembers what each container would see."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from hami.nodeagent.pb import deviceplugin_pb2 as pb

_SUBSCRIPT: Final = re.compile(r"metadata\.(annotations|labels)\['(?P<key>.*)'\]")
NO_DEVICES: Final = frozenset({"", "void", "none"})


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    """What a container sees, each time it starts. `error` is why it could not start."""

    pod_uid: str
    pod: str
    container: str
    env: dict[str, str]
    mounts: tuple[tuple[str, str, bool], ...] = ()
    """(container path, host path, read-only)"""
    devices: tuple[tuple[str, str, str], ...] = ()
    made_folders: tuple[str, ...] = ()
    """Mount sources that were missing: a runtime makes them as empty folders."""
    starts: int = 1
    error: str = ""

    @property
    def visible_devices(self) -> tuple[str, ...]:
        """The devices that NVIDIA's runtime would bring in: the variable's list; empty, `void` and `none` mean no device."""
        value = self.env.get("NVIDIA_VISIBLE_DEVICES", "")
        return () if value in NO_DEVICES else tuple(value.split(","))


class SimRuntime:
    """`images` maps an image's name to the environment baked into it; CUDA images ask for every device, as real ones do."""

    def __init__(self, images: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._images = dict(images or {})
        self.views: dict[tuple[str, str], ContainerView] = {}

    def view(self, pod: str, container: str) -> ContainerView | None:
        """By the pod's name; the latest start."""
        found = [view for view in self.views.values() if (view.pod, view.container) == (pod, container)]
        return found[-1] if found else None

    def start(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], answers: Sequence[pb.ContainerAllocateResponse]
    ) -> ContainerView:
        meta = pod["metadata"]
        key = meta["uid"], spec["name"]
        before = self.views.pop(key, None)
        mounts = tuple((m.container_path, m.host_path, m.read_only) for each in answers for m in each.mounts)
        devices = tuple((d.container_path, d.host_path, d.permissions) for each in answers for d in each.devices)
        absent = next((host for _, host, _ in devices if not Path(host).exists()), None)
        view = ContainerView(
            pod_uid=meta["uid"],
            pod=meta["name"],
            container=spec["name"],
            env=self._env(pod, spec, answers),
            mounts=mounts,
            devices=devices,
            made_folders=tuple(host for _, host, _ in mounts if not Path(host).exists()),
            starts=1 if before is None else before.starts + 1,
            error="" if absent is None else f"failed to generate spec: lstat {absent}: no such file or directory",
        )
        self.views[key] = view
        return view

    def forget(self, uid: str) -> None:
        for key in [key for key in self.views if key[0] == uid]:
            del self.views[key]

    def _env(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], answers: Sequence[pb.ContainerAllocateResponse]
    ) -> dict[str, str]:
        """Image, then plugin, then pod: the later wins. Resolved at every start, from the pod as it is now."""
        env = dict(self._images.get(spec.get("image", ""), {}))
        if not env and "cuda" in spec.get("image", ""):
            env = {"NVIDIA_VISIBLE_DEVICES": "all"}
        for answer in answers:
            env.update(answer.envs)
        for entry in spec.get("env") or ():
            env[entry["name"]] = _value(pod, entry)
        return env


def _value(pod: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """A literal, or a field of the pod; a missing annotation is the empty string, not an unset variable."""
    path = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
    if not path:
        return str(entry.get("value") or "")
    found = _SUBSCRIPT.fullmatch(path)
    if found is not None:
        return str((pod["metadata"].get(found[1]) or {}).get(found["key"], ""))
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"].get("namespace", ""),
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
    }
    return str(fields.get(path, ""))
