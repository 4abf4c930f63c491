"""The webhooks over HTTPS, asked by the simulated API server as a real one asks."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from hami.events.redis.client import Client
from hami.kube.client import KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import MUTATING_WEBHOOKS, PODS, VALIDATING_WEBHOOKS
from hami.kube.results import Refused
from hami.sim.apiserver.admission import User
from hami.sim.apiserver.app import Settings, serving
from tests.support.cluster import Api
from tests.support.data import load_json
from tests.support.objects import pod as pod_object
from tests.support.scheduler import Caller, World

CONTROL = "system:serviceaccount:hami-system:hami-scheduler"
USERS = {
    "control": User(CONTROL, groups=("system:masters",)),
    "user": User("eve", groups=("system:masters",)),
}
KEY = "container.hami.io/main.visible-devices"
_V1 = {"apiGroups": [""], "apiVersions": ["v1"]}
POD_RULES = [
    {**_V1, "operations": ["CREATE", "UPDATE"], "resources": ["pods", "pods/ephemeralcontainers"]},
    {**_V1, "operations": ["CREATE"], "resources": ["pods/binding"]},
]


class Guarded:
    """A scheduler, registered as webhook; `user` is whoever uses the cluster, `control` the scheduler's own account."""

    def __init__(self, world: World, caller: Caller, user: KubeClient, control: KubeClient) -> None:
        self.world, self.caller, self.user, self.control = world, caller, user, control

    async def placed(self, name: str) -> dict[str, Any]:
        pod = await self.user.create_pod(pod_object(name, namespace="default"))
        assert (await self.caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await self.caller.bind(pod, "n1") == ""
        return await self.world.pod_of(name)


def _certificate(folder: Path) -> tuple[dict[str, Any], str]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = folder / "tls.crt", folder / "tls.key"
    issued.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return {"cert_file": str(cert), "key_file": str(key)}, base64.b64encode(authority.cert_pem.bytes()).decode()


async def _register(client: KubeClient, url: str, bundle: str) -> None:
    def hook(path: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "name": f"{path}.hami.io",
            "clientConfig": {"url": f"{url}/{path}", "caBundle": bundle},
            "rules": rules,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
        }

    made = {**POD_RULES[0], "operations": ["CREATE"], "resources": ["pods"]}
    await client.create(MUTATING_WEBHOOKS, {"metadata": {"name": "hami"}, "webhooks": [hook("mutate", [made])]})
    await client.create(VALIDATING_WEBHOOKS, {"metadata": {"name": "hami"}, "webhooks": [hook("validate", POD_RULES)]})


@asynccontextmanager
async def _guarded(valkey: Client, folder: Path) -> AsyncIterator[Guarded]:
    tls, bundle = _certificate(folder)
    async with (
        serving(Settings(tokens=USERS, bookmark_every=0.2)) as sim,
        KubeClient.at(sim.url, token="user") as user,
        KubeClient.at(sim.url, token="control") as control,
    ):
        world = World(valkey, Api(user, sim), folder, token="control")
        await world.writer.start()
        await world.add_node("n1")
        async with world.scheduler(**tls, authority=trusted(bundle), control_plane_user=CONTROL) as caller:
            await _register(user, caller.url, bundle)
            yield Guarded(world, caller, user, control)


def trusted(bundle: str) -> str:
    return base64.b64decode(bundle).decode()


@pytest.fixture
async def guarded(valkey_client: Client, tmp_path: Path) -> AsyncIterator[Guarded]:
    async with _guarded(valkey_client, tmp_path) as made:
        yield made


async def test_a_pod_that_asks_is_marked_and_refers_to_its_annotations(guarded: Guarded) -> None:
    made = await guarded.user.create_pod(pod_object("p1", namespace="default"))
    assert made["metadata"]["labels"]["hami.io/managed"] == "true"
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    env = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in made["spec"]["containers"][0]["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"metadata.annotations['{KEY}']"
    plain = await guarded.user.create_pod(pod_object("plain", namespace="default", limits={"cpu": "1"}))
    assert "labels" not in plain["metadata"]
    assert "env" not in plain["spec"]["containers"][0]


async def test_what_would_break_the_accounting_is_refused_in_words(guarded: Guarded) -> None:
    forged = pod_object("p1", namespace="default", annotations={KEY: "GPU-other"})
    with pytest.raises(ApiError, match=f"annotation {KEY} is reserved"):
        await guarded.user.create_pod(forged)
    chosen = pod_object("p2", namespace="default")
    chosen["spec"]["nodeName"] = "n1"
    with pytest.raises(ApiError, match="pod has node assigned"):
        await guarded.user.create_pod(chosen)
    literal = pod_object("p3", namespace="default")
    literal["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    with pytest.raises(ApiError, match="NVIDIA_VISIBLE_DEVICES is set by hami"):
        await guarded.user.create_pod(literal)
    unreadable = pod_object("p4", namespace="default", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1500m"})
    with pytest.raises(ApiError, match=r"nvidia\.com/gpumem"):
        await guarded.user.create_pod(unreadable)
    assert await guarded.world.kube.list(PODS) == []


async def test_after_the_bind_the_reserved_keys_are_frozen_for_everyone_but_the_control_plane(guarded: Guarded) -> None:
    placed = await guarded.placed("p1")
    assert placed["metadata"]["annotations"][KEY] == "GPU-n1"
    forged = {"metadata": {"annotations": {KEY: "GPU-somebody-elses"}}}
    with pytest.raises(ApiError, match=f"annotation {KEY} is reserved: only hami changes it"):
        await guarded.user.patch_pod("default", "p1", forged)
    with pytest.raises(ApiError, match=r"hami\.io/managed is reserved"):
        await guarded.user.patch_pod("default", "p1", {"metadata": {"labels": {"hami.io/managed": None}}})
    await guarded.user.patch_pod("default", "p1", {"metadata": {"annotations": {"mine": "yes"}}})
    await guarded.control.patch_pod("default", "p1", forged)
    assert (await guarded.world.pod_of("p1"))["metadata"]["annotations"][KEY] == "GPU-somebody-elses"


async def test_a_binding_needs_a_live_reservation_on_that_node_and_the_control_plane(guarded: Guarded) -> None:
    pod = await guarded.user.create_pod(pod_object("p1", namespace="default"))
    who = {"uid": pod["metadata"]["uid"], "namespace": "default", "name": "p1"}
    refused = await guarded.control.bind(**who, node="n1")
    assert isinstance(refused, Refused)
    assert "holds no live reservation" in refused.message
    assert (await guarded.caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
    elsewhere = await guarded.control.bind(**who, node="n2")
    assert isinstance(elsewhere, Refused)
    assert "on another node than n2" in elsewhere.message
    stranger = await guarded.user.bind(**who, node="n1")
    assert isinstance(stranger, Refused)
    assert "only hami binds pods that ask for devices" in stranger.message
    assert await guarded.caller.bind(pod, "n1") == ""
    plain = await guarded.user.create_pod(pod_object("plain", namespace="default", limits={"cpu": "1"}))
    await guarded.user.bind(uid=plain["metadata"]["uid"], namespace="default", name="plain", node="n1")
    assert (await guarded.world.pod_of("plain"))["spec"]["nodeName"] == "n1"


async def test_reviews_of_a_real_api_server_are_answered_in_kind(guarded: Guarded) -> None:
    for name in ("admission-create-pod-one-container", "admission-create-pod-generateName"):
        body = load_json(f"wire/{name}-mutating.json")["body"]
        for version in ("admission.k8s.io/v1", "admission.k8s.io/v1beta1"):
            for path in ("/mutate", "/webhook"):
                status, answer = await guarded.caller.post(path, body | {"apiVersion": version})
                found = json.loads(answer)
                assert (status, found["apiVersion"]) == (200, version)
                assert found["response"]["uid"] == body["request"]["uid"]
                assert found["response"]["allowed"] is True


async def test_malformed_reviews_get_a_proper_answer_where_their_uid_is_known(guarded: Guarded) -> None:
    body = load_json("wire/admission-create-pod-one-container-mutating.json")["body"]
    uid = body["request"]["uid"]
    raw = json.dumps(body).encode()
    broken = json.dumps(body | {"request": body["request"] | {"object": {"metadata": {"name": 3}}}}).encode()
    for path in ("/mutate", "/validate"):
        status, answer = await guarded.caller.post(path, broken)
        found = json.loads(answer)["response"]
        assert (status, found["uid"], found["allowed"]) == (200, uid, False)
        assert "request.object.metadata.name: 3" in found["status"]["message"]
    at = raw.index(b'"object"')
    truncated = b'{"apiVersion":"admission.k8s.io/v1",' + raw[1:at]
    status, answer = await guarded.caller.post("/mutate", truncated.replace(b'"kind": "AdmissionReview", ', b""))
    assert status in {200, 400}
    assert (await guarded.caller.post("/mutate", b"{"))[0] == 400
