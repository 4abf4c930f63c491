"""A tenant against a real scheduler's webhooks, called by the API server over TLS: he gets what was reserved, or nothing."""

import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import trustme

from hami.config import RedisSettings, SchedulerSettings
from hami.events.catalog.journal import Corrected
from hami.events.redis.client import Client
from hami.kube.client import KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import MUTATING_WEBHOOKS, NAMESPACES, PODS, VALIDATING_WEBHOOKS
from hami.kube.transport import STRATEGIC_PATCH
from hami.scheduler.app import run_scheduler
from hami.sim import webhooks
from hami.sim.apiserver.admission import User
from hami.sim.apiserver.app import RunningServer, Settings, serving
from hami.vendors import identity
from tests.support.cluster import Api
from tests.support.objects import pod
from tests.support.scheduler import QUICK, Caller, Obj, World
from tests.support.waiting import wait_until

HAMI = "system:serviceaccount:hami:scheduler"
VISIBLE = identity.visible_key("main")


@dataclass
class Town:
    """One cluster: its owner's world, a tenant's client, and the scheduler that guards it."""

    world: World
    tenant: KubeClient
    caller: Caller

    async def create(self, name: str, *, more: Obj | None = None, **given: Any) -> Obj:
        wanted = pod(name, namespace="default", **given)
        wanted["spec"] |= more or {}
        return await self.tenant.create_pod(wanted)

    async def placed(self, name: str) -> Obj:
        made = await self.create(name)
        assert (await self.caller.filter(made, ["n1"]))["NodeNames"] == ["n1"]
        assert await self.caller.bind(made, "n1") == ""
        return await self.world.pod_of(name)


@pytest.fixture
async def guarded() -> AsyncIterator[RunningServer]:
    tokens = {"admin": User(), "tenant": User("alice", ("system:authenticated",)), "hami": User(HAMI, ("system:masters",))}
    async with serving(Settings(tokens=tokens, bookmark_every=0.2)) as server:
        yield server


@pytest.fixture
async def town(valkey_client: Client, guarded: RunningServer, tmp_path: Path) -> AsyncIterator[Town]:
    authority, pem = trustme.CA(), tmp_path / "tls.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(json.dumps(guarded.kubeconfig("hami")))
    files: Obj = {"kubeconfig": str(kubeconfig), "cert_file": str(pem), "key_file": str(pem)}
    settings = SchedulerSettings(**{**QUICK, **files, "id": "a", "control_plane_user": HAMI})
    redis = RedisSettings(url=valkey_client.url, block_s=0.2, command_timeout_s=0.5, connect_timeout_s=0.5)
    ready: list[str] = []
    async with (
        KubeClient.at(guarded.url, token="admin") as admin,
        KubeClient.at(guarded.url, token="tenant") as tenant,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as http,
        anyio.create_task_group() as tasks,
    ):
        world = World(valkey_client, Api(admin, guarded), tmp_path)
        await world.writer.start()
        await world.add_node("n1")
        tasks.start_soon(partial(run_scheduler, ready=ready.append), settings, redis)
        await wait_until(lambda: ready, "the scheduler to be up", timeout=20)
        bundle = authority.cert_pem.bytes().decode()
        await admin.create(MUTATING_WEBHOOKS, webhooks.mutating(ready[0], bundle))
        await admin.create(VALIDATING_WEBHOOKS, webhooks.validating(ready[0], bundle))
        yield Town(world, tenant, Caller(http, ready[0]))
        tasks.cancel_scope.cancel()


FORGED = {VISIBLE: "all", "hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,1,1:;", "hami.io/reservation": "r-1"}


