"""Every MigBackend cuts cards alike: the simulated one, and NVML on a scripted library."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from hami.domain.device import MigPlacement
from hami.nodeagent.backends.base import MigBackend
from hami.nodeagent.backends.nvml import NvmlBackend
from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.nodeagent.decide.mig import Failed, Instance
from tests.support.fake_nvml.script import GPU_IS_LOST, NvmlScript, build

UUIDS = tuple(f"GPU-0000000{at}-aaaa-bbbb-cccc-000000000000" for at in range(3))
CUT, OFF, STUCK = UUIDS
ONE, LAST = "1g.10gb", MigPlacement(6, 1)


class Rig(msgspec.Struct):
    """The first card is in MIG mode, the others are not; the third's waits for a reset. `new` is another life's backend."""

    backend: MigBackend
    new: Callable[[], MigBackend]
    busy: Callable[[str], None]
    lose: Callable[[int], None]


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def _simulated() -> Rig:
    modes = ("enabled", "disabled", "disabled")
    cards = tuple(
        msgspec.structs.replace(card, uuid=uuid, attributes={**card.attributes, "mig": mode})
        for card, uuid, mode in zip(simulated_cards(3), UUIDS, modes, strict=True)
    )
    backend = SimulatedBackend(cards)
    backend.mig.needs_reset(STUCK)
    return Rig(
        backend=backend,
        new=lambda: SimulatedBackend(cards, mig=backend.mig),
        busy=backend.mig.occupy,
        lose=lambda card: backend.lose(UUIDS[card]),
    )


def _nvml(folder: Path, driver_root: Path) -> Rig:
    script = NvmlScript(folder)
    script.cards(*UUIDS)
    script.mig(0)
    script.needs_reset(2)
    return Rig(
        backend=NvmlBackend(driver_root=str(driver_root)),
        new=lambda: NvmlBackend(driver_root=str(driver_root)),
        busy=script.busy,
        lose=lambda card: script.fail("*", card, GPU_IS_LOST),
    )


@pytest.fixture(params=["simulated", "nvml"])
async def rig(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver_root: Path, anyio_backend: object
) -> AsyncIterator[Rig]:
    monkeypatch.setenv("FAKE_NVML_DIR", str(tmp_path))
    made = _simulated() if request.param == "simulated" else _nvml(tmp_path, driver_root)
    await made.backend.open()
    yield made
    (tmp_path / "fail").unlink(missing_ok=True)
    await made.backend.close()


async def cut(backend: MigBackend, profile: str = ONE, at: MigPlacement = LAST, card: str = CUT) -> Instance:
    bare = await backend.make_gpu_instance(card, profile, at)
    assert isinstance(bare, Instance), bare
    made = await backend.make_compute_instance(bare)
    assert isinstance(made, Instance), made
    return made


async def there(backend: MigBackend) -> tuple[Instance, ...]:
    return (await backend.inventory()).instances


async def test_a_card_says_how_it_is_and_what_can_be_cut_out_of_it(rig: Rig) -> None:
    found = (await rig.backend.inventory()).devices
    assert [card.attributes["mig"] for card in found] == ["enabled", "disabled", "disabled"]
    assert [bool(card.mig_profiles) for card in found] == [True, False, False]
    profiles = {each.name: each for each in found[0].mig_profiles}
    one, three = profiles[ONE], profiles["3g.40gb"]
    assert (one.memory, one.cores, one.slices) == (9728, 15, 1)
    assert one.placements == tuple(MigPlacement(start, 1) for start in range(7))
    assert three.placements == (MigPlacement(0, 4), MigPlacement(4, 4))


async def test_an_instance_is_made_exactly_there_in_two_steps(rig: Rig) -> None:
    bare = await rig.backend.make_gpu_instance(CUT, "3g.40gb", MigPlacement(4, 4))
    assert isinstance(bare, Instance)
    assert (bare.place, bare.compute_instance, bare.uuid) == ((CUT, "3g.40gb", 4, 4), None, "")
    assert [(each.place, each.uuid) for each in await there(rig.backend)] == [(bare.place, "")]
    made = await rig.backend.make_compute_instance(bare)
    assert isinstance(made, Instance)
    assert made.place == bare.place
    assert made.uuid.startswith("MIG-")
    assert made.compute_instance is not None
    [seen] = await there(rig.backend)
    assert (seen.place, seen.uuid, seen.gpu_instance, seen.compute_instance) == (
        made.place,
        made.uuid,
        made.gpu_instance,
        made.compute_instance,
    )
    assert (seen.memory, seen.whole, seen.busy) == (40192, True, False)


async def test_instances_are_told_apart_and_outlive_whoever_made_them(rig: Rig) -> None:
    made = [
        await cut(rig.backend),
        await cut(rig.backend, "2g.20gb", MigPlacement(0, 2)),
        await cut(rig.backend, ONE, MigPlacement(5, 1)),
    ]
    assert len({each.uuid for each in made}) == 3
    assert len({each.gpu_instance for each in made}) == 3
    await rig.backend.close()
    second = rig.new()
    await second.open()
    assert {(each.place, each.uuid) for each in await there(second)} == {(each.place, each.uuid) for each in made}
    await second.close()


@pytest.mark.parametrize(
    ("profile", "at"),
    [(ONE, LAST), ("4g.40gb", MigPlacement(0, 4)), ("2g.20gb", MigPlacement(1, 2)), ("9g.90gb", MigPlacement(0, 1))],
    ids=["taken", "overlapping", "no such place", "no such profile"],
)
async def test_what_does_not_fit_exactly_there_is_not_made(rig: Rig, profile: str, at: MigPlacement) -> None:
    await cut(rig.backend)
    await cut(rig.backend, ONE, MigPlacement(3, 1))
    refused = await rig.backend.make_gpu_instance(CUT, profile, at)
    assert isinstance(refused, Failed)
    assert refused.why
    assert len(await there(rig.backend)) == 2


@pytest.mark.parametrize("card", [OFF, "GPU-nobody"], ids=["not in MIG mode", "no such card"])
async def test_a_card_that_cannot_be_cut_is_a_refusal(rig: Rig, card: str) -> None:
    assert isinstance(await rig.backend.make_gpu_instance(card, ONE, LAST), Failed)


async def test_a_lost_card_is_a_refusal(rig: Rig) -> None:
    rig.lose(0)
    assert isinstance(await rig.backend.make_gpu_instance(CUT, ONE, LAST), Failed)


async def test_an_instance_is_destroyed_in_the_opposite_order(rig: Rig) -> None:
    made = await cut(rig.backend)
    assert await rig.backend.drop_gpu_instance(made) != ""
    assert len(await there(rig.backend)) == 1
    assert await rig.backend.drop_compute_instances(made) == ""
    assert [each.uuid for each in await there(rig.backend)] == [""]
    assert await rig.backend.drop_gpu_instance(made) == ""
    assert await there(rig.backend) == ()
    again = await cut(rig.backend)
    assert again.place == made.place


async def test_destroying_what_is_not_there_is_done_already(rig: Rig) -> None:
    made = await cut(rig.backend)
    for _ in range(2):
        assert await rig.backend.drop_compute_instances(made) == ""
        assert await rig.backend.drop_gpu_instance(made) == ""


async def test_what_a_process_uses_is_not_destroyed(rig: Rig) -> None:
    made = await cut(rig.backend)
    rig.busy(made.uuid)
    assert [each.busy for each in await there(rig.backend)] == [True]
    assert await rig.backend.drop_compute_instances(made) != ""
    assert [each.uuid for each in await there(rig.backend)] == [made.uuid]


async def test_the_second_compute_instance_of_a_whole_one_is_refused(rig: Rig) -> None:
    made = await cut(rig.backend)
    assert isinstance(await rig.backend.make_compute_instance(made), Failed)


async def test_an_idle_card_is_put_into_mig_mode(rig: Rig) -> None:
    assert await rig.backend.enable_mig(OFF) == ""
    card = (await rig.backend.inventory()).devices[1]
    assert card.attributes["mig"] == "enabled"
    assert card.mig_profiles
    await cut(rig.backend, card=OFF)


async def test_a_card_in_use_keeps_its_mode(rig: Rig) -> None:
    rig.busy(OFF)
    assert await rig.backend.enable_mig(OFF) != ""
    assert (await rig.backend.inventory()).devices[1].attributes["mig"] == "disabled"


async def test_a_mode_that_waits_for_a_reset_is_said_to_wait(rig: Rig) -> None:
    assert "reset" in await rig.backend.enable_mig(STUCK)
    card = (await rig.backend.inventory()).devices[2]
    assert (card.attributes["mig"], card.mig_profiles) == ("pending", ())


async def test_an_instance_is_asked_like_a_card_and_one_that_is_gone_says_nothing(rig: Rig) -> None:
    made = await cut(rig.backend)
    evidence, faults = await rig.backend.probe(made.uuid)
    assert (evidence.probe_passed, faults) == (True, ())
    await rig.backend.drop_compute_instances(made)
    evidence, faults = await rig.backend.probe(made.uuid)
    assert (evidence.probe_passed, faults) == (None, ())
    rig.lose(0)
    _, lost = await rig.backend.probe(CUT)
    assert len(lost) == 1
