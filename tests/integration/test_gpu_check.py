"""tools/gpu_check.py on a scripted library, as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT
from tests.support.fake_nvml.script import NOT_SUPPORTED, XID, NvmlScript, build


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def cards(tmp_path: Path) -> NvmlScript:
    made = NvmlScript(tmp_path)
    made.cards("GPU-a", "GPU-b")
    return made


def ran(script: NvmlScript, library: Path | None, *, smi: str = "", wait: str = "0.05") -> tuple[int, Any]:
    programs = script.folder / "bin"
    programs.mkdir(exist_ok=True)
    if smi:
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{smi}\nEND\n")
        (programs / "nvidia-smi").chmod(0o755)
    env = {"PATH": f"{programs}:/bin", "FAKE_NVML_DIR": str(script.folder), "HOME": os.environ.get("HOME", "/")}
    if library is not None:
        env["LD_LIBRARY_PATH"] = str(library / "usr/lib64")
    command = [sys.executable, str(ROOT / "tools/gpu_check.py"), "--wait", wait]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_machine_without_a_driver_is_said_and_no_failure(cards: NvmlScript) -> None:
    code, found = ran(cards, None)
    assert (code, found["nvml"]) == (0, "absent")
    assert found["why"]


def test_everything_the_agent_reads_is_shown(cards: NvmlScript, driver_root: Path) -> None:
    cards.ecc(0, 3)
    cards.remap(0, rows=1, pending=1)
    cards.field(0, 230, 4)
    cards.topology(0, 1, 10)
    cards.fail("nvmlDeviceGetNumaNodeId", 1, NOT_SUPPORTED)
    code, found = ran(cards, driver_root)
    assert (code, found["nvml"], found["nvidia_smi"]) == (0, "present", "absent")
    first, second = found["cards"]
    assert (first["uuid"], first["memory_mib"], first["fields"]["recovery_action"]) == ("GPU-a", 81920, 4)
    assert first["memory_health"]["uncorrected_volatile"] == 3
    assert first["memory_health"]["remapped_rows"]["pending"] == 1
    assert second["numa"]["code"] == NOT_SUPPORTED
    assert found["pairs"] == [{"pair": [0, 1], "ancestor": 10}]
    assert [card["registered"] for card in found["events"]["cards"]] == ["yes", "yes"]


def test_a_card_that_refuses_events_is_shown_with_its_error(cards: NvmlScript, driver_root: Path) -> None:
    cards.types(1, XID)
    cards.fail("nvmlDeviceRegisterEvents", 1, NOT_SUPPORTED)
    _, found = ran(cards, driver_root)
    [_, second] = found["events"]["cards"]
    assert (second["supported"], second["registered"]["code"]) == (["xid"], NOT_SUPPORTED)


def test_it_compares_with_nvidia_smi(cards: NvmlScript, driver_root: Path) -> None:
    same = "\n".join(
        f"{at}, {uuid}, A100-SXM4-80GB, 81920, 00000000:{16 + at}:00.0, Disabled" for at, uuid in enumerate(("GPU-a", "GPU-b"))
    )
    code, found = ran(cards, driver_root, smi=same)
    assert (code, found["differences"]) == (0, [])
    code, found = ran(cards, driver_root, smi=same.splitlines()[0].replace("81920", "40960"))
    assert code == 1
    assert found["differences"] == [
        "the library has 2 cards, nvidia-smi 1",
        "card 0: memory.total is '81920' and '40960'",
    ]
