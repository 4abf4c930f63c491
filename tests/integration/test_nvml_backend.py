"""What only NVML has: its event kinds, its error codes, calls that never return. Real bindings on a scripted library."""

import threading
from pathlib import Path

import anyio
import pytest

from hami.domain.errors import DeviceUnavailable
from hami.nodeagent.backends.library import find_library
from hami.nodeagent.backends.nvml import NvmlBackend
from hami.nodeagent.backends.thread import LibraryThread
from hami.nodeagent.decide.faults import Counters, FaultKind
from tests.support.fake_nvml import script as nvml
from tests.support.fake_nvml.script import NvmlScript, build

UUIDS = ("GPU-a", "GPU-b")


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlScript:
    monkeypatch.setenv("FAKE_NVML_DIR", str(tmp_path))
    made = NvmlScript(tmp_path)
    made.cards(*UUIDS)
    return made


@pytest.fixture
def backend(driver_root: Path) -> NvmlBackend:
    return NvmlBackend(driver_root=str(driver_root))


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (nvml.ECC_DOUBLE_BIT, FaultKind.ECC_DOUBLE_BIT),
        (nvml.RETIREMENT_FAILURE, FaultKind.RETIREMENT_FAILURE),
        (nvml.POISON_FATAL, FaultKind.POISON_FATAL),
        (nvml.UNAVAILABLE, FaultKind.GPU_UNAVAILABLE),
        (nvml.ACTION, FaultKind.RECOVERY_ACTION),
    ],
)
async def test_every_kind_of_event_that_is_asked_for_is_reported(
    cards: NvmlScript, backend: NvmlBackend, event: int, kind: FaultKind
) -> None:
    cards.types(0, 0xFFFF)
    await backend.open()
    cards.event(0, event)
    [fault] = await backend.wait_faults(5)
    assert (fault.uuid, fault.kind) == ("GPU-a", kind)
    await backend.close()


async def test_only_supported_events_are_asked_for(cards: NvmlScript, backend: NvmlBackend) -> None:
    cards.types(0, nvml.XID)
    await backend.open()
    cards.event(0, nvml.XID, 48)
    [fault] = await backend.wait_faults(5)
    assert fault.code == 48
    assert (await backend.inventory()).unmonitored == {}
    await backend.close()


