"""Long-lived verbs as processes: they come up, do their work, and end when told."""

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest

from hami.cli.exits import Exit
from hami.events.catalog.allocation import AllocationEvent, AllocationPrepared, AllocationReserved
from hami.events.catalog.node import NodeRegistered
from hami.events.codec import decode_envelope, decode_event
from hami.events.envelope import START
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.kube.client import KubeClient
from tests.support.cli import ROOT, start_hami
from tests.support.waiting import wait_until


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = start_hami(arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], how: signal.Signals) -> tuple[int, str]:
    process.send_signal(how)
    _, err = process.communicate(timeout=15)
    return process.returncode, err


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def fetched(url: str) -> str:
    """The body, empty while nobody answers."""
    try:
        with urlopen(url, timeout=2) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="hami-") as path:
        yield Path(path)


def agent_arguments(url: str, folder: Path, metrics: str) -> list[str]:
    return [
        *("--redis-url", url, "agent", "--node-name", "node-a", "--backend", "simulated"),
        *("--simulated-devices", str(ROOT / "deploy/compose/node-a/devices.json")),
        *("--kubelet-dir", str(folder / "device-plugins")),
        *("--pod-resources-socket", str(folder / "pod-resources/kubelet.sock")),
        *("--state-dir", str(folder / "state"), "--hook-path", str(folder / "hook"), "--metrics-bind", metrics),
    ]


async def test_the_simulated_node_comes_up_and_its_agent_registers(
    valkey_server: EmbeddedServer, valkey_client: Client, folder: Path
) -> None:
    store, kubeconfig, metrics = RedisStore(valkey_client), folder / "kubeconfig", free_address()
    with running("sim", "apiserver", "--bind", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--node", "node-a") as api:
        await wait_until(kubeconfig.exists, "the API server wrote its kubeconfig", timeout=30)
        kubelet_verb = ("sim", "kubelet", "--node", "node-a", "--root", str(folder), "--kubeconfig", str(kubeconfig))
        with running(*kubelet_verb) as kubelet:
            await wait_until((folder / "device-plugins/kubelet.sock").exists, "the kubelet listens", timeout=30)
            arguments = agent_arguments(valkey_server.url, folder, metrics)
            with running(*arguments, "--kubeconfig", str(kubeconfig)) as agent:

                async def put() -> list[object]:
                    return [decode_event(decode_envelope(raw)) for _, raw in await store.inboxes.peek("node-a")]

                async def uids() -> list[str]:
                    return [each.node_uid for each in await put() if isinstance(each, NodeRegistered) and each.node_uid]

                await wait_until(put, "the agent put its registration into its inbox", timeout=30)
                assert isinstance((await put())[0], NodeRegistered)
                async with KubeClient.from_kubeconfig(str(kubeconfig)) as client:
                    node = await client.get_node("node-a")
                assert node is not None
                assert (await wait_until(uids, "the node's uid", timeout=30)) == [node.metadata.uid]
                assert (await store.leases.alive(["node-a"]))["node-a"] is not None
                shown = await wait_until(lambda: fetched(f"http://{metrics}/metrics"), "metrics are served")
                assert 'hami_agent_devices{health="healthy"} 4.0' in shown
                assert "hami_agent_kubelet_registered 1.0" in shown
                assert "\nhami_agent_handshake_age_seconds" not in shown
                assert ended(agent, signal.SIGTERM)[0] == Exit.OK
            assert ended(kubelet, signal.SIGTERM)[0] == Exit.OK
        assert ended(api, signal.SIGTERM) == (Exit.OK, "")


def test_the_kubeconfig_names_the_address_that_others_use(folder: Path) -> None:
    kubeconfig = folder / "kubeconfig"
    options = ["--bind", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--advertise", "http://apiserver:6443"]
    with running("sim", "apiserver", *options) as api:
        assert api.stdout is not None
        assert api.stdout.readline().startswith("http://127.0.0.1:")
        document: dict[str, Any] = msgspec.json.decode(kubeconfig.read_bytes())
        assert document["clusters"][0]["cluster"]["server"] == "http://apiserver:6443"


def test_a_simulated_api_server_that_starts_again_keeps_its_authority(folder: Path) -> None:
    kubeconfig, authority = folder / "kubeconfig", folder / "ca.pem"

    def made_by(host: str) -> bytes:
        hooks = ("--webhook", f"https://{host}:8443", "--certificates", str(folder))
        with running("sim", "apiserver", "--bind", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), *hooks) as api:
            assert api.stdout is not None
            assert api.stdout.readline().startswith("http://127.0.0.1:")
        return authority.read_bytes()

    first = made_by("scheduler")
    assert made_by("scheduler") == first
    assert made_by("elsewhere") != first


def test_a_kubeconfig_of_an_earlier_run_is_not_taken_for_a_server_that_is_up(folder: Path) -> None:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text("of an earlier run")
    with running("sim", "apiserver", "--bind", "256.0.0.1:0", "--kubeconfig", str(kubeconfig)) as api:
        api.communicate(timeout=30)
        assert api.returncode != Exit.OK
    assert not kubeconfig.exists()


def test_an_agent_without_a_kubelet_folder_says_so(folder: Path) -> None:
    with running(*agent_arguments("redis://127.0.0.1:1/0", folder, "")) as agent:
        _, err = agent.communicate(timeout=30)
        assert agent.returncode == Exit.USAGE
        assert "agent.kubelet_dir" in err.splitlines()[-1]


def test_an_agent_names_the_setting_that_is_wrong(folder: Path) -> None:
    (folder / "device-plugins").mkdir()
    (folder / "state").write_text("not a folder")
    arguments = agent_arguments("redis://127.0.0.1:1/0", folder, "")
    for given, named in (
        ([], "agent.state_dir"),
        (["--sidecar-url", "http://x"], "agent.sidecar_url"),
        (["--node-name", "Bad_Name"], "agent.node_name"),
    ):
        with running(*arguments, *given) as agent:
            _, err = agent.communicate(timeout=30)
            assert agent.returncode == Exit.USAGE
            assert err.startswith(f"hami: {named}: '")
            assert len(err.splitlines()) == 1


@pytest.mark.parametrize("text", [None, "{", "[]", "users: 3", "current-context: x"])
def test_a_kubeconfig_that_is_none_is_refused_in_one_line(
    valkey_server: EmbeddedServer, folder: Path, text: str | None
) -> None:
    kubeconfig = folder / "kubeconfig"
    if text is not None:
        kubeconfig.write_text(text)
    with running("--redis-url", valkey_server.url, "scheduler", "--kubeconfig", str(kubeconfig)) as scheduler:
        _, err = scheduler.communicate(timeout=30)
        assert scheduler.returncode == Exit.USAGE
        assert err.splitlines()[-1].startswith(f"hami: kubeconfig: '{kubeconfig}': ")
        assert "Traceback" not in err


def pod(name: str) -> bytes:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}
    containers = [{"name": "main", "image": "app", "resources": {"limits": limits}}]
    return msgspec.json.encode({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers}})


