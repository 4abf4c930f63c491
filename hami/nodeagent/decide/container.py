"""decide for containers: what a container is given by the kubelet's answer. Pure.

Two answers exist. `anonymous_edits` is the same for everybody and shows no device: in identity delivery the pod's own
environment, resolved from annotations that the control plane wrote, says which devices it sees. `reserved_edits` names a
reservation's devices: for delivery in order, and as the yardstick for what a container should have got.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.domain.allocation import DeviceShare

NO_DEVICE: Final = "void"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_LOCK_DIR: Final = "/tmp/vgpulock"  # noqa: S108 - fixed in the interception library
_LICENSE: Final = "/tmp/license"  # noqa: S108 - as above


class Mount(msgspec.Struct, frozen=True, gc=False):
    container: str
    host: str
    read_only: bool


class DeviceNode(msgspec.Struct, frozen=True, gc=False):
    container: str
    host: str
    permissions: str = "rw"


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to a container: environment, mounts, device nodes, and names of CDI devices in two places."""

    envs: dict[str, str]
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    def plus(self, other: "ContainerEdits") -> "ContainerEdits":
        """Both; where they name one variable, the other's value."""
        return ContainerEdits(
            envs=self.envs | other.envs,
            mounts=(*self.mounts, *other.mounts),
            devices=(*self.devices, *other.devices),
            annotations=self.annotations | other.annotations,
            cdi_devices=(*self.cdi_devices, *other.cdi_devices),
        )


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The interception library on this node and how it is told to behave.

    `root` is HAMi's HOOK_PATH: everything lies in `<root>/vgpu`, on the host and in the container alike. `library` is the file
    name of a versioned library, preferred where it exists.
    """

    root: str = "/usr/local"
    library: str = ""
    log_level: str = "1"
    oversubscribe: bool = False
    disable_core_limit: bool = False

    @property
    def folder(self) -> str:
        return f"{self.root.rstrip('/')}/vgpu"

    @property
    def sources(self) -> tuple[str, ...]:
        """Host paths that may be offered as mounts. Only those that exist may: a runtime creates a missing one as a folder."""
        names = ("libvgpu.so", "ld.so.preload", "license", "vgpuvalidator", *((self.library,) if self.library else ()))
        return (*(f"{self.folder}/{name}" for name in names), _LOCK_DIR)

    def chosen(self, present: frozenset[str]) -> str:
        """The library's path among the sources that are there; empty = none, so containers are not held to their limits."""
        versioned = f"{self.folder}/{self.library}" if self.library else ""
        library = versioned if versioned in present else f"{self.folder}/libvgpu.so"
        return library if library in present else ""


def anonymous_edits(hook: HookSettings, *, present: frozenset[str], cache_dir: str) -> ContainerEdits:
    """The answer for everyone: no visible device, the library, a cache folder of its own (none when `cache_dir` is empty)."""
    return ContainerEdits(
        envs={VISIBLE: NO_DEVICE, **_hook_envs(hook, cache_dir)}, mounts=_hook_mounts(hook, present, cache_dir)
    )


def reserved_edits(
    shares: Sequence[DeviceShare],
    hook: HookSettings,
    *,
    present: frozenset[str],
    cache_dir: str,
    control: bool = True,
    nodes: Sequence[DeviceNode] = (),
) -> ContainerEdits:
    """The answer for one container's reservation. Limits are per device in the order of the list; MIG instances carry none.

    `control` False withholds the preload file: the container runs without interception. No share means no device.
    """
    if not shares:
        return anonymous_edits(hook, present=present, cache_dir=cache_dir)
    # Named here by uuid; the strategy that is in force (listing.py) has the last word.
    ids = [share.mig.uuid if share.mig is not None and share.mig.uuid else share.uuid for share in shares]
    visible = {VISIBLE: ",".join(dict.fromkeys(ids))}
    if any(share.mig is not None for share in shares):
        return ContainerEdits(envs=visible, devices=tuple(nodes))
    limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": f"{share.memory}m" for at, share in enumerate(shares)}
    cores = {"CUDA_DEVICE_SM_LIMIT": str(shares[0].cores)}
    return ContainerEdits(
        envs={**visible, **limits, **cores, **_hook_envs(hook, cache_dir)},
        mounts=_hook_mounts(hook, present, cache_dir, control=control),
        devices=tuple(nodes),
    )


def _hook_envs(hook: HookSettings, cache_dir: str) -> dict[str, str]:
    envs = {}
    if cache_dir:
        envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{hook.folder}/{cache_dir.rpartition('/')[2]}.cache"
    if hook.log_level:
        envs["LIBCUDA_LOG_LEVEL"] = hook.log_level
    if hook.oversubscribe:
        envs["CUDA_OVERSUBSCRIBE"] = "true"
    if hook.disable_core_limit:
        envs["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return envs


def _hook_mounts(hook: HookSettings, present: frozenset[str], cache_dir: str, *, control: bool = True) -> tuple[Mount, ...]:
    folder = hook.folder
    library = hook.chosen(present)
    if not library:
        return ()
    wanted = [
        Mount(f"{folder}/libvgpu.so", library, read_only=True),
        Mount(folder, cache_dir, read_only=False),
        Mount(_LOCK_DIR, _LOCK_DIR, read_only=False),
    ]
    if control:
        wanted.append(Mount("/etc/ld.so.preload", f"{folder}/ld.so.preload", read_only=True))
    if f"{folder}/license" in present:
        wanted.append(Mount(_LICENSE, f"{folder}/license", read_only=True))
        wanted.append(Mount("/usr/bin/vgpuvalidator", f"{folder}/vgpuvalidator", read_only=True))
    return tuple(mount for mount in wanted if mount.host and (mount.host == cache_dir or mount.host in present))
