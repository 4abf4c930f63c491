"""Admission as a real API server does it: what webhooks are sent, and what their answers do to a request."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.kube.client import KubeClient
from hami.kube.errors import ApiError
from hami.kube.kinds import CONFIG_MAPS, MUTATING_WEBHOOKS, NAMESPACES, PODS, VALIDATING_WEBHOOKS
from hami.kube.transport import STRATEGIC_PATCH
from hami.sim.apiserver.app import RunningServer
from tests.contract.wire.replay import Obj, Replay, masked, recorded
from tests.support.objects import pod
from tests.support.webhooks import Answer, Webhooks, allow, deny, patching, patching_text, reviewed, webhooks

ENV_PATH = "/spec/containers/0/env"
FIELD_REF = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['hami.io/x']"}}}


def registration(hooks: Webhooks, word: str, **more: Any) -> Obj:
    rules = [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["*"],
            "resources": ["pods", "pods/*", "bindings"],
            "scope": "*",
        }
    ]
    hook = {
        "name": f"{word[:3]}.wire.example.com",
        "clientConfig": {"url": f"{hooks.url}/{word}", "caBundle": hooks.authority_bundle},
        "rules": rules,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 10,
    }
    return {"metadata": {"name": word}, "webhooks": [hook | more]}


async def register(client: KubeClient, hooks: Webhooks, **mutating: Any) -> None:
    await client.create(MUTATING_WEBHOOKS, registration(hooks, "mutate", **mutating))
    await client.create(VALIDATING_WEBHOOKS, registration(hooks, "validate"))


@pytest.fixture
async def hooks() -> AsyncIterator[Webhooks]:
    async with webhooks() as running:
        yield running


@pytest.fixture
async def registered(sim: RunningServer, sim_client: KubeClient, hooks: Webhooks) -> Webhooks:
    await register(sim_client, hooks)
    return hooks


def behaviour() -> Obj:
    return recorded("admission-behaviour.json.gz")


def in_review(value: Any) -> Any:
    """A review without what differs from run to run."""
    hidden = {"uid", "resourceVersion", "managedFields", "creationTimestamp"}
    if isinstance(value, dict):
        return {key: in_review(each) for key, each in value.items() if key not in hidden or (key == "uid" and each == "admin")}
    return [in_review(each) for each in value] if isinstance(value, list) else value


REVIEWED = ("create-pod-one-container", "create-pod-generateName", "update-pod-annotation-by-user-patch")


async def test_reviews_carry_what_a_real_server_sends(sim: RunningServer, registered: Webhooks) -> None:
    replay, steps = Replay(sim), behaviour()
    for name in REVIEWED:
        before = len(registered.asked)
        await replay.ask(steps[name])
        (_, mutating), (_, validating) = registered.asked[before:]
        expected = recorded(f"admission-{name}-mutating.json")["body"]
        assert masked(in_review(mutating)) == masked(in_review(expected)), name
        if name in steps["_identical_validating_bodies"]:
            assert in_review(validating) == in_review(mutating)


async def test_only_the_validating_review_has_a_uid_and_a_generated_name(sim: RunningServer, registered: Webhooks) -> None:
    await Replay(sim).ask(behaviour()["create-pod-generateName"])
    (_, mutating), (_, validating) = registered.asked
    for review, recorded_name in ((mutating, "mutating"), (validating, "validating")):
        request = recorded(f"admission-create-pod-generateName-{recorded_name}.json")["body"]["request"]
        for field in ("uid", "creationTimestamp", "name"):
            assert (field in review["request"]["object"]["metadata"]) == (field in request["object"]["metadata"])
        assert ("name" in review["request"]) == ("name" in request)


async def test_binding_status_and_ephemeral_containers_are_reviews_of_their_own(
    sim_client: KubeClient, registered: Webhooks
) -> None:
    made = await sim_client.create_pod(pod("p1"))
    await sim_client.bind(
        uid=made["metadata"]["uid"], namespace="default", name="p1", node="node-a", annotations={"hami.io/x": "1"}
    )
    debug = {"spec": {"ephemeralContainers": [{"name": "dbg", "image": "registry.local/show:1"}]}}
    await sim_client.patch(PODS, "default", "p1", debug, subresource="ephemeralcontainers", content_type=STRATEGIC_PATCH)
    await sim_client.patch_pod("default", "p1", {"status": {"phase": "Running"}}, subresource="status")
    await sim_client.delete_pod("default", "p1", grace=0)
    told = [(each["request"]["operation"], each["request"].get("subResource", "")) for each in registered.reviews("/validate")]
    assert told == [
        ("CREATE", ""),
        ("CREATE", "binding"),
        ("UPDATE", "ephemeralcontainers"),
        ("UPDATE", "status"),
        ("DELETE", ""),
    ]
    binding = registered.reviews("/mutate")[1]["request"]
    expected = recorded("admission-create-pods-binding-mutating.json")["body"]["request"]
    assert binding["kind"] == expected["kind"]
    assert binding["resource"] == expected["resource"]
    assert binding["object"]["target"]["name"] == "node-a"
    removal = registered.reviews("/mutate")[-1]["request"]
    assert (removal["object"], removal["oldObject"]["metadata"]["name"]) == (None, "p1")


async def test_the_old_way_of_binding_is_a_resource_of_its_own(
    sim: RunningServer, sim_client: KubeClient, registered: Webhooks
) -> None:
    await sim_client.create_pod(pod("p2"))
    status, _ = await Replay(sim).ask(behaviour()["bindings-legacy-create"])
    expected = recorded("admission-bindings-legacy-create-mutating.json")["body"]["request"]
    request = registered.reviews("/mutate")[-1]["request"]
    assert status == 201
    assert {key: request[key] for key in ("kind", "resource", "name", "namespace")} == {
        key: expected[key] for key in ("kind", "resource", "name", "namespace")
    }
    assert "subResource" not in request


def _add(path: str, value: Any) -> Obj:
    return {"op": "add", "path": path, "value": value}


ANSWERS: dict[str, Answer] = {
    "deny-message": deny(message="no node has a card with 90000 MiB; largest is 24576"),
    "deny-code-reason": deny(code=422, reason="Invalid", message="gpumem must be positive"),
    "deny-no-status": deny(),
    "patch-env-fieldref": patching(_add(ENV_PATH, [FIELD_REF])),
    "patch-fieldref-bad-path": patching(
        _add(ENV_PATH, [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotation['a']"}}}])
    ),
    "patch-fieldref-bad-annotation-key": patching(
        _add(ENV_PATH, [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['hami.io/a b']"}}}])
    ),
    "patch-test-op-fails": patching({"op": "test", "path": "/metadata/name", "value": "other"}),
    "patch-missing-parent": patching(_add(f"{ENV_PATH}/-", FIELD_REF)),
    "patch-annotations-when-absent": patching(_add("/metadata/annotations/hami.io~1x", "1")),
    "patch-not-json": patching_text("garbage"),
    "patch-unknown-field": patching(_add("/spec/bogus", 1)),
    "patch-wrong-type": patching(_add("/spec/schedulerName", 7)),
    "patch-no-patchType": lambda review: reviewed(review, allowed=True, patch=base64.b64encode(b"[]").decode()),
    "patch-merge-type": patching_text('{"metadata":{}}'),
    "no-response-field": lambda _: {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
    "no-apiVersion": lambda review: {"response": {"uid": review["request"]["uid"], "allowed": True}},
    "http-500": lambda _: 500,
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_does_to_the_request_what_it_does_on_a_real_server(
    name: str, sim: RunningServer, registered: Webhooks
) -> None:
    registered.mutate = ANSWERS[name]
    step, replay = behaviour()[name], Replay(sim)
    status, actual = await replay.ask(step)
    assert (status, masked(actual)) == (step["response"]["status"], replay.expected(step["response"]["body"]))
    calls = {"mutating": len(registered.reviews("/mutate")), "validating": len(registered.reviews("/validate"))}
    assert calls == step["webhook_calls"]


async def test_a_wrong_uid_in_the_answer_is_refused(sim_client: KubeClient, registered: Webhooks) -> None:
    registered.mutate = lambda review: reviewed({"request": {"uid": "nope"}}, allowed=True)
    with pytest.raises(ApiError, match=r'expected response.uid="[0-9a-f-]{36}", got "nope"'):
        await sim_client.create_pod(pod("a"))


async def test_a_validating_webhook_may_not_patch(sim: RunningServer, registered: Webhooks) -> None:
    registered.validate = patching(_add("/metadata/labels", {}))
    step = behaviour()["validating-patch-answer"]
    assert await Replay(sim).ask(step) == (500, step["response"]["body"])


async def test_warnings_reach_the_caller(sim: RunningServer, registered: Webhooks) -> None:
    registered.mutate = lambda review: reviewed(review, allowed=True, warnings=["hami: gpumem rounded up to 1024"])
    step = behaviour()["patch-with-warning-and-audit"]
    from tests.contract.wire.replay import send

    request = step["request"]
    _, answer = await send(sim, request["method"], request["path"], request["headers"], request["body"])
    assert ("warning", '299 - "hami: gpumem rounded up to 1024"') in answer.headers


IGNORED = {"http-500-Ignore": "http-500", "invalid-patch-Ignore": "patch-not-json"}
NOT_IGNORED = {"missing-parent-patch-Ignore": patching(_add(f"{ENV_PATH}/-", FIELD_REF)), "deny-Ignore": deny(message="no")}


@pytest.mark.parametrize("name", IGNORED)
async def test_ignore_covers_failed_calls(name: str, sim: RunningServer, sim_client: KubeClient, hooks: Webhooks) -> None:
    await register(sim_client, hooks, failurePolicy="Ignore")
    hooks.mutate = ANSWERS[IGNORED[name]]
    status, _ = await Replay(sim).ask(behaviour()[name])
    assert status == 201


@pytest.mark.parametrize("name", NOT_IGNORED)
async def test_ignore_covers_neither_denials_nor_patches_that_do_not_apply(
    name: str, sim: RunningServer, sim_client: KubeClient, hooks: Webhooks
) -> None:
    await register(sim_client, hooks, failurePolicy="Ignore")
    hooks.mutate = NOT_IGNORED[name]
    step = behaviour()[name]
    status, actual = await Replay(sim).ask(step)
    assert (status, actual) == (step["response"]["status"], step["response"]["body"])


def where(hooks: Webhooks, text: str) -> str:
    return text.replace("https://127.0.0.1:18443", hooks.url)


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 201)])
async def test_a_timeout_fails_or_is_ignored(
    policy: str, status: int, sim: RunningServer, sim_client: KubeClient, hooks: Webhooks
) -> None:
    await register(sim_client, hooks, failurePolicy=policy, timeoutSeconds=1)
    hooks.delay = 3.0
    step = behaviour()[f"timeout-{policy}"]
    answered, actual = await Replay(sim).ask(step)
    assert answered == status == step["response"]["status"]
    if policy == "Fail":
        assert actual["message"] == where(hooks, step["response"]["body"]["message"])


async def test_a_webhook_that_is_down_and_one_with_a_stranger_s_certificate(
    sim: RunningServer, sim_client: KubeClient, hooks: Webhooks
) -> None:
    down = {"url": "https://127.0.0.1:1/x", "caBundle": hooks.authority_bundle}
    async with webhooks() as stranger:
        wrong = {"url": f"{hooks.url}/mutate", "caBundle": stranger.authority_bundle}
        for name, client_config in (("webhook-down-Fail", down), ("webhook-wrong-CA-Fail", wrong)):
            await sim_client.create(
                MUTATING_WEBHOOKS, registration(hooks, "mutate", clientConfig=client_config, timeoutSeconds=2)
            )
            step = behaviour()[name]
            status, actual = await Replay(sim).ask(step)
            expected = where(hooks, step["response"]["body"]["message"]).replace("127.0.0.1:18444", "127.0.0.1:1")
            assert (status, actual["message"]) == (500, expected)
            await sim_client.delete(MUTATING_WEBHOOKS, "", "mutate")
    assert hooks.asked == []


@pytest.mark.parametrize("name", ["config-sideEffects-Some", "config-timeout-31"])
async def test_registrations_that_are_refused(name: str, sim: RunningServer) -> None:
    step = behaviour()[name]
    assert await Replay(sim).ask(step) == (422, step["response"]["body"])


async def test_a_denied_binding_leaves_the_pod_unbound_and_a_changed_one_lands(
    sim_client: KubeClient, registered: Webhooks
) -> None:
    made = await sim_client.create_pod(pod("v2"))
    target = {"uid": made["metadata"]["uid"], "namespace": "default", "name": "v2", "node": "node-a"}
    registered.mutate = deny(message="card already given away")
    refused = await sim_client.bind(**target)
    assert getattr(refused, "message", "") == behaviour()["deny-binding"]["response"]["body"]["message"]
    registered.mutate = patching(_add("/metadata/annotations", {"hami.io/x": "set-by-webhook-on-binding"}))
    await sim_client.bind(**target)
    found = await sim_client.get_pod("default", "v2")
    assert found is not None
    assert (found.spec.node_name, found.metadata.annotations) == (
        "node-a",
        behaviour()["pod-after-webhook-mutated-binding"]["annotations"],
    )


async def test_an_object_cannot_leave_a_webhooks_reach_by_dropping_its_label(sim_client: KubeClient, hooks: Webhooks) -> None:
    await register(sim_client, hooks, objectSelector={"matchLabels": {"hami.io/managed": "true"}})
    await sim_client.create_pod(pod("other"))
    assert hooks.reviews("/mutate") == []
    await sim_client.create_pod(pod("ours", labels={"hami.io/managed": "true"}))
    hooks.mutate = deny(message="frozen")
    with pytest.raises(ApiError, match="frozen"):
        await sim_client.patch_pod("default", "ours", {"metadata": {"labels": {"hami.io/managed": None}}})


async def test_namespaces_outside_the_selector_and_other_kinds_are_left_alone(sim_client: KubeClient, hooks: Webhooks) -> None:
    await sim_client.create(NAMESPACES, {"metadata": {"name": "free", "labels": {"hami.io/webhook": "ignore"}}})
    unless = {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]}
    await register(sim_client, hooks, namespaceSelector=unless)
    await sim_client.create_pod(pod("a"), namespace="free")
    await sim_client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {}})
    assert hooks.reviews("/mutate") == []
    await sim_client.create_pod(pod("a"))
    assert len(hooks.reviews("/mutate")) == 1


async def test_allowing_everything_changes_nothing(sim_client: KubeClient, registered: Webhooks) -> None:
    registered.mutate = allow
    made = await sim_client.create_pod(pod("a"))
    found = await sim_client.read(PODS, "default", "a")
    assert found == made