async def test_a_mig_instance_is_named_when_the_driver_names_it(cards: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    cards.event(1, nvml.XID, 94, instance=(3, 0))
    cards.event(1, nvml.XID, 94)
    first = (await backend.wait_faults(5))[0]
    second = (await backend.wait_faults(5))[0]
    assert (first.gpu_instance, first.compute_instance) == (3, 0)
    assert (second.gpu_instance, second.compute_instance) == (None, None)
    await backend.close()


async def test_a_wait_error_that_no_card_owns_condemns_none(cards: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    cards.wait_error(nvml.UNKNOWN)
    [fault] = await backend.wait_faults(5)
    assert (fault.uuid, fault.kind) == ("", FaultKind.UNREACHABLE)
    cards.event(1, nvml.XID, 79)
    [next_fault] = await backend.wait_faults(5)
    assert (next_fault.uuid, next_fault.code) == ("GPU-b", 79)
    await backend.close()


async def test_a_persistent_wait_error_does_not_spin(cards: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    cards.fail("nvmlEventSetWait", "*", nvml.UNKNOWN)
    began = anyio.current_time()
    for _ in range(2):
        assert await backend.wait_faults(5)
    assert anyio.current_time() - began > 0.9
    cards.mend()
    await backend.close()


@pytest.mark.parametrize("function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
@pytest.mark.parametrize("code", [nvml.NOT_SUPPORTED, nvml.NO_PERMISSION])
async def test_a_card_that_cannot_be_listened_to_is_unmonitored_not_unhealthy(
    cards: NvmlScript, backend: NvmlBackend, function: str, code: int
) -> None:
    cards.fail(function, 0, code)
    await backend.open()
    found = await backend.inventory()
    assert set(found.unmonitored) == {"GPU-a"}
    evidence, faults = await backend.probe("GPU-a")
    assert (evidence.probe_passed, faults) == (True, ())
    await backend.close()


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetMigMode"]
)
async def test_a_fact_that_a_card_does_not_have_is_left_out(cards: NvmlScript, backend: NvmlBackend, function: str) -> None:
    cards.fail(function, 0, nvml.NOT_SUPPORTED)
    await backend.open()
    found = await backend.inventory()
    assert [device.uuid for device in found.devices] == list(UUIDS)
    await backend.close()


async def test_unified_memory_is_zero_here_and_for_the_settings_to_supply(cards: NvmlScript, backend: NvmlBackend) -> None:
    cards.cards("GPU-a", memory=-1)
    await backend.open()
    [device] = (await backend.inventory()).devices
    assert device.memory == 0
    await backend.close()


async def test_a_card_in_need_of_a_reset_says_so(cards: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    cards.fail("nvmlDeviceGetMemoryInfo", 1, nvml.RESET_REQUIRED)
    _, [fault] = await backend.probe("GPU-b")
    assert fault.kind is FaultKind.RESET_REQUIRED
    await backend.close()


@pytest.mark.parametrize(("pending", "clean"), [(0, True), (1, False)])
async def test_row_remapping_is_evidence(cards: NvmlScript, backend: NvmlBackend, pending: int, clean: bool) -> None:
    await backend.open()
    assert (await backend.probe("GPU-a"))[0].memory_clean is None
    cards.remap(0, pending=pending)
    assert (await backend.probe("GPU-a"))[0].memory_clean is clean
    await backend.close()


async def test_closeness_of_cards_is_scored_over_bus_and_links(cards: NvmlScript, backend: NvmlBackend) -> None:
    cards.cards("GPU-a", "GPU-b", "GPU-c")
    cards.topology(0, 1, 10)
    cards.topology(0, 2, 50)
    for one, other in ((0, 1), (1, 0)):
        for link in range(2):
            cards.link(one, link, f"00000000:{16 + other:02X}:00.0")
    cards.link(0, 2, "00000000:F0:00.0", switch=True)
    cards.link(2, 0, "00000000:F0:00.0", switch=True)
    await backend.open()
    scores = [device.pair_scores for device in (await backend.inventory()).devices]
    assert scores == [
        {"GPU-b": 250, "GPU-c": 110},
        {"GPU-a": 250, "GPU-c": 0},
        {"GPU-a": 110, "GPU-b": 0},
    ]
    await backend.close()


async def test_links_that_only_one_side_knows_score_nothing(cards: NvmlScript, backend: NvmlBackend) -> None:
    cards.topology(0, 1, 10)
    cards.link(0, 0, "00000000:11:00.0")
    await backend.open()
    scores = [device.pair_scores for device in (await backend.inventory()).devices]
    assert scores == [{"GPU-b": 0}, {"GPU-a": 0}]
    await backend.close()


async def test_a_card_that_vanishes_is_missing_not_a_crash(cards: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    cards.cards("GPU-a")
    found = await backend.inventory()
    assert [device.uuid for device in found.devices] == ["GPU-a"]
    assert found.unavailable == {"GPU-b": "no longer listed"}
    await backend.close()


async def test_no_answer_within_the_deadline_is_an_error_until_the_call_returns() -> None:
    thread, hold = LibraryThread("stuck"), threading.Event()
    thread.start()
    with pytest.raises(DeviceUnavailable, match="no answer within"):
        await thread.call(hold.wait, deadline_s=0.05)
    with pytest.raises(DeviceUnavailable, match="earlier call has not returned"):
        await thread.call(lambda: 1, deadline_s=1)
    hold.set()
    with anyio.fail_after(5):
        while True:
            try:
                assert await thread.call(lambda: 1, deadline_s=1) == 1
                break
            except DeviceUnavailable:
                await anyio.lowlevel.checkpoint()
    thread.stop()


def test_the_library_is_looked_for_under_the_driver_root(driver_root: Path, tmp_path: Path) -> None:
    assert find_library(str(driver_root)) == driver_root / "usr/lib64/libnvidia-ml.so.1"
    assert find_library(str(tmp_path)) is None
    assert find_library("/") is None


async def test_a_cards_memory_is_read_figure_by_figure(cards: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    assert (await backend.probe("GPU-a"))[0].counters == Counters()
    cards.ecc(0, 3)
    cards.remap(0, rows=2, pending=1)
    cards.sram(0, exceeded=1)
    cards.unrepairable(0, 1)
    new, _ = await backend.probe("GPU-a")
    assert new.counters == Counters(
        uncorrected=3, remapped=2, remap_pending=True, remap_failure=False, sram_threshold=True, unrepairable=True
    )
    assert new.memory_clean is False
    cards.retired(1, 4, pending=1)
    old, _ = await backend.probe("GPU-b")
    assert old.counters == Counters(remapped=4, remap_pending=True)
    await backend.close()


# MIG: what differs from library to library and from right to right.


@pytest.fixture
def cut(cards: NvmlScript) -> NvmlScript:
    cards.mig(0)
    cards.cut(0, 1, 14, 0, 2, slices=[2])
    return cards


async def test_an_older_library_that_names_no_profiles_has_them_named_by_size(cut: NvmlScript, backend: NvmlBackend) -> None:
    cut.fail("nvmlDeviceGetGpuInstanceProfileInfoV", 0, nvml.NOT_SUPPORTED)
    await backend.open()
    found = await backend.inventory()
    names = [profile.name for profile in found.devices[0].mig_profiles]
    assert names[:5] == ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert [(each.profile, each.uuid != "") for each in found.instances] == [("2g.20gb", True)]
    await backend.close()


async def test_without_the_right_to_list_instances_those_with_a_device_are_seen(cut: NvmlScript, backend: NvmlBackend) -> None:
    cut.fail("nvmlDeviceGetGpuInstances", 0, nvml.NO_PERMISSION)
    await backend.open()
    [instance] = (await backend.inventory()).instances
    assert (instance.profile, instance.memory, instance.whole) == ("2g.20gb", 19968, True)
    assert instance.uuid
    await backend.close()


async def test_processes_that_cannot_be_listed_count_as_there(cut: NvmlScript, backend: NvmlBackend) -> None:
    cut.fail("nvmlDeviceGetComputeRunningProcesses", "*", nvml.NO_PERMISSION)
    await backend.open()
    [instance] = (await backend.inventory()).instances
    assert instance.busy
    assert await backend.enable_mig("GPU-b") != ""
    await backend.close()


async def test_compute_instances_that_share_a_gpu_instance_are_told_from_whole_ones(
    cards: NvmlScript, backend: NvmlBackend
) -> None:
    cards.mig(0)
    cards.cut(0, 1, 14, 0, 2, slices=[1, 1])
    cards.cut(0, 2, 9, 4, 4, slices=[3])
    await backend.open()
    found = (await backend.inventory()).instances
    assert [(each.gpu_instance, each.compute_instance, each.whole) for each in found] == [
        (1, 0, False),
        (1, 1, False),
        (2, 0, True),
    ]
    assert await backend.drop_compute_instances(found[0]) == ""
    assert [each.uuid != "" for each in (await backend.inventory()).instances] == [False, True]
    await backend.close()


async def test_an_xid_knows_the_instances_of_its_card_as_they_are_then(cut: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    cut.event(0, nvml.XID, 94, instance=(1, 0))
    [fault] = await backend.wait_faults(5)
    [instance] = (await backend.inventory()).instances
    assert [(each.gpu_instance, each.compute_instance, each.uuid) for each in fault.pieces] == [(1, 0, instance.uuid)]
    cut.event(1, nvml.XID, 94)
    [other] = await backend.wait_faults(5)
    assert other.pieces == ()
    await backend.close()


async def test_an_instance_is_probed_with_its_cards_recovery_action(cut: NvmlScript, backend: NvmlBackend) -> None:
    await backend.open()
    [instance] = (await backend.inventory()).instances
    cut.field(0, 230, 1)
    evidence, faults = await backend.probe(instance.uuid)
    assert (evidence.probe_passed, evidence.recovery_action, faults) == (True, 1, ())
    await backend.close()


async def test_an_instance_that_goes_while_it_is_listed_is_left_out(cut: NvmlScript, backend: NvmlBackend) -> None:
    cut.cut(0, 3, 19, 6, 1, slices=[1])
    for function in ("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlGpuInstanceGetInfo"):
        cut.fail(function, 0, nvml.NOT_FOUND)
        await backend.open()
        assert [each.uuid for each in (await backend.inventory()).instances if each.uuid] == []
        cut.mend()
        assert len((await backend.inventory()).instances) == 2
    await backend.close()
