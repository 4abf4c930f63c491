"""`hami node show|doctor` on the node: what is there, what is missing, what to do about it."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from hami.cli.exits import Exit
from hami.domain.units import EpochMs
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from hami.nodeagent.backends.simulated import simulated_cards
from hami.nodeagent.decide.faults import CardHealth, Fault, FaultKind
from hami.nodeagent.decide.health import observe, policy_of
from hami.nodeagent.state import COPY, FILE, ServedContainer, StateFile
from tests.support.cli import Hami, Ran
from tests.support.plugins import RESOURCE, socket_folder

CARDS = simulated_cards(2)


async def prepare(url: str) -> None:
    async with Client(url) as client:
        await client.command.call("FLUSHALL")
        await initialise(client)
        await RedisStore(client).leases.keep("n1", "7", ttl_ms=600_000)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


@pytest.fixture
def hami(
    capsys: pytest.CaptureFixture[str], valkey_server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Hami:
    anyio.run(prepare, valkey_server.url)
    (folder / "devices.json").write_bytes(msgspec.json.encode({"devices": CARDS}))
    given = {
        "NODE_NAME": "n1",
        "HAMI_AGENT_BACKEND": "simulated",
        "HAMI_AGENT_SIMULATED_DEVICES": str(folder / "devices.json"),
        "HAMI_AGENT_KUBELET_DIR": str(folder / "device-plugins"),
        "HAMI_AGENT_POD_RESOURCES_SOCKET": str(folder / "pod-resources/kubelet.sock"),
        "HAMI_AGENT_STATE_DIR": str(folder / "state"),
        "HAMI_AGENT_HOOK_PATH": str(folder / "hook"),
        "HAMI_AGENT_CDI_DIR": str(folder / "cdi"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return Hami(capsys, valkey_server.url)


def library(folder: Path, line: str = "") -> Path:
    hooks = folder / "hook/vgpu"
    hooks.mkdir(parents=True, exist_ok=True)
    (hooks / "libvgpu.so").touch()
    (hooks / "ld.so.preload").write_text(line or f"{hooks}/libvgpu.so\n")
    return hooks


def remembered(folder: Path) -> StateFile:
    memory = StateFile(folder / "state")
    memory.load()
    memory.state.told = CARDS
    fault = Fault(uuid=CARDS[0].uuid, kind=FaultKind.XID, code=79)
    card = observe(CardHealth(uuid=CARDS[0].uuid), fault, policy_of(), now=EpochMs(1), boot_id="boot-1").card
    memory.state.cards[card.uuid] = card
    memory.state.served["u-1/main"] = ServedContainer(pod_uid="u-1", container="main", reservation="r-1")
    memory.save()
    return memory


def findings(ran: Ran) -> dict[str, Any]:
    return {each["check"]: each for each in ran.json["findings"]}


def test_show_tells_what_the_agent_remembers(hami: Hami, folder: Path) -> None:
    assert hami("node", "show").code == Exit.NOT_FOUND
    remembered(folder)
    shown = hami("node", "show").out
    assert "XID 79" in shown
    assert "u-1" in shown
    document = hami("node", "show", "-o", "json").json
    assert [each["health"] for each in document["devices"]] == ["unhealthy", "healthy"]
    assert document["cards"][0]["faults"][0]["code"] == 79


def test_a_bare_node_fails_and_every_line_says_what_to_do(hami: Hami, folder: Path) -> None:
    ran = hami("node", "doctor", "-o", "json")
    assert ran.code == Exit.FAILED
    found = findings(ran)
    assert {check for check, each in found.items() if each["verdict"] == "fail"} == {"kubelet", "library"}
    assert all(each["todo"] for each in found.values() if each["verdict"] != "ok")
    assert found["devices"]["found"] == "2 cards, driver simulated"
    assert found["store"]["found"] == "reachable; n1 holds its lease"
    assert not (folder / "state").exists()
    assert "TO DO" in hami("node", "doctor").out


def test_what_a_runtime_made_in_place_of_a_missing_file_is_found(hami: Hami, folder: Path) -> None:
    (folder / "hook/vgpu/libvgpu.so").mkdir(parents=True)
    assert "is a folder" in findings(hami("node", "doctor", "-o", "json"))["library"]["found"]


def test_a_preload_file_that_names_another_path_is_found(hami: Hami, folder: Path) -> None:
    library(folder, "/elsewhere/libvgpu.so")
    assert "it must say" in findings(hami("node", "doctor", "-o", "json"))["library"]["todo"]
    library(folder)
    assert findings(hami("node", "doctor", "-o", "json"))["library"]["verdict"] == "ok"


def test_open_faults_and_a_broken_state_are_told_apart(hami: Hami, folder: Path) -> None:
    remembered(folder)
    assert CARDS[0].uuid in findings(hami("node", "doctor", "-o", "json"))["state"]["found"]
    (folder / "state" / FILE).write_text("{")
    harmed = findings(hami("node", "doctor", "-o", "json"))["state"]
    assert (harmed["verdict"], FILE in harmed["found"]) == ("warn", True)
    assert hami("node", "show", "-o", "json").json["cards"][0]["faults"][0]["code"] == 79
    (folder / "state" / COPY).write_text("{")
    broken = findings(hami("node", "doctor", "-o", "json"))["state"]
    assert broken["verdict"] == "fail"
    assert (folder / "state" / FILE).exists()
    StateFile(folder / "state").load()
    lost = findings(hami("node", "doctor", "-o", "json"))["state"]
    assert (lost["verdict"], "is lost" in lost["found"]) == ("warn", True)
    assert "is lost" in hami("node", "show", "-o", "json").json["lost"]


def test_a_name_that_no_node_can_have_is_found(hami: Hami, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(hami("node", "doctor", "-o", "json"))["node"]["verdict"] == "ok"
    for name in ("Bad_Name", ""):
        monkeypatch.setenv("NODE_NAME", name)
        assert findings(hami("node", "doctor", "-o", "json"))["node"]["verdict"] == "fail"


def test_another_plugin_in_our_place_is_named_with_its_socket(hami: Hami, folder: Path) -> None:
    remembered(folder)
    plugins = folder / "device-plugins"
    plugins.mkdir()
    (plugins / "nvidia-gpu.sock").touch()

    def kubelet_has(*ids: str) -> None:
        books = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {RESOURCE: ids}}, "Checksum": 0}
        (plugins / "kubelet_internal_checkpoint").write_bytes(msgspec.json.encode(books))

    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(plugins / "hami-gpu.sock"))
        ours.listen()
        kubelet_has(f"{CARDS[0].uuid}-0", f"{CARDS[1].uuid}-9")
        assert findings(hami("node", "doctor", "-o", "json"))["plugin"]["verdict"] == "ok"
        kubelet_has("GPU-x::0", "GPU-x::1")
        taken = findings(hami("node", "doctor", "-o", "json"))["plugin"]
    assert taken["verdict"] == "fail"
    assert "2 devices of nvidia.com/gpu that are not ours, such as GPU-x::0" in taken["found"]
    assert "nvidia-gpu.sock" in taken["found"]


def test_with_cdi_the_specifications_are_looked_for(hami: Hami, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_LIST_STRATEGY", "cdi-cri")
    assert findings(hami("node", "doctor", "-o", "json"))["runtime"]["verdict"] == "fail"
    (folder / "cdi").mkdir()
    assert findings(hami("node", "doctor", "-o", "json"))["runtime"]["verdict"] == "warn"
    (folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json").touch()
    assert findings(hami("node", "doctor", "-o", "json"))["runtime"]["verdict"] == "ok"


def test_a_store_that_is_away_is_one_finding_among_others(capsys: pytest.CaptureFixture[str], hami: Hami) -> None:
    ran = Hami(capsys, "redis://127.0.0.1:1/0")("node", "doctor", "-o", "json")
    assert ran.code == Exit.FAILED
    assert findings(ran)["store"]["verdict"] == "fail"
    assert findings(ran)["devices"]["verdict"] == "ok"


def test_a_machine_without_a_driver_is_told_where_it_was_looked_for(hami: Hami, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: another test of this one may have loaded the scripted library."""
    monkeypatch.setenv("HAMI_AGENT_BACKEND", "nvml")
    command = [sys.executable, "-m", "hami.cli", "node", "doctor", "-o", "json"]
    ran = subprocess.run(command, capture_output=True, check=False)
    devices = {each["check"]: each for each in msgspec.json.decode(ran.stdout)["findings"]}["devices"]
    assert devices["verdict"] == "fail"
    assert "agent.driver_root" in devices["todo"]
    assert "the kernel has" in devices["found"]
