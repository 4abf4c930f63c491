"""A past decision taken again: on the state it was taken on, by the rules of that day.

What the log does not hold: which of the registered nodes kube-scheduler offered. Every node registered then is a candidate
here, so a better one than the recorded node may simply not have been offered; `Retraced.verdict` says so.
"""

from collections.abc import Mapping, Sequence

import msgspec

from hami.domain.allocation import Reservation
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import InvalidInput
from hami.domain.request import PodRequest
from hami.events.catalog.governance import PlacementRequested
from hami.scheduler.decide.place import score_all
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy, policy_of
from hami.scheduler.decide.reserve import request_digest
from hami.vendors.config import DeviceConfig
from hami.vendors.registry import vendors_of
from hami.vendors.vendor import Vendor


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its score where the pod fits, the reason where it does not."""

    node: str
    score: float | None = None
    reason: str = ""


class Retraced(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates in the order in which the policy prefers them, those that do not fit last."""

    candidates: tuple[Candidate, ...]
    winner: str
    same_node: bool
    same_cards: bool
    verdict: str


def asked_then(event: PlacementRequested) -> PodRequest:
    """The request as it reached the scheduler. Raises InvalidInput for an event written before containers were recorded."""
    if not event.containers:
        raise InvalidInput("placement.requested", event.request, "the log does not hold this request in full")
    return PodRequest(
        uid=event.owner_uid,
        namespace=event.namespace,
        name=event.name,
        containers=event.containers,
        annotations=dict(event.wishes),
    )


def rules_of(settings: Mapping[str, str]) -> tuple[tuple[Vendor, ...], SchedulingPolicy]:
    """Vendors and defaults as `PolicyChanged` recorded them. Raises InvalidInput."""
    text = settings.get("device_config", "{}")
    try:
        config = msgspec.json.decode(text, type=DeviceConfig)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("policy.changed device_config", text[:80], str(error)) from error
    default = SchedulingPolicy()
    return vendors_of(config), SchedulingPolicy(
        node=settings.get("node_policy", default.node), device=settings.get("gpu_policy", default.device)
    )


def retrace(
    snapshot: ClusterSnapshot,
    vendors: Sequence[Vendor],
    defaults: SchedulingPolicy,
    request: PodRequest,
    made: Reservation,
) -> Retraced:
    """`snapshot` is the state right before the reservation was written."""
    if made.request_digest and request_digest(request) != made.request_digest:
        raise InvalidInput("request", request.name, "what the log recorded is not what this reservation was made for")
    policy = policy_of(request.annotations, defaults)
    if isinstance(policy, BadPolicy):
        raise InvalidInput("policy", request.name, policy.message)
    scores, failed, fits = score_all(snapshot, vendors, request, tuple(snapshot.nodes), policy, exclude_owner=request.uid)
    sign = 1 if policy.spreads_nodes else -1
    order = sorted(scores, key=lambda name: (sign * scores[name], name))
    found = [Candidate(node=name, score=scores[name]) for name in order]
    found += [Candidate(node=name, reason=failed[name]) for name in sorted(failed)]
    winner = order[0] if order else ""
    same_cards = fits.get(made.node) == made.containers
    return Retraced(
        candidates=tuple(found),
        winner=winner,
        same_node=winner == made.node,
        same_cards=same_cards,
        verdict=_verdict(made.node, order, failed, same_cards=same_cards),
    )


def _verdict(node: str, order: Sequence[str], failed: Mapping[str, str], *, same_cards: bool) -> str:
    if node in failed or node not in order:
        return f"different: {node} would not be chosen now ({failed.get(node, 'it was not registered')})"
    place = order.index(node)
    if place:
        return f"{place} of {len(order)} nodes that fit rank before {node}: they were not offered, or changed in that moment"
    return "the same: node and cards" if same_cards else "the same node, but other cards"
