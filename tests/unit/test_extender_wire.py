"""The extender's messages: what a real kube-scheduler sends is read, what is malformed is named, answers have Go's keys."""

import json
from typing import Any

import msgspec
import pytest

from hami.domain.errors import InvalidInput
from hami.scheduler.admission import allowed, decode_review, denied, salvaged
from hami.scheduler.scored import scaled
from hami.scheduler.wire import (
    BindingResult,
    FilterResult,
    HostPriority,
    NodeNames,
    decode_args,
    decode_binding,
    decode_node,
    decode_preemption,
    encode,
)
from tests.support.data import load_json


def recorded(name: str) -> bytes:
    return json.dumps(load_json(f"wire/{name}.json")["body"]).encode()


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_real_call_with_names(verb: str) -> None:
    args = decode_args(recorded(f"extender-{verb}-cache-true"))
    assert args.pod is not None
    assert args.pod.metadata.name == "ok-1"
    assert (args.pod.spec.containers or [])[0].limit("nvidia.com/gpumem") == "1k"
    assert args.nodes is None
    assert NodeNames().decode(args.node_names) == ("node-a", "node-b", "node-c")


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_real_call_with_whole_nodes(verb: str) -> None:
    args = decode_args(recorded(f"extender-{verb}-cache-false"))
    assert args.nodes is not None
    names = [decode_node(item, "Nodes.items[0]").metadata.name for item in args.nodes.items]
    assert sorted(names) == ["node-a", "node-b", "node-c"]
    assert NodeNames().decode(args.node_names) is None


@pytest.mark.parametrize("cache", ["true", "false"])
def test_a_real_bind(cache: str) -> None:
    args = decode_binding(recorded(f"extender-bind-cache-{cache}"))
    assert args.pod_namespace == "default"
    assert args.pod_uid
    assert args.node.startswith("node-")


def test_a_real_preemption_in_both_cache_modes() -> None:
    by_uid = decode_preemption(recorded("extender-preempt-cache-true"))
    assert by_uid.meta_victims is not None
    assert sorted(by_uid.meta_victims) == ["node-a", "node-b", "node-c"]
    whole = decode_preemption(recorded("extender-preempt-cache-false"))
    assert whole.victims is not None
    assert all(pod.metadata.uid for each in whole.victims.values() for pod in each.pods or ())


def test_keys_are_read_in_any_case_as_go_does() -> None:
    args = decode_args(b'{"pod":{"metadata":{"name":"x"}},"nodes":null,"nodenames":["a"]}')
    assert args.pod is not None
    assert args.pod.metadata.name == "x"
    assert NodeNames().decode(args.node_names) == ("a",)
    assert decode_binding(b'{"podname":"p","podnamespace":"d","poduid":"u","node":"n"}').pod_uid == "u"


