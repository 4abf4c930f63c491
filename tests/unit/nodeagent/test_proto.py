"""The messages are the kubelet's: every recorded byte reads as recorded, and the generated code is what proto/ generates."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from hami.nodeagent.pb import deviceplugin_pb2 as dp
from hami.nodeagent.pb import podresources_pb2 as pr
from tests.support.data import kubelet_capture

ROOT = Path(__file__).parents[3]

MESSAGES: dict[tuple[str, str], type[Message]] = {
    ("Register", "plugin->kubelet"): dp.RegisterRequest,
    ("GetDevicePluginOptions", "plugin->kubelet (answer)"): dp.DevicePluginOptions,
    ("ListAndWatch", "plugin->kubelet (stream)"): dp.ListAndWatchResponse,
    ("GetPreferredAllocation", "kubelet->plugin"): dp.PreferredAllocationRequest,
    ("GetPreferredAllocation", "plugin->kubelet (answer)"): dp.PreferredAllocationResponse,
    ("Allocate", "kubelet->plugin"): dp.AllocateRequest,
    ("Allocate", "plugin->kubelet (answer)"): dp.AllocateResponse,
    ("PreStartContainer", "kubelet->plugin"): dp.PreStartContainerRequest,
}


def _plain(message: Message) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


@pytest.mark.parametrize("number", [1, 4, 8, 10, 17, 18, 21])
def test_recorded_device_plugin_messages_read_as_recorded(number: int) -> None:
    checked = 0
    for line in kubelet_capture(number)["rpc"]:
        kind = MESSAGES.get((line["method"], line["direction"]))
        if kind is None or "raw_base64" not in line:
            continue
        raw = base64.b64decode(line["raw_base64"])
        message = kind.FromString(raw)
        assert _plain(message) == line["decoded"], line["method"]
        assert kind.FromString(message.SerializeToString()) == message
        checked += 1
    assert checked


def test_recorded_pod_resources_answers_read_as_recorded() -> None:
    result = kubelet_capture(4)["result"]
    listed = pr.ListPodResourcesResponse.FromString(base64.b64decode(result["list"]["raw_base64"]))
    got = pr.GetPodResourcesResponse.FromString(base64.b64decode(result["get"]["raw_base64"]))
    offered = kubelet_capture(1)["result"]["allocatable_resources"]
    allocatable = pr.AllocatableResourcesResponse.FromString(base64.b64decode(offered["raw_base64"]))
    assert _plain(listed) == result["list"]["decoded"]
    assert _plain(got) == result["get"]["decoded"]
    assert _plain(allocatable) == offered["decoded"]


def test_generated_code_is_what_proto_generates(tmp_path: Path) -> None:
    names = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            str(ROOT / "proto"),
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            *names,
        ],
        check=True,
    )
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "hami/nodeagent/pb").glob("*_pb2.py*") if path.name in made}
    assert kept == made
    assert len(made) == 2 * len(names)
