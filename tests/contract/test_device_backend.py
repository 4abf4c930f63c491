"""Every DeviceBackend keeps the same promises: the simulated one, and NVML on a scripted library."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from hami.domain.errors import DeviceUnavailable
from hami.nodeagent.backends.base import DeviceBackend
from hami.nodeagent.backends.nvml import NvmlBackend
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.decide.faults import FaultKind
from tests.support.fake_nvml.script import GPU_IS_LOST, UNKNOWN, XID, NvmlScript, build

UUIDS = tuple(f"GPU-0000000{at}-aaaa-bbbb-cccc-000000000000" for at in range(3))


class Rig(msgspec.Struct):
    """A backend and what can be done to its cards."""

    backend: DeviceBackend
    strike: Callable[[int, int], None]
    lose: Callable[[int], None]
    silence: Callable[[int], None]
    act: Callable[[int, int], None]
    break_library: Callable[[], None]


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlScript:
    monkeypatch.setenv("FAKE_NVML_DIR", str(tmp_path))
    made = NvmlScript(tmp_path)
    made.cards(*UUIDS)
    return made


def _simulated() -> Rig:
    cards = tuple(msgspec.structs.replace(card, uuid=uuid) for card, uuid in zip(simulated_cards(3), UUIDS, strict=True))
    backend = SimulatedBackend(cards)
    return Rig(
        backend=backend,
        strike=lambda card, code: backend.strike(UUIDS[card], code),
        lose=lambda card: backend.lose(UUIDS[card]),
        silence=lambda card: backend.silence(UUIDS[card], "scripted"),
        act=lambda card, action: backend.act(UUIDS[card], action),
        break_library=lambda: backend.break_library("gone"),
    )


def _nvml(script: NvmlScript, driver_root: Path) -> Rig:
    def lose(card: int) -> None:
        script.fail("*", card, GPU_IS_LOST)
        script.wait_error(GPU_IS_LOST)

    return Rig(
        backend=NvmlBackend(driver_root=str(driver_root)),
        strike=lambda card, code: script.event(card, XID, code),
        lose=lose,
        silence=lambda card: script.types(card, 0),
        act=lambda card, action: script.field(card, 230, action),
        break_library=lambda: script.fail("*", "*", UNKNOWN),
    )


@pytest.fixture(params=["simulated", "nvml"])
async def rig(
    request: pytest.FixtureRequest, script: NvmlScript, driver_root: Path, anyio_backend: object
) -> AsyncIterator[Rig]:
    made = _simulated() if request.param == "simulated" else _nvml(script, driver_root)
    yield made
    script.mend()
    await made.backend.close()


async def test_the_inventory_is_complete_and_in_order(rig: Rig) -> None:
    await rig.backend.open()
    found = await rig.backend.inventory()
    assert [device.uuid for device in found.devices] == list(UUIDS)
    assert [device.index for device in found.devices] == [0, 1, 2]
    assert {(device.vendor, device.model, device.memory, device.cores, device.slots) for device in found.devices} == {
        ("NVIDIA", "NVIDIA-A100-SXM4-80GB" if isinstance(rig.backend, NvmlBackend) else "NVIDIA A100-SXM4-80GB", 81920, 100, 1)
    }
    assert found.devices[1].attributes["pci"] == "0000:11:00.0"
    assert (found.unavailable, found.unmonitored) == ({}, {})


async def test_an_xid_arrives_with_its_card_and_code(rig: Rig) -> None:
    await rig.backend.open()
    rig.strike(1, 79)
    [fault] = await rig.backend.wait_faults(5)
    assert (fault.uuid, fault.kind, fault.code) == (UUIDS[1], FaultKind.XID, 79)


async def test_faults_between_open_and_the_first_wait_are_kept_in_order(rig: Rig) -> None:
    await rig.backend.open()
    rig.strike(0, 13)
    rig.strike(2, 48)
    seen = [*await rig.backend.wait_faults(5), *await rig.backend.wait_faults(0.05)]
    if len(seen) < 2:
        seen += await rig.backend.wait_faults(5)
    assert [(fault.uuid, fault.code) for fault in seen] == [(UUIDS[0], 13), (UUIDS[2], 48)]


async def test_a_cancelled_wait_loses_nothing(rig: Rig) -> None:
    await rig.backend.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.backend.wait_faults, 30)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    rig.strike(1, 63)
    [fault] = await rig.backend.wait_faults(5)
    assert fault.code == 63


async def test_waiting_ends_empty_when_nothing_happens(rig: Rig) -> None:
    await rig.backend.open()
    with anyio.fail_after(5):
        assert await rig.backend.wait_faults(0.05) == ()


async def test_a_lost_card_is_reported_and_condemns_no_other(rig: Rig) -> None:
    await rig.backend.open()
    rig.lose(1)
    faults = await rig.backend.wait_faults(5)
    assert {(fault.uuid, fault.kind) for fault in faults} == {(UUIDS[1], FaultKind.GPU_LOST)}
    found = await rig.backend.inventory()
    assert [device.uuid for device in found.devices] == [UUIDS[0], UUIDS[2]]
    assert set(found.unavailable) == {UUIDS[1]}


async def test_a_probe_tells_the_lost_from_the_sound(rig: Rig) -> None:
    await rig.backend.open()
    rig.act(0, 0)
    sound, none = await rig.backend.probe(UUIDS[0])
    assert (sound.probe_passed, sound.recovery_action, none) == (True, 0, ())
    rig.lose(2)
    lost, faults = await rig.backend.probe(UUIDS[2])
    assert lost.probe_passed is False
    assert [fault.kind for fault in faults] == [FaultKind.GPU_LOST]


async def test_an_xid_carries_the_recovery_action_that_the_card_shows(rig: Rig) -> None:
    await rig.backend.open()
    rig.act(1, 4)
    rig.strike(1, 94)
    [fault] = await rig.backend.wait_faults(5)
    assert fault.recovery_action == 4


async def test_a_card_that_reports_nothing_is_named_unmonitored(rig: Rig) -> None:
    rig.silence(1)
    await rig.backend.open()
    found = await rig.backend.inventory()
    assert set(found.unmonitored) == {UUIDS[1]}
    assert len(found.devices) == 3


async def test_a_library_that_is_gone_is_one_error(rig: Rig) -> None:
    rig.break_library()
    with pytest.raises(DeviceUnavailable):
        await rig.backend.open()


async def test_closing_twice_is_closing(rig: Rig) -> None:
    await rig.backend.open()
    assert (await rig.backend.inventory()).devices
    await rig.backend.close()
    await rig.backend.close()
    await rig.backend.open()
    assert len((await rig.backend.inventory()).devices) == len(UUIDS)
    rig.strike(1, 79)
    assert [fault.uuid for fault in await rig.backend.wait_faults(5.0)] == [UUIDS[1]]
    await rig.backend.close()
