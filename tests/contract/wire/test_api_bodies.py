"""The simulated API server answers as a real one did, body for body."""

from typing import Any

import pytest

from hami.sim.apiserver.admission import User
from hami.sim.apiserver.app import RunningServer, Settings, serving
from tests.contract.wire.replay import Obj, Replay, masked, recorded
from tests.support.objects import node, pod

DEMO = {"app": "demo"}
NO_GO_DIFF = "set-nodeName-by-patch"
"""Its recorded text ends in a diff of Go structs, which nothing else would print."""


async def replayed(server: RunningServer, name: str, left_out: frozenset[str] = frozenset()) -> None:
    """Every step of a recording, in order; all differences are reported together. A recording without steps shows nothing."""
    replay, differences, asked = Replay(server), [], 0
    for step, content in recorded(name).items():
        if "request" not in content or step in left_out:
            continue
        asked += 1
        status, actual = await replay.ask(content)
        expected = replay.expected(content["response"]["body"])
        if (status, masked(actual)) != (content["response"]["status"], expected):
            differences.append((step, status, masked(actual), expected))
    assert (differences, bool(asked)) == ([], True)


def recorded_pod(name: str, uid: str = "", **meta: Any) -> Obj:
    made = pod(name, namespace="default", labels=DEMO, **meta)
    made["metadata"] |= {"uid": uid} if uid else {}
    made["spec"]["automountServiceAccountToken"] = False
    made["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    return made


async def test_errors(sim: RunningServer) -> None:
    sim.load("nodes", [node("node-0")])
    big = frozenset({"annotations-over-256KiB", "unauthorized", "forbidden"})
    await replayed(sim, "api-errors.json", big)


async def test_annotations_of_more_than_256_kib(sim: RunningServer) -> None:
    step = recorded("api-errors.json")["annotations-over-256KiB"]
    step["request"]["body"] = pod("ann", namespace="default", annotations={"hami.io/a": "x" * 262_145})
    assert await Replay(sim).ask(step) == (422, step["response"]["body"])


async def test_unknown_and_forbidden_users() -> None:
    tokens = {"usertoken": User("alice", ("system:authenticated",))}
    allows = lambda user, verb, target: verb == "get"  # noqa: E731 - a rule of one line
    async with serving(Settings(tokens=tokens, allows=allows)) as sim:
        for name, code in (("unauthorized", 401), ("forbidden", 403)):
            step = recorded("api-errors.json")[name]
            assert await Replay(sim).ask(step) == (code, step["response"]["body"])


async def test_bindings(sim: RunningServer) -> None:
    steps = recorded("api-binding.json")
    uids = {
        name: steps[step]["request"]["body"]["metadata"]["uid"]
        for name, step in (("b1", "first"), ("b3", "stale-resourceVersion"))
    }
    touched = {"annotations": {"touch": "1"}}
    sim.load(
        "pods",
        [
            recorded_pod(name, uids.get(name, ""), **(touched if name == "b3" else {}))
            for name in ("b1", "b2", "b3", "b4", "b5")
        ],
    )
    replay = Replay(sim)
    for name, content in steps.items():
        if "request" not in content:
            continue
        if name == "pod-being-deleted":
            await replay.ask(
                {
                    "request": {"method": "DELETE", "path": "/api/v1/namespaces/default/pods/b2", "headers": {}, "body": None},
                    "response": {"body": {}},
                }
            )
        if name == "fresh-resourceVersion-and-annotations":
            current = next(each for each in sim.objects("pods") if each["metadata"]["name"] == "b3")
            content["request"]["body"]["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        status, actual = await replay.ask(content)
        told = (status, masked(actual))
        if name == NO_GO_DIFF:
            assert status == 422
            assert content["response"]["body"]["message"].startswith(actual["message"])
        else:
            assert told == (content["response"]["status"], replay.expected(content["response"]["body"])), name


async def test_conflicts(sim: RunningServer) -> None:
    steps = recorded("api-conflict.json")
    uid = steps["put-stale"]["request"]["body"]["metadata"]["uid"]
    sim.load("pods", [recorded_pod("c1", uid, annotations={"a": "1"})])
    await replayed(sim, "api-conflict.json")


async def test_events_in_both_versions(sim: RunningServer) -> None:
    await replayed(sim, "api-events.json", frozenset({"events-v1-series-patch", "events-v1-read-back-as-core-v1"}))


async def test_leases(sim: RunningServer) -> None:
    await replayed(sim, "api-lease.json")


async def test_quotas(sim: RunningServer) -> None:
    sim.load("namespaces", [{"metadata": {"name": "team"}}])
    # The status that these two lists show is written by the quota controller, which is not part of the API server.
    await replayed(sim, "api-quota.json", frozenset({"list-after-controller", "list-at-end"}))


async def test_nodes(sim: RunningServer) -> None:
    step = recorded("api-node.json")["merge-patch-annotations"]
    before = step["response"]["body"]
    annotations = {"hami.io/node-nvidia-register": "[]"}
    sim.load("nodes", [{**before, "metadata": {**before["metadata"], "annotations": annotations}}])
    # The second's refusal quotes the whole object, managedFields included.
    await replayed(sim, "api-node.json", frozenset({"merge-patch-annotation-non-string"}))


async def test_an_annotation_that_is_no_text_is_refused_with_the_decoders_words(sim: RunningServer) -> None:
    sim.load("nodes", [node("node-0")])
    step = recorded("api-node.json")["merge-patch-annotation-non-string"]
    status, actual = await Replay(sim).ask(step)
    told, expected = actual["message"], step["response"]["body"]["message"]
    assert status == 422
    assert told.startswith(' "" is invalid: patch: Invalid value: "{')
    assert told.rpartition('": json')[2] == expected.rpartition('": json')[2]


def recorded_nodes() -> list[Obj]:
    steps = recorded("api-list.json")
    pages = [steps[f"nodes-limit-2-page-{page}"]["response"]["body"]["items"] for page in (1, 2, 3)]
    return [item for page in pages for item in page]


async def test_lists_in_pages(sim: RunningServer) -> None:
    sim.load("nodes", recorded_nodes())
    replay, seen, token = Replay(sim), [], ""
    for page in (1, 2, 3):
        step = recorded("api-list.json")[f"nodes-limit-2-page-{page}"]
        step["request"]["path"] = "/api/v1/nodes?limit=2" + (f"&continue={token}" if token else "")
        status, actual = await replay.ask(step)
        expected = replay.expected(step["response"]["body"])
        token = actual["metadata"].pop("continue", "")
        assert bool(expected["metadata"].pop("continue", "")) == bool(token)
        assert (status, masked(actual)) == (200, expected)
        seen += actual["items"]
    assert len(seen) == 5


@pytest.mark.parametrize("name", ["nodes-empty-selector", "pods-by-nodeName-empty", "bad-field-selector"])
async def test_selectors(name: str, sim: RunningServer) -> None:
    sim.load("nodes", recorded_nodes())
    step = recorded("api-list.json")[name]
    status, actual = await Replay(sim).ask(step)
    assert (status, masked(actual)) == (step["response"]["status"], masked(step["response"]["body"]))


async def test_a_list_from_cache_ignores_the_limit(sim: RunningServer) -> None:
    sim.load("nodes", recorded_nodes())
    step = recorded("api-list.json")["resourceVersion-0"]
    _, actual = await Replay(sim).ask(step)
    assert len(actual["items"]) == len(step["response"]["body"]["items"]) == 5
    assert "continue" not in actual["metadata"]


async def test_metadata_only(sim: RunningServer) -> None:
    sim.load("nodes", recorded_nodes())
    replay, step = Replay(sim), recorded("api-list.json")["partial-metadata"]
    _, actual = await replay.ask(step)
    expected = replay.expected(step["response"]["body"])
    assert actual["metadata"].pop("continue")
    assert expected["metadata"].pop("continue")
    assert masked(actual) == expected


@pytest.mark.parametrize(
    "name", ["list-exact-old-resourceVersion", "watch-too-old", "watch-garbage-resourceVersion", "get-future-resourceVersion"]
)
async def test_versions_that_cannot_be_served(name: str, sim: RunningServer) -> None:
    sim.load("nodes", recorded_nodes())
    sim.load("pods", [recorded_pod("a")])
    step = recorded("api-gone.json")[name]
    step["request"]["path"] = step["request"]["path"].replace("resourceVersion=451", "resourceVersion=2")
    status, actual = await Replay(sim).ask(step)
    expected = step["response"]["body"]
    told = actual.get("object", actual)
    assert status == step["response"]["status"]
    assert (actual.get("type"), told.get("reason"), told.get("code")) == (
        expected.get("type"),
        expected.get("object", expected).get("reason"),
        expected.get("object", expected).get("code"),
    )
    assert told["message"].rstrip("0123456789()") == expected.get("object", expected)["message"].rstrip("0123456789()")


async def test_an_expired_continue_token_comes_with_one_for_the_rest(sim: RunningServer) -> None:
    sim.load("nodes", recorded_nodes())
    replay = Replay(sim)
    first = recorded("api-list.json")["nodes-limit-2-page-1"]
    _, page = await replay.ask(first)
    sim.compact()
    step = recorded("api-gone.json")["list-expired-continue"]
    step["request"]["path"] = f"/api/v1/nodes?limit=2&continue={page['metadata']['continue']}"
    status, actual = await replay.ask(step)
    rest = actual["metadata"].pop("continue")
    del step["response"]["body"]["metadata"]["continue"]
    assert (status, actual) == (410, step["response"]["body"])
    step["request"]["path"] = f"/api/v1/nodes?limit=2&continue={rest}"
    status, actual = await replay.ask(step)
    assert (status, [each["metadata"]["name"] for each in actual["items"]]) == (200, ["node-2", "node-3"])