@pytest.mark.parametrize(
    ("body", "field", "why"),
    [
        (b"", "body", "truncated"),
        (b'{"Pod":{"metadata":{"name":"a"', "body", "truncated"),
        (b"not json", "body", "malformed"),
        (b"[]", "body", "Expected `object`, got `array`"),
        (b"null", "body", "got `null`"),
        (b"{}", "Pod", "extender args missing pod"),
        (b'{"Pod":null,"NodeNames":["a"]}', "Pod", "extender args missing pod"),
        (b'{"Pod":[]}', "Pod", "Expected `object | null`"),
        (b'{"Pod":{"metadata":{"name":3}}}', "Pod.metadata.name", "Expected `str`, got `int`"),
        (b'{"Pod":{"spec":{"containers":[{"name":"a"},{"name":null}]}}}', "Pod.spec.containers[1].name", "got `null`"),
        (b'{"Pod":{"metadata":{"name":"\xff"}}}', "body", ""),
    ],
)
def test_a_malformed_filter_body_names_field_and_value(body: bytes, field: str, why: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        decode_args(body)
    assert raised.value.field == field
    assert why in str(raised.value)


def test_a_wrong_value_is_shown_and_a_long_body_is_not() -> None:
    with pytest.raises(InvalidInput) as raised:
        decode_args(b'{"Pod":{"metadata":{"uid":42}}}')
    assert raised.value.value == 42
    with pytest.raises(InvalidInput) as raised:
        decode_args(b'{"Pod":{"metadata":{"name":"' + b"x" * 100_000)
    assert len(str(raised.value)) < 400
    assert "100028 bytes" in str(raised.value)


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_a_bind_without_a_part_names_it(missing: str) -> None:
    body = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n"}
    for value in ("", None):
        with pytest.raises(InvalidInput) as raised:
            decode_binding(json.dumps(body | {missing: value}).encode())
        assert missing in raised.value.field


def test_names_must_be_text_and_the_same_bytes_give_the_same_names() -> None:
    names = NodeNames(keep=2)
    with pytest.raises(InvalidInput, match=r"NodeNames\[1\]: 3: Expected `str`"):
        names.decode(msgspec.Raw(b'["a",3]'))
    first = names.decode(msgspec.Raw(b'["a","b"]'))
    assert names.decode(msgspec.Raw(b'["a","b"]')) is first
    for other in (b'["c"]', b'["d"]', b'["e"]'):
        names.decode(msgspec.Raw(other))
    assert names.decode(msgspec.Raw(b'["a","b"]')) == first


def test_answers_have_gos_keys() -> None:
    assert json.loads(encode(FilterResult(node_names=["n"], failed_nodes={"m": "why"}))) == {
        "Nodes": None,
        "NodeNames": ["n"],
        "FailedNodes": {"m": "why"},
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert json.loads(encode(BindingResult(error="x"))) == {"Error": "x"}
    assert json.loads(encode([HostPriority("n", 3)])) == [{"Host": "n", "Score": 3}]


def test_scores_reach_from_zero_to_ten_in_the_policys_direction() -> None:
    scores = {"a": 0.0, "b": 15.0, "c": 30.0}
    points = {each.host: each.score for each in scaled(scores, ("a", "b", "c", "d"), least_first=False)}
    assert points == {"a": 0, "b": 5, "c": 10, "d": 0}
    points = {each.host: each.score for each in scaled(scores, ("a", "b", "c"), least_first=True)}
    assert points == {"a": 10, "b": 5, "c": 0}
    assert [each.score for each in scaled({"a": 1.0, "b": 1.0}, ("a", "b"), least_first=False)] == [10, 10]


def test_real_reviews_are_read() -> None:
    review = decode_review(recorded("admission-create-pod-one-container-mutating"))
    assert review.request is not None
    assert (review.request.operation, review.request.namespace, review.request.user_info.username) == (
        "CREATE",
        "default",
        "admin",
    )
    binding = decode_review(recorded("admission-create-pods-binding-mutating"))
    assert binding.request is not None
    assert binding.request.sub_resource == "binding"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b'{"apiVersion":"admission.k8s.io/v2","request":{"uid":"u"}}', "apiVersion"),
        (b'{"apiVersion":"admission.k8s.io/v1"}', "request"),
        (b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":7}}', "request.uid"),
    ],
)
def test_a_malformed_review_names_the_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        decode_review(body)
    assert raised.value.field == field


def test_the_uid_of_a_broken_review_is_found_for_its_answer() -> None:
    broken = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"abc-1","object":{"metadata":'
    assert salvaged(broken) == ("admission.k8s.io/v1", "abc-1")
    assert salvaged(b'{"request":') is None


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_the_answer_comes_in_the_version_of_the_question(version: str) -> None:
    answer: dict[str, Any] = json.loads(denied(version, "u", 403, "no"))
    assert answer == {
        "apiVersion": version,
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": False, "status": {"code": 403, "message": "no"}},
    }
    assert "patch" not in json.loads(allowed(version, "u"))["response"]
    patched = json.loads(allowed(version, "u", patch=[{"op": "add", "path": "/x", "value": 1}]))["response"]
    assert patched["patchType"] == "JSONPatch"
