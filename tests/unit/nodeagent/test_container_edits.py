"""What a container is given: HAMi's own cases, and what everybody is given who is not known."""

import re
from typing import Any

import pytest

from hami.domain.allocation import DeviceShare
from hami.domain.device import MigPlacement, MigSlice
from hami.domain.units import CorePercent, MiB
from hami.nodeagent.decide.container import ContainerEdits, HookSettings, anonymous_edits, reserved_edits
from tests.support.data import load_json

CASES = [case for case in load_json("allocate-cases.json")["allocate"] if "responses" in case["expect"]]
TRUE_WORDS = {"1", "t", "T", "TRUE", "true", "True"}
CACHE = "/hooks/vgpu/containers/allocate-7"


def _shares(case: Any, number: int) -> tuple[tuple[DeviceShare, ...], Any]:
    """The shares and the container of the case's `number`-th request, as its annotation has them."""
    text = next(iter(case["pod"]["annotations"].values()))
    follow_kubelet = case["config"]["enableGetPreferredAllocation"]
    containers = [*case["pod"]["initContainers"], *case["pod"]["containers"]]
    filled = [(at, part) for at, part in enumerate(text.split(";")) if part]
    at, part = filled[number]
    shares = []
    for place, entry in enumerate(each for each in part.split(":") if each):
        uuid, _, memory, cores = entry.split(",")
        if follow_kubelet:
            uuid = case["request"][number]["devices_ids"][place].rpartition("-")[0]
        shares.append(DeviceShare(vendor="NVIDIA", uuid=uuid, memory=MiB(int(memory)), cores=CorePercent(int(cores))))
    return tuple(shares), containers[at]


def _edits(case: Any, number: int, root: str) -> ContainerEdits:
    config = case["config"]
    hook = HookSettings(
        root=root,
        log_level=config["libCudaLogLevel"],
        oversubscribe=config["deviceMemoryScaling"] > 1,
        disable_core_limit=config["disableCoreLimit"],
    )
    shares, container = _shares(case, number)
    licensed = "license" in str(config.get("files_present", ""))
    present = frozenset(source for source in hook.sources if licensed or not re.search("license|validator", source))
    return reserved_edits(
        shares,
        hook,
        present=present,
        cache_dir=f"{root}/vgpu/containers/pod-uid_{container['name']}",
        control=container["env"].get("CUDA_DISABLE_CONTROL", "") not in TRUE_WORDS,
    )


@pytest.mark.parametrize("case", [case for case in CASES if "static_mig" not in case["id"]], ids=lambda case: case["id"])
def test_a_reservation_is_delivered_as_hami_does(case: Any) -> None:
    for number, expected in enumerate(case["expect"]["responses"]):
        cache = expected.get("envs", {}).get("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")
        root = "" if cache.startswith("re:^/vgpu/") else "/hami-test-hookpath"
        edits = _edits(case, number, root)
        for name, value in expected.get("envs", {}).items():
            if name == "CUDA_DEVICE_MEMORY_SHARED_CACHE":
                assert edits.envs[name].startswith(f"{root}/vgpu/")
            else:
                assert edits.envs[name] == value, name
        if "mounts" in expected:
            got = [(mount.container, mount.host, mount.read_only) for mount in edits.mounts]
            assert got == [_mount(each) for each in expected["mounts"]]


def _mount(expected: Any) -> tuple[str, str, bool]:
    container, host = (expected[key].replace("<TMP>", "/tmp").partition(" (")[0] for key in ("container", "host"))
    return container, host, expected["ro"]


def test_a_mig_instance_is_named_and_carries_no_limits() -> None:
    [case] = [case for case in CASES if case["id"] == "static_mig_known"]
    slice_ = MigSlice("1g.10gb", MigPlacement(0, 1), uuid="MIG-aaa-0")
    share = DeviceShare(vendor="NVIDIA", uuid="GPU-1", memory=MiB(3000), cores=CorePercent(50), mig=slice_)
    edits = reserved_edits((share,), HookSettings(), present=frozenset(HookSettings().sources), cache_dir=CACHE)
    [expected] = case["expect"]["responses"]
    assert edits.envs == expected["envs"]
    assert not set(edits.envs) & set(expected["envs_absent"])
    assert edits.mounts == ()


def test_whoever_is_not_known_sees_no_device_and_gets_the_library_read_only() -> None:
    hook = HookSettings(root="/hooks")
    edits = anonymous_edits(hook, present=frozenset(hook.sources), cache_dir=CACHE)
    assert edits.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert edits.devices == ()
    writable = [mount for mount in edits.mounts if not mount.read_only]
    assert [mount.host for mount in writable] == [CACHE, "/tmp/vgpulock"]


@pytest.mark.parametrize("missing", HookSettings(root="/hooks").sources)
def test_a_missing_source_is_never_offered(missing: str) -> None:
    hook = HookSettings(root="/hooks")
    edits = anonymous_edits(hook, present=frozenset(hook.sources) - {missing}, cache_dir=CACHE)
    assert missing not in {mount.host for mount in edits.mounts}


def test_without_the_library_nothing_is_mounted() -> None:
    edits = anonymous_edits(HookSettings(root="/hooks"), present=frozenset(), cache_dir=CACHE)
    assert edits.mounts == ()


def test_a_versioned_library_is_preferred() -> None:
    hook = HookSettings(root="/hooks", library="libvgpu.so.v1")
    edits = anonymous_edits(hook, present=frozenset(hook.sources), cache_dir=CACHE)
    assert edits.mounts[0].host == "/hooks/vgpu/libvgpu.so.v1"
    assert edits.mounts[0].container == "/hooks/vgpu/libvgpu.so"


def test_no_share_means_no_device() -> None:
    edits = reserved_edits((), HookSettings(), present=frozenset(), cache_dir="")
    assert edits.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
