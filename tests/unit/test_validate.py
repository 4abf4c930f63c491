"""The validating webhook: reserved keys, ephemeral containers, bindings."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.domain.allocation import Allocation, ContainerShares, Phase, PodOwner, Reservation
from hami.domain.cluster import ClusterSnapshot
from hami.domain.pod import Container, EnvVar, ObjectMeta, Pod, PodSpec
from hami.domain.request import ContainerKind
from hami.domain.units import EpochMs
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, debuggers, mutate
from hami.scheduler.decide.validate import Allowed, BindingReview, Review, validate, validate_binding
from hami.vendors import identity
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of
from tests.conformance.admissions import apply

SETTINGS = AdmissionSettings(vendors=vendors_of(DeviceConfig()))
CONTROL = frozenset({"system:serviceaccount:hami:hami-scheduler"})
(HAMI,) = CONTROL
WIRE = Path(__file__).parent.parent / "data" / "wire"
LABELS = {identity.LABEL: identity.LABEL_VALUE}


def recorded(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((WIRE / f"admission-{name}-mutating.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = raw["body"]["request"]
    return found


def review_of(request: dict[str, Any]) -> Review:
    old, new = (msgspec.convert(request[side], Pod) if request[side] else None for side in ("oldObject", "object"))
    return Review(
        operation=request["operation"],
        subresource=request.get("subResource", ""),
        old=old,
        new=new,
        username=request["userInfo"]["username"],
    )


def pod(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", annotations=annotations, labels=labels or LABELS), spec=PodSpec(**spec))


def update(old: Pod, new: Pod, user: str = "alice", subresource: str = "") -> Allowed | Denied:
    return validate(Review(operation="UPDATE", subresource=subresource, old=old, new=new, username=user), SETTINGS, CONTROL)


def live(node: str = "n1", phase: Phase = Phase.RESERVED) -> Allocation:
    reservation = Reservation(
        id="r",
        owner=PodOwner("u", "team", "p"),
        node=node,
        containers=(ContainerShares(name="c", kind=ContainerKind.APP),),
        scheduler="s",
        deadline_ms=EpochMs(0),
    )
    return Allocation(reservation=reservation, phase=phase)


@pytest.mark.parametrize(
    "name", ["update-pod-annotation-by-user-patch", "update-pod-annotation-by-user-put", "patch-pods-status"]
)
def test_a_users_ordinary_update_passes(name: str) -> None:
    assert validate(review_of(recorded(name)), SETTINGS, CONTROL) == Allowed()


@pytest.mark.parametrize("subresource", ["", "status", "resize", "ephemeralcontainers"])
@pytest.mark.parametrize(
    "key", ["container.hami.io/c.visible-devices", "hami.io/vgpu-devices-allocated", "hami.io/reservation"]
)
def test_reserved_keys_are_frozen_for_everybody_else(subresource: str, key: str) -> None:
    held, forged = pod({key: "GPU-a"}), pod({key: "GPU-b"})
    for old, new in ((held, forged), (held, pod()), (pod(), forged)):
        answer = update(old, new, subresource=subresource)
        assert isinstance(answer, Denied)
        assert key in answer.message
        assert update(old, new, user=HAMI, subresource=subresource) == Allowed()


def test_progress_keys_of_vendor_plugins_may_change() -> None:
    assert update(pod({"hami.io/bind-phase": "allocating"}), pod({"hami.io/bind-phase": "success"})) == Allowed()


def test_the_label_that_brings_reviews_to_us_cannot_be_taken_off() -> None:
    assert isinstance(update(pod(), pod(labels={"other": "x"})), Denied)


def test_an_ephemeral_container_may_not_help_itself_to_devices() -> None:
    debugger = Container(name="dbg", env=[EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")])
    assert isinstance(update(pod(), pod(ephemeral_containers=[debugger]), subresource="ephemeralcontainers"), Denied)
    told = Container(name="dbg", env=[EnvVar(name="A", value="b"), EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="void")])
    assert update(pod(), pod(ephemeral_containers=[told]), subresource="ephemeralcontainers") == Allowed()


def test_an_ephemeral_container_that_says_nothing_could_take_it_from_its_image_or_a_config_map() -> None:
    request = recorded("update-pod-ephemeralcontainers")
    for side in ("object", "oldObject"):
        request[side]["metadata"].setdefault("labels", {}).update(LABELS)
    silent = validate(review_of(request), SETTINGS, CONTROL)
    assert isinstance(silent, Denied)
    assert "NVIDIA_VISIBLE_DEVICES" in silent.message
    told = debuggers(msgspec.convert(request["oldObject"], Pod), msgspec.convert(request["object"], Pod))
    request["object"] = apply(request["object"], list(told.patch))
    assert validate(review_of(request), SETTINGS, CONTROL) == Allowed()
    assert debuggers(pod(), msgspec.convert(request["object"], Pod)).patch == ()


def test_a_container_beside_one_that_asks_may_not_help_itself() -> None:
    request = recorded("create-pod-one-container")
    containers = request["object"]["spec"]["containers"]
    containers.append({"name": "side", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    containers[0]["env"] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": identity.field_path(key)}}}
        for name, key in identity.references("main", 1).items()
    ]
    request["object"]["metadata"]["labels"] = LABELS
    refused = validate(review_of(request), SETTINGS, CONTROL)
    assert isinstance(refused, Denied)
    assert "containers[1]" in refused.message
    containers[1]["env"] = []
    assert validate(review_of(request), SETTINGS, CONTROL) == Allowed()


def test_what_the_mutating_webhook_lets_in_passes_and_a_bent_reference_does_not() -> None:
    request = recorded("create-pod-one-container")
    answer = mutate(msgspec.convert(request["object"], Pod), SETTINGS, ClusterSnapshot())
    assert isinstance(answer, Admitted)
    request["object"] = apply(request["object"], list(answer.patch))
    assert validate(review_of(request), SETTINGS, CONTROL) == Allowed()
    for each in request["object"]["spec"]["containers"][0]["env"]:
        if each["name"] == "NVIDIA_VISIBLE_DEVICES":
            each.pop("valueFrom")
            each["value"] = "all"
    bent = validate(review_of(request), SETTINGS, CONTROL)
    assert isinstance(bent, Denied)
    assert "NVIDIA_VISIBLE_DEVICES" in bent.message


def test_a_pod_that_asks_and_names_its_node_is_refused() -> None:
    request = recorded("create-pod-one-container")
    request["object"]["spec"]["nodeName"] = "node-a"
    answer = validate(review_of(request), SETTINGS, CONTROL)
    assert isinstance(answer, Denied)
    assert "node assigned" in answer.message


def test_a_binding_needs_a_live_reservation_on_that_node_and_our_hand() -> None:
    ours = BindingReview(pod_uid="u", node="n1", username=HAMI)
    assert validate_binding(ours, live(), SETTINGS, CONTROL) == Allowed()
    assert isinstance(validate_binding(ours, None, SETTINGS, CONTROL), Denied)
    assert isinstance(validate_binding(ours, live(phase=Phase.LAPSED), SETTINGS, CONTROL), Denied)
    assert isinstance(validate_binding(ours, live(node="n2"), SETTINGS, CONTROL), Denied)
    theirs = msgspec.structs.replace(ours, username="kube-scheduler")
    assert isinstance(validate_binding(theirs, live(), SETTINGS, CONTROL), Denied)


def test_an_ordinary_pods_binding_passes_unless_it_forges() -> None:
    binding = BindingReview(pod_uid="u", node="n1", username="kube-scheduler", ours=False)
    assert validate_binding(binding, None, SETTINGS, CONTROL) == Allowed()
    forged = msgspec.structs.replace(binding, annotations={"hami.io/vgpu-devices-allocated": "x"})
    assert isinstance(validate_binding(forged, None, SETTINGS, CONTROL), Denied)


def test_a_quantity_that_cannot_be_read_is_refused_here_too() -> None:
    request = recorded("create-pod-one-container")
    request["object"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "500m"
    answer = validate(review_of(request), SETTINGS, CONTROL)
    assert isinstance(answer, Denied)
    assert "nvidia.com/gpumem" in answer.message
