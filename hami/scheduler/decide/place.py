"""Where a pod goes: among the candidates that fit, the node its policy prefers; equal nodes by name, lowest first.

`place` asks the planes and lets `fit` judge; `place_exactly` judges every candidate. Both give the same answer.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hami.domain.allocation import Allocation, ContainerShares, shares_of, usage_of
from hami.domain.cluster import ClusterSnapshot, Liveness, NodeState
from hami.domain.device import DeviceState, DeviceUsage, MigSlice
from hami.domain.reasons import NodeReason
from hami.domain.request import PodRequest
from hami.scheduler.decide.fit import Fit, Misfit, Question, fit_node, question
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.quota import budget_of
from hami.scheduler.decide.score import node_score
from hami.vendors.vendor import Vendor


@dataclass(frozen=True)
class Placement:
    """The chosen node and the cards there. `fitting` is how many candidates could have taken the pod (as far as known)."""

    node: str
    score: float
    containers: tuple[ContainerShares, ...]
    fitting: int
    explain: Callable[[], dict[str, str]]

    @property
    def failed(self) -> dict[str, str]:
        """Why the other candidates do not fit; worked out when asked for, so ask before the next event is applied."""
        return self.explain()


class Unschedulable(msgspec.Struct, frozen=True):
    """No candidate fits. `counts`: on how many nodes each word was a reason."""

    reasons: dict[str, str]
    counts: dict[str, int]


def node_refusal(node: NodeState | None) -> NodeReason | None:
    """Why a node is not looked at."""
    if node is None or not node.devices:
        return NodeReason.UNREGISTERED
    if node.quarantine:
        return NodeReason.QUARANTINED
    return NodeReason.LOST if node.liveness is Liveness.LOST else None


def ask(
    snapshot: ClusterSnapshot, vendors: Sequence[Vendor], request: PodRequest, policy: SchedulingPolicy, exclude_owner: str
) -> Question:
    budgets = {
        vendor.word: budget_of(snapshot, request.namespace, vendor, exclude_owner=exclude_owner)
        for vendor in vendors
        if vendor.quota_at_fit
    }
    return question(request, policy, vendors, budgets)


def judge(node: NodeState | None, asked: Question) -> Fit | Misfit:
    refusal = node_refusal(node)
    if refusal is not None or node is None:
        return Misfit((refusal or NodeReason.UNREGISTERED).value)
    return fit_node(node, asked)


def place_exactly(
    snapshot: ClusterSnapshot,
    vendors: Sequence[Vendor],
    request: PodRequest,
    candidates: Sequence[str],
    policy: SchedulingPolicy,
    *,
    exclude_owner: str = "",
) -> Placement | Unschedulable:
    """Every candidate judged: the reference, the dry run, and what `explain` shows."""
    scores, failed, fits = score_all(snapshot, vendors, request, candidates, policy, exclude_owner=exclude_owner)
    if not scores:
        return Unschedulable(failed, reason_counts(failed))
    best = (min if policy.spreads_nodes else max)(scores.values())
    winner = min(name for name, score in scores.items() if score == best)
    return Placement(winner, best, fits[winner], len(scores), lambda: failed)


def score_all(
    snapshot: ClusterSnapshot,
    vendors: Sequence[Vendor],
    request: PodRequest,
    candidates: Sequence[str],
    policy: SchedulingPolicy,
    *,
    exclude_owner: str = "",
) -> tuple[dict[str, float], dict[str, str], dict[str, tuple[ContainerShares, ...]]]:
    """Scores and cards of the candidates that fit, reasons of those that do not."""
    asked = ask(snapshot, vendors, request, policy, exclude_owner)
    own = own_node(snapshot, exclude_owner)
    scores: dict[str, float] = {}
    failed: dict[str, str] = {}
    fits: dict[str, tuple[ContainerShares, ...]] = {}
    for name in dict.fromkeys(candidates):
        node = own if own is not None and own.name == name else snapshot.nodes.get(name)
        verdict = judge(node, asked)
        if isinstance(verdict, Misfit) or node is None:
            failed[name] = verdict.reason if isinstance(verdict, Misfit) else NodeReason.UNREGISTERED.value
        else:
            scores[name], fits[name] = node_score(node.devices), verdict.containers
    return scores, failed, fits


def own_node(snapshot: ClusterSnapshot, owner: str) -> NodeState | None:
    """The node that holds the owner's live allocation, as it would be without it."""
    own = snapshot.allocation_of(owner) if owner else None
    if own is None or not own.live:
        return None
    node = snapshot.nodes.get(own.reservation.node)
    return None if node is None else without(node, own)


def without(node: NodeState, allocation: Allocation) -> NodeState:
    held = usage_of(allocation.reservation.containers, init_done=allocation.init_done)
    cut: dict[str, list[MigSlice]] = {}
    for share in shares_of(allocation.reservation.containers):
        if share.mig is not None:
            cut.setdefault(share.uuid, []).append(share.mig)
    devices = []
    for each in node.devices:
        uuid = each.device.uuid
        if uuid in held:
            devices.append(_freed(each, held[uuid], cut.get(uuid, [])))
        else:
            devices.append(each)
    return msgspec.structs.replace(node, devices=tuple(devices))


def _freed(state: DeviceState, held: DeviceUsage, slices: list[MigSlice]) -> DeviceState:
    gone = [(each.profile, each.placement) for each in slices]
    kept = []
    for each in state.mig_in_use:
        if (each.profile, each.placement) in gone:
            gone.remove((each.profile, each.placement))
        else:
            kept.append(each)
    return msgspec.structs.replace(state, used=state.used.minus(held), mig_in_use=tuple(kept))


def reason_counts(failed: Mapping[str, str]) -> dict[str, int]:
    """On how many nodes each word stands: `3/4 CardInsufficientMemory` counts its node once."""
    counts: Counter[str] = Counter()
    for text, nodes in Counter(failed.values()).items():
        for word in {item.rpartition(" ")[2] for item in text.split(", ")} if text[:1].isdigit() else {text}:
            counts[word] += nodes
    return dict(sorted(counts.items()))
