"""Where a pod goes: among the candidates that fit, the node its policy prefers; equal nodes by name, lowest first.

`place` asks the planes and lets `fit` judge; `place_exactly` judges every candidate. Both give the same answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from hami.domain.allocation import Allocation, ContainerShares, notes_of, shares_of, usage_of
from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import DeviceState, DeviceUsage, MigSlice
from hami.domain.reasons import NodeReason
from hami.domain.request import PodRequest
from hami.scheduler.decide.cards import Question
from hami.scheduler.decide.fit import Fit, Misfit, fit_node, question
from hami.scheduler.decide.planes import REFUSALS, Entry, Ints, Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.quota import budget_of
from hami.scheduler.decide.refusals import node_refusal, reason_counts
from hami.scheduler.decide.score import node_score
from hami.scheduler.decide.vendorscore import added_score, scored
from hami.scheduler.decide.verdicts import entry_of, reasons_at, ruled_out
from hami.vendors.vendor import Vendor

_PATIENCE: Final = 16
"""Exact fits in a row that may fail before all that is left is walked at once."""


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


def place(
    snapshot: ClusterSnapshot,
    planes: Planes,
    request: PodRequest,
    candidates: Sequence[str],
    policy: SchedulingPolicy,
    *,
    exclude_owner: str = "",
) -> Placement | Unschedulable:
    """The fast way: planes say where the pod may fit and what each node scores, the exact fit judges the best until one fits.

    The planes must stand at the snapshot's position. The owner's own live allocation does not count against it.
    """
    search = _Search(snapshot, planes, request, candidates, policy, exclude_owner)
    won = search.best()
    if won is None:
        reasons = search.reasons()
        return Unschedulable(reasons, reason_counts(reasons))
    name, score, fit = won
    return Placement(name, score, fit.containers, search.fitting, search.reasons)


class _Search:
    """One call of `place`."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        planes: Planes,
        request: PodRequest,
        candidates: Sequence[str],
        policy: SchedulingPolicy,
        owner: str,
    ) -> None:
        self.snapshot, self.planes, self.policy, self.candidates = snapshot, planes, policy, candidates
        self.asked = ask(snapshot, planes.vendors, request, policy, owner)
        self.entry: Entry = entry_of(planes, self.asked)
        self.rows: Ints = planes.rows_of(candidates)
        self.own = own_node(snapshot, owner)
        asked = planes.mask_of(candidates)
        self.open = asked & self.entry.mask
        self.own_fit: Fit | None = None
        if self.own is not None and (row := planes.rows.get(self.own.name)) is not None:
            if asked[row] and isinstance(verdict := judge(self.own, self.asked), Fit):
                self.own_fit = verdict
            self.open[row] = False

    @property
    def fitting(self) -> int:
        return int(np.count_nonzero(self.open)) + (self.own_fit is not None)

    def best(self) -> tuple[str, float, Fit] | None:
        return self._best_of_all() if scored(self.asked) else self._best_first()

    def _best_of_all(self) -> tuple[str, float, Fit] | None:
        """The cards chosen decide the score, so every node that may fit is judged."""
        found: dict[str, tuple[float, Fit]] = {}
        for row in np.flatnonzero(self.open).tolist():
            node = self.snapshot.nodes.get(self.planes.names[row])
            verdict = judge(node, self.asked)
            if isinstance(verdict, Fit) and node is not None:
                found[node.name] = (full_score(node, verdict, self.asked), verdict)
            else:
                self.open[row] = self.entry.mask[row] = False
        if self.own is not None and self.own_fit is not None:
            found[self.own.name] = (full_score(self.own, self.own_fit, self.asked), self.own_fit)
        if not found:
            return None
        pick = min if self.policy.spreads_nodes else max
        best = pick(score for score, _ in found.values())
        name = min(name for name, (score, _) in found.items() if score == best)
        return name, *found[name]

    def _best_first(self) -> tuple[str, float, Fit] | None:
        """Nodes in the order of their score, until one fits."""
        worst = np.float32(-np.inf)
        scores = self.planes.score[: len(self.open)]
        pull = np.where(self.open, -scores if self.policy.spreads_nodes else scores, worst)
        failures = 0
        while len(pull) and (top := pull.max()) > worst:
            if failures == _PATIENCE:
                self._rule_out()
                pull[~self.open] = worst
                failures += 1
                continue
            tied = np.flatnonzero(pull == top)
            row = int(tied[np.argmin(self.planes.ranks()[tied])]) if len(tied) > 1 else int(tied[0])
            name = self.planes.names[row]
            score = float(scores[row])
            if self._own_is_better(name, score):
                break
            verdict = judge(self.snapshot.nodes.get(name), self.asked)
            if isinstance(verdict, Fit):
                return name, score, verdict
            pull[row], self.open[row] = worst, False
            self.entry.mask[row] = False
            failures += 1
        if self.own is None or self.own_fit is None:
            return None
        return self.own.name, node_score(self.own.devices), self.own_fit

    def _rule_out(self) -> None:
        """Node after node only seemed to fit: the walk over all that are left, in one go, is cheaper than judging each."""
        gone = ruled_out(self.planes, self.asked, self.entry, np.flatnonzero(self.open))
        self.open[gone] = self.entry.mask[gone] = False

    def _own_is_better(self, name: str, score: float) -> bool:
        if self.own is None or self.own_fit is None:
            return False
        own = node_score(self.own.devices)
        if own == score:
            return self.own.name < name
        return own < score if self.policy.spreads_nodes else own > score

    def reasons(self) -> dict[str, str]:
        """Why the candidates that cannot fit do not; those that may fit are judged only if they come up."""
        names = np.asarray(self.candidates, np.object_) if self.candidates else np.zeros(0, np.object_)
        found: dict[str, str] = {}
        rows = self.rows
        unknown = rows < 0
        refused = np.where(unknown, 1, self.planes.refusal[rows])
        for number in np.flatnonzero(refused):
            found[names[number]] = str(REFUSALS[refused[number]])
        closed = np.zeros(len(rows), np.bool_)
        inside = (refused == 0) & ~unknown
        closed[inside] = ~self.open[rows[inside]]
        own = self.own
        if own is not None and own.name in self.planes.rows:
            closed &= rows != self.planes.rows[own.name]
        texts = reasons_at(self.planes, self.asked, self.entry, rows[closed], self._exactly)
        found.update(zip(names[closed].tolist(), texts, strict=True))
        if own is not None and own.name in self.candidates and isinstance(verdict := judge(own, self.asked), Misfit):
            found[own.name] = verdict.reason
        return found

    def _exactly(self, name: str) -> str:
        verdict = judge(self.snapshot.nodes.get(name), self.asked)
        return verdict.reason if isinstance(verdict, Misfit) else ""


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
            scores[name], fits[name] = full_score(node, verdict, asked), verdict.containers
    return scores, failed, fits


