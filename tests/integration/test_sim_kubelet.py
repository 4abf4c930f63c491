"""The simulated kubelet does what the recorded one did."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hami.nodeagent.kubelet import register
from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.podresources import PodResources
from hami.sim.kubelet.api import InMemoryApi, Json
from hami.sim.kubelet.node import SimKubelet
from tests.support.data import kubelet_capture
from tests.support.plugins import CARDS, RESOURCE, ScriptedPlugin, container, kubelet_on, pod, socket_folder
from tests.support.waiting import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


@pytest.fixture
def api() -> InMemoryApi:
    return InMemoryApi()


@pytest.fixture
async def kubelet(folder: Path, api: InMemoryApi, anyio_backend: object) -> AsyncIterator[SimKubelet]:
    async with kubelet_on(folder, api) as running:
        yield running


@pytest.fixture
async def plugin(kubelet: SimKubelet, api: InMemoryApi) -> AsyncIterator[ScriptedPlugin]:
    made = ScriptedPlugin(kubelet.plugin_dir / "nvidia-gpu.sock")
    await made.start()
    assert await register(kubelet.socket, "nvidia-gpu.sock", RESOURCE, 5) == ""
    await wait_until(lambda: amounts(api) == ("10", "10"), "devices on the node object")
    yield made
    await made.stop()


def amounts(api: InMemoryApi) -> tuple[str | None, str | None]:
    status = api.nodes.get("node-1", {})
    return status.get("capacity", {}).get(RESOURCE), status.get("allocatable", {}).get(RESOURCE)


async def phase(api: InMemoryApi, name: str, wanted: str) -> Json:
    await wait_until(lambda: api.status(name).get("phase") == wanted, f"{name} to be {wanted}")
    return api.status(name)


def held(kubelet: SimKubelet, uid: str) -> dict[str, tuple[str, ...]]:
    return {each.container: each.ids for each in kubelet.books.holdings.values() if each.uid == uid}


@pytest.mark.parametrize(
    ("case", "version", "resource"),
    [
        ("wrong_version", "v1beta9", RESOURCE),
        ("bad_name", "v1beta1", "gpu"),
        ("kubernetes_io_name", "v1beta1", "kubernetes.io/gpu"),
    ],
)
async def test_a_bad_registration_is_refused_in_the_kubelets_words(
    kubelet: SimKubelet, case: str, version: str, resource: str
) -> None:
    code, text = kubelet_capture(1)["result"]["register_errors"][case]
    assert await register(kubelet.socket, "x.sock", resource, 5, version=version) == f"{code}: {text}"


async def test_registering_without_a_socket_fails_to_dial(kubelet: SimKubelet) -> None:
    said = await register(kubelet.socket, "absent.sock", RESOURCE, 5)
    assert said == "UNKNOWN: failed to dial device plugin: context deadline exceeded"


async def test_containers_are_served_in_order_and_init_devices_come_round(
    kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    made = api.create(
        pod(
            "multi",
            container("app-a"),
            container("app-b"),
            init=[container("init"), container("side", restartPolicy="Always")],
        ),
        node="node-1",
    )
    await phase(api, "multi", "Running")
    got = held(kubelet, made["metadata"]["uid"])
    recorded = kubelet_capture(4)["result"]["checkpoint"]["Data"]["PodDeviceEntries"]
    assert list(got) == [entry["ContainerName"] for entry in recorded]
    assert shape(list(got.values())) == shape([entry["DeviceIDs"]["-1"] for entry in recorded])
    assert [name for name, _ in plugin.calls] == [
        line["method"] for line in kubelet_capture(4)["rpc"] if line["direction"] == "kubelet->plugin"
    ][: len(plugin.calls)]


def shape(held_ids: Any) -> list[tuple[int, ...]]:
    """Devices by order of first appearance: which are the same, whatever they are called."""
    names: dict[str, int] = {}
    return [tuple(names.setdefault(each, len(names)) for each in ids) for ids in held_ids]


async def test_the_other_order_reuses_as_recorded(kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi) -> None:
    made = api.create(
        pod(
            "multi2",
            container("app-a"),
            container("app-b"),
            init=[container("side", restartPolicy="Always"), container("init", 2), container("init2")],
        ),
        node="node-1",
    )
    await phase(api, "multi2", "Running")
    got = held(kubelet, made["metadata"]["uid"])
    side, init, init2, app_a, app_b = (got[name] for name in ("side", "init", "init2", "app-a", "app-b"))
    assert len(set(side + init)) == 3
    assert set(init2 + app_a) <= set(init)
    assert set(app_a + app_b) == set(init)


async def test_pod_resources_hides_a_finished_init_container(
    kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    made = api.create(pod("two", container("app"), init=[container("init")]), node="node-1")
    await phase(api, "two", "Running")
    async with PodResources(kubelet.pod_resources) as resources:
        assert await resources.listed() == {("default", "two", "app"): held(kubelet, made["metadata"]["uid"])["app"]}


@pytest.mark.parametrize(
    ("method", "scripted", "text"),
    [
        ("Allocate", "hami: pod not found for this request", kubelet_capture(7)["result"]["status"]["message"]),
        ("Allocate", pb.AllocateResponse(), kubelet_capture(8)["result"]["empty"]["message"]),
        (
            "GetPreferredAllocation",
            "x",
            kubelet_capture(21)["result"]["error"]["message"].replace(
                "Unknown desc = Exception calling application: x", "Internal desc = x"
            ),
        ),
    ],
)
async def test_an_error_of_the_plugin_is_final(
    plugin: ScriptedPlugin, api: InMemoryApi, method: str, scripted: Any, text: str
) -> None:
    plugin.script[method] = scripted
    api.create(pod("fail", container()), node="node-1")
    status = await phase(api, "fail", "Failed")
    assert (status["reason"], status["message"]) == ("UnexpectedAdmissionError", text)


async def test_too_many_devices_are_refused_as_recorded(plugin: ScriptedPlugin, api: InMemoryApi) -> None:
    api.create(pod("all", container(gpus=10)), node="node-1")
    await phase(api, "all", "Running")
    api.create(pod("more", container()), node="node-1")
    status = await phase(api, "more", "Failed")
    assert status["message"] == kubelet_capture(20)["result"]["while_taken"]["message"]
    api.delete("all")
    await wait_until(lambda: not api.status("all"), "the pod to go")
    api.create(pod("next", container(gpus=10)), node="node-1")
    await phase(api, "next", "Running")


async def test_unhealthy_devices_are_subtracted_and_a_lost_plugin_leaves_nothing_allocatable(
    plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    plugin.board.mark(CARDS[0], healthy=False)
    await wait_until(lambda: amounts(api) == ("10", "5"), "half of the devices")
    plugin.board.mark(CARDS[0], healthy=True)
    await wait_until(lambda: amounts(api) == ("10", "10"), "all of the devices")
    await plugin.stop()
    await wait_until(lambda: amounts(api) == ("10", "0"), "nothing to allocate")
    api.create(pod("late", container()), node="node-1")
    status = await phase(api, "late", "Failed")
    assert "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu" in status["message"]


async def test_a_restart_deletes_sockets_and_keeps_what_pods_hold(
    kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    made = api.create(pod("stay", container()), node="node-1")
    await phase(api, "stay", "Running")
    before = held(kubelet, made["metadata"]["uid"])
    await kubelet.restart()
    recorded = kubelet_capture(19)["result"]
    assert sorted(path.name for path in kubelet.plugin_dir.iterdir()) == sorted(recorded["files_after_start"])
    await wait_until(lambda: list(amounts(api)) == recorded["no_plugin"]["cap"], "no devices until the plugin is back")
    assert held(kubelet, made["metadata"]["uid"]) == before
    assert api.status("stay")["phase"] == "Running"
    calls = len(plugin.calls)
    await plugin.stop()
    await plugin.start()
    assert await register(kubelet.socket, "nvidia-gpu.sock", RESOURCE, 5) == ""
    await wait_until(lambda: amounts(api) == ("10", "10"), "devices again")
    await kubelet.run_of("stay").restart("main")
    assert len(plugin.calls) == calls


async def test_environment_comes_from_pod_before_plugin_before_image(
    kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    def reference(key: str) -> list[dict[str, Any]]:
        return [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}]

    twice = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": each} for each in ("first", "second")]
    api.create(
        pod(
            "env",
            container("main", env=reference("x/devices")),
            container("plain", image="cuda"),
            container("missing", image="cuda", env=reference("x/absent")),
            container("imageonly", gpus=0, image="cuda"),
            container("nogpu-missing", gpus=0, image="cuda", env=reference("x/absent")),
            container("twice", env=twice),
            notes={"x/devices": "GPU-by-annotation"},
        ),
        node="node-1",
    )
    await phase(api, "env", "Running")
    recorded = kubelet_capture(2)["result"]["env"]
    for name, lines in recorded.items():
        view = kubelet.runtime.view("env", name)
        assert view is not None
        [line] = [each for each in lines if each.startswith("NVIDIA_VISIBLE_DEVICES=")]
        assert view.env["NVIDIA_VISIBLE_DEVICES"] == line.partition("=")[2], name


async def test_an_annotation_edited_later_counts_at_the_next_start(
    kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    path = "metadata.annotations['x/devices']"
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    api.create(pod("edited", container(env=env), notes={"x/devices": "mine"}), node="node-1")
    await phase(api, "edited", "Running")
    api.annotate("edited", {"x/devices": "somebody-elses-card"})
    await wait_until(lambda: "somebody" in str(kubelet.run_of("edited").pod), "the edit to arrive")
    view = kubelet.runtime.view("edited", "main")
    assert view is not None
    assert view.visible_devices == ("mine",)
    await kubelet.run_of("edited").restart("main")
    view = kubelet.runtime.view("edited", "main")
    assert view is not None
    assert (view.visible_devices, view.starts) == (("somebody-elses-card",), 2)


async def test_a_finished_pod_frees_its_devices(kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi) -> None:
    api.create(pod("short", container(gpus=10)), node="node-1")
    await phase(api, "short", "Running")
    api.create(pod("early", container(gpus=1)), node="node-1")
    assert (await phase(api, "early", "Failed"))["reason"] == "UnexpectedAdmissionError"
    kubelet.run_of("short").finish()
    await phase(api, "short", "Succeeded")
    made = api.create(pod("next", container(gpus=10)), node="node-1")
    await phase(api, "next", "Running")
    [ids] = held(kubelet, made["metadata"]["uid"]).values()
    assert len(set(ids)) == 10


async def test_a_second_plugin_replaces_the_first_silently(
    kubelet: SimKubelet, plugin: ScriptedPlugin, api: InMemoryApi
) -> None:
    rival = ScriptedPlugin(kubelet.plugin_dir / "rival.sock")
    rival.board.show(rival.board.offers[:1])
    await rival.start()
    assert await register(kubelet.socket, "rival.sock", RESOURCE, 5) == ""
    await wait_until(lambda: amounts(api) == ("5", "5"), "the rival's devices")
    assert plugin.streams == 1
    await rival.stop()
