"""What the client makes of an API server that is slow, broken, or unsure."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from hami.kube.client import KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import PODS
from hami.kube.results import AlreadyBound, Bound, Refused, Unknown
from hami.sim.apiserver.admission import User
from hami.sim.apiserver.app import RunningServer, Settings, serving
from hami.sim.apiserver.faults import Fault
from tests.support.objects import pod
from tests.support.waiting import wait_until

NOTES = {"hami.io/x": "GPU-1"}


async def unbound(client: KubeClient, name: str = "a") -> dict[str, Any]:
    made = await client.create_pod(pod(name))
    return {"uid": made["metadata"]["uid"], "namespace": "default", "name": name}


async def test_a_binding_whose_answer_is_lost_is_found_to_have_landed(sim: RunningServer, sim_client: KubeClient) -> None:
    target = await unbound(sim_client)
    lost = sim.faults.add(Fault(method="POST", path="/binding", drop_answer=True))
    assert await sim_client.bind(**target, node="node-0", annotations=NOTES) == Bound(earlier=True)
    assert lost.hits == 1


async def test_a_binding_that_never_arrived_is_unknown_and_may_still_land(sim: RunningServer, sim_client: KubeClient) -> None:
    target = await unbound(sim_client)
    sim.faults.add(Fault(method="POST", path="/binding", times=1, delay=0.5))
    result = await sim_client.bind(**target, node="node-0", annotations=NOTES, within=0.1)
    assert isinstance(result, Unknown)
    assert "no answer within 0.1 s" in result.why
    found = await sim_client.bind(**target, node="node-0", annotations=NOTES)
    assert found in {Bound(), Bound(earlier=True)}


async def test_nothing_is_claimed_when_even_reading_back_fails(sim: RunningServer, sim_client: KubeClient) -> None:
    target = await unbound(sim_client)
    sim.faults.add(Fault(path="/pods/a", drop=True))
    result = await sim_client.bind(**target, node="node-0")
    assert isinstance(result, Unknown)
    assert "reading the pod back" in result.why


async def test_a_server_error_is_settled_by_reading_back(sim: RunningServer, sim_client: KubeClient) -> None:
    target = await unbound(sim_client)
    sim.faults.add(Fault(method="POST", path="/binding", times=2, status=500, message="etcdserver: request timed out"))
    assert await sim_client.bind(**target, node="node-0") == Unknown("etcdserver: request timed out")
    made = await sim_client.bind(**target, node="node-1")
    assert made == Unknown("etcdserver: request timed out")
    assert await sim_client.bind(**target, node="node-1") == Bound()
    sim.faults.add(Fault(method="POST", path="/binding", times=1, status=500))
    assert await sim_client.bind(**target, node="node-0") == AlreadyBound("node-1")


async def test_a_pod_that_is_being_deleted_refuses_in_the_apis_words(sim_client: KubeClient) -> None:
    target = await unbound(sim_client)
    await sim_client.patch_pod("default", "a", {"metadata": {"finalizers": ["hami.io/test"]}})
    await sim_client.delete_pod("default", "a")
    result = await sim_client.bind(**target, node="node-0")
    assert isinstance(result, Refused)
    assert result.message.endswith("pod a is being deleted, cannot be assigned to a host")


async def test_the_wait_a_server_asks_for_is_kept(sim: RunningServer, sim_client: KubeClient) -> None:
    sim.faults.add(Fault(method="GET", status=429, retry_after=7, message="slow down"))
    with pytest.raises(ApiError, match="slow down") as caught:
        await sim_client.get_pod("default", "a")
    assert (caught.value.code, caught.value.retry_after, caught.value.unanswered) == (429, 7.0, False)


async def test_a_server_that_is_not_there_gives_no_answer() -> None:
    async with KubeClient.at("http://127.0.0.1:1", timeout=2.0) as client:
        with pytest.raises(ApiError) as caught:
            await client.get_pod("default", "a")
        assert caught.value.unanswered


async def test_tls_and_tokens_are_checked() -> None:
    tokens = {"good": User("system:serviceaccount:hami:scheduler", ("system:authenticated",))}
    async with serving(Settings(tls=True, tokens=tokens)) as sim:
        async with KubeClient.at(sim.url, authority_pem=sim.authority_pem, token="good") as client:
            await client.create_pod(pod("a"))
            assert await client.get_pod("default", "a") is not None
        async with KubeClient.at(sim.url, authority_pem=sim.authority_pem, token="bad") as client:
            with pytest.raises(ApiError, match="Unauthorized"):
                await client.get_pod("default", "a")
        async with KubeClient.at(sim.url, token="good") as client:
            with pytest.raises(ApiError, match="certificate") as caught:
                await client.get_pod("default", "a")
            assert caught.value.unanswered


async def test_a_kubeconfig_file_leads_to_the_server(tmp_path: Path) -> None:
    tokens = {"good": User("alice")}
    async with serving(Settings(tls=True, tokens=tokens)) as sim:
        path = tmp_path / "config"
        path.write_text(json.dumps(sim.kubeconfig("good")))
        async with KubeClient.from_kubeconfig(str(path)) as client:
            await client.create_pod(pod("a"))
            assert [each["metadata"]["name"] for each in await client.list(PODS)] == ["a"]


async def test_a_server_that_stops_ends_its_watches_and_does_not_wait_for_them() -> None:
    seen: list[object] = []
    ended = anyio.Event()

    async def read(url: str) -> None:
        async with KubeClient.at(url) as client, client.watch(PODS, "", seconds=60) as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - the test looks while it fills
        ended.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            async with serving() as sim:
                tasks.start_soon(read, sim.url)
                async with KubeClient.at(sim.url) as client:
                    await client.create_pod(pod("a"))
                await wait_until(lambda: len(seen) == 1, "the pod")
            await ended.wait()