def full_score(node: NodeState, fit: Fit, asked: Question) -> float:
    """The node as it stands, and what vendors add for the cards chosen."""
    score = node_score(node.devices)
    return float(np.float32(score) + np.float32(added_score(node, fit.containers, asked))) if scored(asked) else score


def own_node(snapshot: ClusterSnapshot, owner: str) -> NodeState | None:
    """The node that holds the owner's live allocation, as it would be without it."""
    own = snapshot.allocation_of(owner) if owner else None
    if own is None or not own.live:
        return None
    node = snapshot.nodes.get(own.reservation.node)
    return None if node is None else without(node, own)


def without(node: NodeState, allocation: Allocation) -> NodeState:
    held = usage_of(allocation.reservation.containers, init_done=allocation.init_done)
    notes = notes_of(allocation.reservation.containers, init_done=allocation.init_done)
    cut: dict[str, list[MigSlice]] = {}
    for share in shares_of(allocation.reservation.containers):
        if share.mig is not None:
            cut.setdefault(share.uuid, []).append(share.mig)
    devices = []
    for each in node.devices:
        uuid = each.device.uuid
        if uuid in held:
            devices.append(_freed(each, held[uuid], cut.get(uuid, []), notes.get(uuid)))
        else:
            devices.append(each)
    return msgspec.structs.replace(node, devices=tuple(devices))


def _freed(state: DeviceState, held: DeviceUsage, slices: list[MigSlice], note: str | None) -> DeviceState:
    gone = [(each.profile, each.placement) for each in slices]
    kept = []
    for each in state.mig_in_use:
        if (each.profile, each.placement) in gone:
            gone.remove((each.profile, each.placement))
        else:
            kept.append(each)
    notes = list(state.notes)
    if note in notes:
        notes.remove(note)
    return msgspec.structs.replace(state, used=state.used.minus(held), mig_in_use=tuple(kept), notes=tuple(notes))