@pytest.mark.parametrize("key", FORGED)
async def test_forged_annotations_do_not_get_in_by_any_way(town: Town, key: str) -> None:
    forged = {key: FORGED[key]}
    for more in ({}, {"schedulerName": "hami-scheduler"}, {"nodeName": "n1"}):
        with pytest.raises(ApiError, match="reserved"):
            await town.create("p0", annotations=forged, more=more)
    made = await town.placed("p1")
    before = made["metadata"]["annotations"]
    change = {"metadata": {"annotations": forged}}
    with pytest.raises(ApiError, match="reserved"):
        await town.tenant.patch_pod("default", "p1", change)
    with pytest.raises(ApiError, match="reserved"):
        await town.tenant.patch_pod("default", "p1", {"metadata": {"annotations": {key: None}}})
    made["metadata"]["annotations"] = {**before, **forged}
    with pytest.raises(ApiError, match="reserved"):
        await town.tenant.replace(PODS, made)
    assert (await town.world.pod_of("p1"))["metadata"]["annotations"] == before


async def test_a_pod_that_got_round_the_webhook_cannot_become_ours_later(town: Town) -> None:
    opted_out = await town.create("p1", labels={webhooks.IGNORE_LABEL: "ignore"})
    assert identity.LABEL not in opted_out["metadata"]["labels"]
    with pytest.raises(ApiError, match="reserved"):
        await town.tenant.patch_pod("default", "p1", {"metadata": {"labels": {identity.LABEL: "true"}}})
    for bind in (town.tenant.bind, town.world.kube.bind):
        result = await bind(uid=opted_out["metadata"]["uid"], namespace="default", name="p1", node="n1")
        assert "only hami binds pods" in getattr(result, "message", "")
    with pytest.raises(ApiError, match="environment NVIDIA_VISIBLE_DEVICES must refer"):
        await town.create("p2", labels={webhooks.IGNORE_LABEL: "ignore", identity.LABEL: "true"})


async def test_nobody_else_binds_a_pod_that_holds_devices(town: Town) -> None:
    made = await town.create("p1")
    assert (await town.caller.filter(made, ["n1"]))["NodeNames"] == ["n1"]
    meta = made["metadata"]
    theirs = await town.tenant.bind(uid=meta["uid"], namespace="default", name="p1", node="n1")
    assert "only hami binds pods" in getattr(theirs, "message", "")
    old_way = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p1", "namespace": "default", "annotations": {VISIBLE: "all"}},
        "target": {"kind": "Node", "name": "n1"},
    }
    for path in ("/api/v1/namespaces/default/bindings", "/api/v1/namespaces/default/pods/p1/binding"):
        with pytest.raises(ApiError, match="reserved"):
            await town.tenant.request("POST", path, old_way)
    assert "nodeName" not in (await town.world.pod_of("p1"))["spec"]
    assert await town.caller.bind(made, "n1") == ""


SEEN_BY_CONFIG_MAP = {"name": "dbg", "image": "i", "envFrom": [{"configMapRef": {"name": "m"}}]}


