"""The validating webhook: what must not happen to a pod of ours after it was admitted (docs/delivery.md, section 2.3).

Environment is resolved at every container start, so the annotations it refers to are frozen. A Binding needs a live
reservation.
"""

from collections.abc import Mapping, Sequence

import msgspec

from hami.domain.allocation import Allocation
from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, Pod
from hami.domain.request import ContainerRequest
from hami.scheduler.decide.admit import AdmissionSettings, Denied, by_reference, refers_to, shows_nothing
from hami.vendors import identity
from hami.vendors.registry import by_word
from hami.vendors.requests import containers_of, pod_request


class Allowed(msgspec.Struct, frozen=True):
    """Nothing speaks against it."""


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """One admission review of a pod, as far as this decision needs it."""

    operation: str
    subresource: str = ""
    old: Pod | None = None
    new: Pod | None = None
    username: str = ""


class BindingReview(msgspec.Struct, frozen=True, kw_only=True):
    """A Binding about to be written. `ours`: the pod asks for devices (its label says so, or it is known to)."""

    pod_uid: str
    node: str
    username: str
    annotations: Mapping[str, str] = {}
    ours: bool = True


def validate(review: Review, settings: AdmissionSettings, control_plane: frozenset[str]) -> Allowed | Denied:
    """`control_plane`: user names that may write reserved keys."""
    trusted = review.username in control_plane
    match review.operation, review.subresource:
        case "CREATE", "":
            return _created(review.new or Pod(), settings)
        case "UPDATE", _ if not trusted:
            return _updated(review, settings)
        case _:
            return Allowed()


def validate_binding(
    review: BindingReview, live: Allocation | None, settings: AdmissionSettings, control_plane: frozenset[str]
) -> Allowed | Denied:
    """`live`: the pod's live allocation, None when it has none."""
    forged = sorted(key for key in review.annotations if identity.is_reserved(key, settings.reserved))
    if forged and review.username not in control_plane:
        return Denied(403, f"annotation {forged[0]} is reserved: only hami writes it")
    if not review.ours:
        return Allowed()
    if review.username not in control_plane:
        return Denied(403, "only hami binds pods that ask for devices")
    if live is None or not live.live:
        return Denied(403, "pod asks for devices and holds no live reservation")
    if live.reservation.node != review.node:
        return Denied(403, f"pod's reservation is on another node than {review.node}")
    return Allowed()


def _created(pod: Pod, settings: AdmissionSettings) -> Allowed | Denied:
    forged = sorted(key for key in pod.metadata.notes if identity.is_reserved(key, settings.reserved))
    if forged:
        return Denied(403, f"annotation {forged[0]} is reserved: only hami writes it")
    try:
        request = pod_request(pod, settings.vendors)
    except InvalidInput as error:
        return Denied(422, str(error))
    if not request.asks_for_devices:
        return Allowed()
    if pod.spec.node_name:
        return Denied(403, "pod asks for devices and has its node assigned")
    if (pod.metadata.labels or {}).get(identity.LABEL) != identity.LABEL_VALUE:
        return Allowed()
    if not any(by_reference(asked, settings.vendors) for asked in request.containers):
        return Allowed()
    for (place, _, container), asked in zip(containers_of(pod), request.containers, strict=True):
        broken = _broken_reference(container, asked, settings)
        if broken:
            return Denied(403, f"{place}: environment {broken} must refer to hami's annotation")
    return Allowed()


def _broken_reference(container: Container, asked: ContainerRequest, settings: AdmissionSettings) -> str:
    """The first variable of ours that is missing or points elsewhere; the last entry of a name is the one that counts.

    A container that asks for nothing may have come from another webhook after ours: it need not say that it sees no device, but
    it may not say otherwise.
    """
    if not by_reference(asked, settings.vendors):
        return next((e.name for e in container.env or () if identity.is_identity_env(e.name) and not shows_nothing(e)), "")
    for request in asked.requests:
        vendor = by_word(settings.vendors, request.vendor)
        if vendor is None or not vendor.identity:
            continue
        there = {env.name: env for env in container.env or ()}
        for name, key in identity.references(asked.name, request.count).items():
            if name not in there or not refers_to(there[name], key):
                return name
    return ""


def _updated(review: Review, settings: AdmissionSettings) -> Allowed | Denied:
    old, new = review.old or Pod(), review.new or Pod()
    exact = settings.reserved
    before, after = old.metadata.notes, new.metadata.notes
    for key in sorted({*before, *after}):
        if identity.is_reserved(key, exact) and before.get(key) != after.get(key):
            return Denied(403, f"annotation {key} is reserved: only hami changes it")
    if (old.metadata.labels or {}).get(identity.LABEL) != (new.metadata.labels or {}).get(identity.LABEL):
        return Denied(403, f"label {identity.LABEL} is reserved: only hami changes it")
    return _debuggers(new.spec.ephemeral_containers or (), before=old.spec.ephemeral_containers or ())


def _debuggers(containers: Sequence[Container], before: Sequence[Container]) -> Allowed | Denied:
    """An ephemeral container added to our pod says that it sees no device, as the mutating webhook has it say.

    Saying nothing is not enough: its image, or a ConfigMap that it takes its environment from, may say `all`.
    """
    known = {each.name for each in before}
    for each in containers:
        if each.name in known:
            continue
        ours = [env for env in each.env or () if identity.is_identity_env(env.name)]
        wrong = next((env.name for env in ours if not shows_nothing(env)), "")
        if wrong:
            return Denied(403, f"ephemeral container {each.name}: environment {wrong} is not for users to set")
        if not ours:
            return Denied(403, f"ephemeral container {each.name}: must set {identity.VISIBLE_ENV}={identity.NO_DEVICE}")
    return Allowed()
