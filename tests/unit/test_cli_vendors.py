"""`hami vendors`: the same data as the reference page."""

from pathlib import Path

import pytest

from hami.cli.exits import Exit
from tests.support.cli import Hami


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str]) -> Hami:
    return Hami(capsys, "redis://127.0.0.1:1/0")


def test_the_list_names_every_vendor_and_what_asks_for_it(hami: Hami) -> None:
    found = {each["name"]: each for each in hami("vendors", "list", "-o", "json").json["vendors"]}
    assert {"NVIDIA", "MLU", "DCU", "Ascend910B3", "MR-V100", "kunlun", "Metax-SGPU", "Enflame"} <= set(found)
    assert {"what": "cards", "name": "nvidia.com/gpu"} in found["NVIDIA"]["resources"]
    assert all(each["about"] for each in found.values())


def test_one_vendor_by_its_word_in_any_case_or_by_a_resource(hami: Hami) -> None:
    by_word, by_resource = (
        hami("vendors", "show", "mlu", "-o", "json"),
        hami("vendors", "show", "cambricon.com/vmlu", "-o", "json"),
    )
    assert by_word.json == by_resource.json
    assert by_word.json["resources"][1] == {"what": "memory, in 256 MiB", "name": "cambricon.com/mlu.smlu.vmemory"}
    assert by_word.json["rules"][0]["refused_with"] == "CardNotHealth"
    assert "hami.io/cambricon-mlu-devices-allocated" in hami("vendors", "show", "MLU").out


def test_a_vendor_that_there_is_not_names_those_that_there_are(hami: Hami) -> None:
    ran = hami("vendors", "show", "abacus")
    assert ran.code == Exit.NOT_FOUND
    assert "'abacus'" in ran.err
    assert "NVIDIA" in ran.err


def test_names_are_those_of_the_device_config(hami: Hami, tmp_path: Path) -> None:
    file, config = tmp_path / "device-config.yaml", tmp_path / "hami.toml"
    file.write_text("nvidia:\n  resourceCountName: example.com/gpu\n")
    config.write_text(f'[scheduler]\ndevice_config = "{file}"\n')
    [only] = hami("vendors", "list", "--config", str(config), "-o", "json").json["vendors"]
    assert (only["name"], only["resources"][0]["name"]) == ("NVIDIA", "example.com/gpu")
