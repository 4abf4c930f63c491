"""CDI specifications: what they say, and that they are written whole, on change, and taken away."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.nodeagent.backends.simulated import simulated_cards
from hami.nodeagent.cdi import CdiFiles
from hami.nodeagent.decide.cdi import Found, specifications
from hami.nodeagent.decide.listing import ListSettings, ListStrategy

CARDS = simulated_cards(2)
SETTINGS = ListSettings(strategies=(ListStrategy.CDI_CRI,), dev_root="/", driver_root="/")
NODES = frozenset({"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"})
GPU = "k8s.device-plugin.nvidia.com-gpu.json"


def gpu(found: Found, settings: ListSettings = SETTINGS, hook: str = "/usr/bin/nvidia-ctk") -> Any:
    return specifications(CARDS, settings, found, hook=hook)[GPU]


def test_each_card_has_its_own_node_and_all_share_the_rest() -> None:
    document = gpu(Found(nodes=NODES, libraries=("/usr/lib64/libcuda.so.999",), programs=("/usr/bin/nvidia-smi",)))
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "k8s.device-plugin.nvidia.com/gpu")
    names = {each["name"]: [node["path"] for node in each["containerEdits"]["deviceNodes"]] for each in document["devices"]}
    assert names == {
        CARDS[0].uuid: ["/dev/nvidia0"],
        CARDS[1].uuid: ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }
    common = document["containerEdits"]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [node["path"] for node in common["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [mount["containerPath"] for mount in common["mounts"]] == ["/usr/lib64/libcuda.so.999", "/usr/bin/nvidia-smi"]
    [hook] = common["hooks"]
    assert hook["args"] == ["nvidia-ctk", "hook", "update-ldcache", "--folder", "/usr/lib64"]


def test_the_cdi_hook_of_its_own_needs_no_word_in_between() -> None:
    document = gpu(Found(nodes=NODES, libraries=("/usr/lib64/libcuda.so.1",)), hook="/usr/bin/nvidia-cdi-hook")
    assert document["containerEdits"]["hooks"][0]["args"][:2] == ["nvidia-cdi-hook", "update-ldcache"]


def test_a_driver_root_on_the_host_stands_before_host_paths_only() -> None:
    settings = msgspec.structs.replace(SETTINGS, dev_root="/run/driver", driver_root="/run/driver")
    document = gpu(Found(nodes=NODES, libraries=("/run/driver/usr/lib64/libcuda.so.1",)), settings)
    [mount] = document["containerEdits"]["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == ("/run/driver/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.1")
    node = document["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert (node["path"], node["hostPath"]) == ("/dev/nvidia0", "/run/driver/dev/nvidia0")


def test_by_index_and_a_card_without_a_node() -> None:
    settings = msgspec.structs.replace(SETTINGS, by_index=True)
    document = gpu(Found(nodes=NODES - {"/dev/nvidia0"}), settings)
    assert [each["name"] for each in document["devices"]] == ["1"]


@pytest.mark.parametrize(
    ("node", "kind"),
    [("/dev/gdrdrv", "gdrcopy"), ("/dev/nvidia-fs0", "gds"), ("/dev/infiniband/uverbs0", "mofed")],
)
def test_extras_and_channels_have_kinds_of_their_own_where_they_exist(node: str, kind: str) -> None:
    channel = "/dev/nvidia-caps-imex-channels/channel0"
    settings = msgspec.structs.replace(SETTINGS, extras=("gdrcopy", "gds", "mofed"), imex=(0,))
    made = specifications(CARDS, settings, Found(nodes=NODES | {node, channel}), hook="")
    kinds = {document["kind"].partition("/")[2]: document for document in made.values()}
    assert set(kinds) == {"gpu", "imex-channel", kind}
    assert kinds[kind]["devices"][0]["name"] == "all"
    assert kinds["imex-channel"]["devices"][0]["name"] == "0"


def test_files_are_written_on_change_and_taken_away_again(tmp_path: Path) -> None:
    dev, root, out = tmp_path / "dev", tmp_path / "root", tmp_path / "cdi"
    (dev / "infiniband").mkdir(parents=True)
    (root / "usr/lib64").mkdir(parents=True)
    for path in (dev / "nvidia0", dev / "nvidia1", dev / "nvidiactl", dev / "infiniband/uverbs0"):
        path.touch()
    for name in ("libcuda.so.999", "libcuda.so.998"):
        (root / "usr/lib64" / name).touch()
    settings = msgspec.structs.replace(SETTINGS, extras=("mofed",))
    files = CdiFiles(out, settings, here=str(root), hook="", dev=dev)
    files.write(CARDS, "999")
    assert files.kinds == {"gpu", "mofed"}
    document = json.loads((out / GPU).read_bytes())
    assert [mount["hostPath"] for mount in document["containerEdits"]["mounts"]] == ["/usr/lib64/libcuda.so.999"]
    before = (out / GPU).stat().st_ino
    files.write(CARDS, "999")
    assert (out / GPU).stat().st_ino == before
    (dev / "infiniband/uverbs0").unlink()
    files.write(CARDS[:1], "999")
    assert [path.name for path in out.iterdir()] == [GPU]
    assert len(json.loads((out / GPU).read_bytes())["devices"]) == 1


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    (tmp_path / "nvidia0").touch()
    files = CdiFiles(blocked / "cdi", SETTINGS, here="", hook="", dev=tmp_path)
    files.write(CARDS, "")
    assert files.kinds == {"gpu"}
    blocked.unlink()
    files.write(CARDS, "")
    assert [path.name for path in (blocked / "cdi").iterdir()] == [GPU]