def posted(url: str, body: bytes) -> None:
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=10) as answer:
        assert answer.status == 201


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"], ids=["identity", "ordered"])
async def test_pods_are_placed_and_delivered_by_the_processes_of_the_compose_file(
    valkey_server: EmbeddedServer, valkey_client: Client, folder: Path, strategy: str
) -> None:
    """In ordered delivery the node's lock stays with the first pod until it is served; then the second gets its turn."""
    log, kubeconfig, metrics = RedisStore(valkey_client).log, folder / "kubeconfig", free_address()
    api, extender, tls = free_address(), free_address(), str(folder / "tls.pem")
    certificates = ("--webhook", f"https://{extender}", "--certificates", str(folder))
    access = ("--kubeconfig", str(kubeconfig))
    scheduler_verb = ("--redis-url", valkey_server.url, "scheduler", "--http-bind", extender, "--metrics-bind", metrics)
    kube_scheduler = ("sim", "scheduler", "--extender", f"https://{extender}", "--authority", str(folder / "ca.pem"))
    with ExitStack() as up:
        up.enter_context(running("sim", "apiserver", "--bind", api, *access, "--node", "node-a", *certificates))
        await wait_until(kubeconfig.exists, "the API server is there", timeout=30)
        up.enter_context(running("sim", "kubelet", "--node", "node-a", "--root", str(folder), *access))
        await wait_until((folder / "device-plugins/kubelet.sock").exists, "the kubelet listens", timeout=30)
        up.enter_context(running(*agent_arguments(valkey_server.url, folder, ""), "--device-list-strategy", strategy))
        keys = ("--cert-file", tls, "--key-file", tls, "--control-plane-user", "admin")
        scheduler = up.enter_context(running(*scheduler_verb, *keys, *access))
        up.enter_context(running(*kube_scheduler, *access))
        await wait_until(lambda: '"ready":true' in fetched(f"http://{metrics}/readyz"), "the scheduler is ready", timeout=40)
        for name in ("train", "serve"):
            posted(f"http://{api}/api/v1/namespaces/default/pods", pod(name))

        async def stories() -> list[list[str]]:
            told: dict[str, list[str]] = {}
            for record in await log.read(START):
                if isinstance(record.event, AllocationReserved):
                    told[record.event.reservation.id] = ["reserved"]
                elif isinstance(record.event, AllocationEvent):
                    differs = record.event.difference if isinstance(record.event, AllocationPrepared) else ""
                    told[record.event.reservation].append(record.envelope.type.removeprefix("hami.allocation.") + differs)
            return [*told.values()]

        async def delivered() -> bool:
            return sum("prepared" in story for story in await stories()) == 2

        await wait_until(delivered, "both pods have their devices", timeout=60)
        live = [story for story in await stories() if "lapsed" not in story]
        assert live == [["reserved", "bound", "prepared"]] * 2
        assert ended(scheduler, signal.SIGTERM)[0] == Exit.OK