async def test_a_debug_container_of_a_pod_with_devices_sees_none(town: Town) -> None:
    await town.placed("p1")
    debug = partial(town.tenant.patch, PODS, "default", "p1", subresource="ephemeralcontainers", content_type=STRATEGIC_PATCH)
    helping_itself = {"name": "dbg", "image": "i", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    with pytest.raises(ApiError, match="not for users to set"):
        await debug({"spec": {"ephemeralContainers": [helping_itself]}})
    await debug({"spec": {"ephemeralContainers": [SEEN_BY_CONFIG_MAP]}})
    [added] = (await town.world.pod_of("p1"))["spec"]["ephemeralContainers"]
    assert added["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    await town.tenant.patch_pod("default", "p1", {"metadata": {"labels": {webhooks.IGNORE_LABEL: "ignore"}}})
    with pytest.raises(ApiError, match="must set NVIDIA_VISIBLE_DEVICES=void"):
        await debug({"spec": {"ephemeralContainers": [{**SEEN_BY_CONFIG_MAP, "name": "dbg2"}]}})


async def test_containers_of_every_kind_see_their_own_reservation_or_nothing(town: Town) -> None:
    share = {"resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}}
    helpers = [
        {"name": "warm-up", "image": "i", **share},
        {"name": "log", "image": "i", "restartPolicy": "Always", "envFrom": [{"configMapRef": {"name": "all"}}]},
    ]
    made = await town.create("p1", more={"initContainers": helpers})
    assert (await town.caller.filter(made, ["n1"]))["NodeNames"] == ["n1"]
    assert await town.caller.bind(made, "n1") == ""
    bound = await town.world.pod_of("p1")
    notes = bound["metadata"]["annotations"]
    assert {key: notes[key] for key in notes if key.endswith("visible-devices")} == {
        identity.visible_key("warm-up"): "GPU-n1",
        VISIBLE: "GPU-n1",
    }
    [log] = [each for each in bound["spec"]["initContainers"] if each["name"] == "log"]
    assert log["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


@pytest.mark.parametrize(
    "forged",
    [
        {"hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,-40960,-100:;"},
        {"hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,40960,100:;"},
        {"hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,1,1:;", "hami.io/vgpu-mig-allocations": '[{"x":' + "[" * 50_000},
    ],
    ids=["gives what there is not", "takes a card", "never ends"],
)
async def test_a_pod_kept_from_the_webhook_cannot_write_itself_an_allocation(town: Town, forged: dict[str, str]) -> None:
    labels = {webhooks.IGNORE_LABEL: "ignore"}
    made = await town.create("p0", labels=labels, annotations=forged, limits={}, more={"schedulerName": "default-scheduler"})
    await town.world.kube.bind(uid=made["metadata"]["uid"], namespace="default", name="p0", node="n1")
    told, *_ = await town.world.seen(Corrected)
    assert told.what == "pod default/p0"
    await town.world.settled(town.caller)
    first = await town.create("p1", limits={"nvidia.com/gpu": "1"})
    assert (await town.caller.filter(first, ["n1"]))["NodeNames"] == ["n1"]
    second = await town.create("p2", limits={"nvidia.com/gpu": "1"})
    assert not (await town.caller.filter(second, ["n1"]))["NodeNames"]


async def test_a_namespace_that_hami_leaves_alone_needs_no_hami(town: Town) -> None:
    """Hami's own pods live in one: with no scheduler left to ask, they must still come up."""
    quiet = {"metadata": {"name": "hami-system", "labels": {webhooks.IGNORE_LABEL: "ignore"}}}
    await town.world.kube.create(NAMESPACES, quiet)
    registered = await town.world.kube.read(VALIDATING_WEBHOOKS, "", "hami-validate")
    for hook in registered["webhooks"]:
        hook["clientConfig"]["url"] = "https://127.0.0.1:1/validate"
    await town.world.kube.replace(VALIDATING_WEBHOOKS, registered)
    made = await town.world.kube.create_pod(pod("scheduler-0", namespace="hami-system", limits={}))
    await town.world.kube.bind(uid=made["metadata"]["uid"], namespace="hami-system", name="scheduler-0", node="n1")
    assert (await town.world.pod_of("scheduler-0", "hami-system"))["spec"]["nodeName"] == "n1"


async def test_while_hami_is_away_nothing_of_a_pod_with_devices_changes_and_other_pods_are_bound(town: Town) -> None:
    made = await town.placed("p1")
    address = {"clientConfig": {"url": "https://127.0.0.1:1/validate"}}
    for kind, name in ((MUTATING_WEBHOOKS, "hami-mutate"), (VALIDATING_WEBHOOKS, "hami-validate")):
        registered = await town.world.kube.read(kind, "", name)
        for hook in registered["webhooks"]:
            hook["clientConfig"] |= address["clientConfig"]
        await town.world.kube.replace(kind, registered)
    with pytest.raises(ApiError):
        await town.tenant.patch_pod("default", "p1", {"metadata": {"annotations": {VISIBLE: "all"}}})
    unprepared = await town.create("p2")
    assert identity.LABEL not in unprepared["metadata"].get("labels", {})
    plain = await town.world.kube.create_pod(pod("plain", limits={}))
    await town.world.kube.bind(uid=plain["metadata"]["uid"], namespace="default", name="plain", node="n1")
    assert (await town.world.pod_of("plain"))["spec"]["nodeName"] == "n1", "pods that are none of hami's business go on"
    assert (await town.world.pod_of("p1"))["metadata"]["annotations"] == made["metadata"]["annotations"]
