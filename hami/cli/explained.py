"""From a pod's story and the cluster as it is now: why it waits, or where it is. Values in, values out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hami.cli.podstory import PodStory
from hami.cli.when import shown
from hami.domain.allocation import Allocation, Phase, shares_of
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import PodRequest
from hami.events.catalog.allocation import AllocationReleased
from hami.events.lease import LockState
from hami.scheduler.decide.place import score_all
from hami.scheduler.decide.policies import SchedulingPolicy, policy_of
from hami.scheduler.decide.retrace import asked_then, rules_of
from hami.scheduler.decide.shortages import QuotaLine, Shortage, quota_lines, shortages
from hami.scheduler.decide.words import words_of

_WAITING = {
    Phase.RESERVED: "placed, waiting to be bound",
    Phase.BOUND: "bound, its containers have not been given their devices yet",
    Phase.PREPARED: "running: its containers have their devices",
}


@dataclass
class Explained:
    """`status` is a sentence; what does not apply is empty."""

    uid: str
    key: str
    status: str
    pending: bool
    asked: str = ""
    node: str = ""
    refused: str = ""
    notes: list[str] = field(default_factory=list)
    fitting: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    shortages: list[Shortage] = field(default_factory=list)
    quotas: list[QuotaLine] = field(default_factory=list)
    locks: list[LockState] = field(default_factory=list)

    def part_in(self, lock: LockState) -> str:
        if lock.holder == self.uid:
            return "holds it"
        return f"waits, {lock.waiters.index(self.uid)} ahead" if self.uid in lock.waiters else "would have to wait"

    def document(self) -> dict[str, Any]:
        return {
            "pod": self.key,
            "uid": self.uid,
            "status": self.status,
            "pending": self.pending,
            "asked": self.asked or None,
            "node": self.node or None,
            "last_refusal": self.refused or None,
            "notes": self.notes,
            "reasons": [
                {
                    "reason": each.reason,
                    "nodes": each.nodes,
                    "asked": each.asked or None,
                    "best": each.best or None,
                    "change": each.change or None,
                }
                for each in self.shortages
            ],
            "nodes_that_fit": list(self.fitting),
            "nodes_that_do_not": self.failed,
            "quotas": [
                {
                    "quota": each.quota,
                    "vendor": each.vendor,
                    "of": each.what,
                    "asked": each.asked,
                    "used": each.used,
                    "limit": each.limit,
                    "exceeded": each.exceeded,
                }
                for each in self.quotas
            ],
            "locks": [
                {
                    "lock": each.lock,
                    "holder": each.holder,
                    "age_ms": each.age_ms,
                    "waiters": each.waiters,
                    "this_pod": self.part_in(each),
                }
                for each in self.locks
            ],
        }


def explained(story: PodStory, now: ClusterSnapshot, locks: Sequence[LockState]) -> Explained:
    held = now.allocation_of(story.uid)
    found = _placed(story, held) if held is not None else _without(story)
    asked = story.requested or story.refused
    found.asked = "" if asked is None else asked.request
    if story.refused is not None and story.refused_at is not None:
        counts = ", ".join(f"{word} on {nodes}" for word, nodes in story.refused.counts.items())
        when = shown(story.refused_at.recorded_ms)
        found.refused = f"{when} on all of {story.refused.nodes_seen} nodes offered: {counts}"
    if story.timed_out is not None:
        waited = story.timed_out
        found.notes.append(f"a bind gave up waiting for the lock of {waited.lock}, held by {waited.holder or 'nobody known'}")
    nodes = {found.node} if found.node else set()
    found.locks = [each for each in locks if each.lock in nodes or story.uid in {each.holder, *each.waiters}]
    if found.pending and held is None:
        _judge(story, now, found)
    return found


def _placed(story: PodStory, held: Allocation) -> Explained:
    made = held.reservation
    found = Explained(story.uid, story.key, _WAITING[held.phase], held.phase is Phase.RESERVED, node=made.node)
    cards = ", ".join(f"{each.uuid} ({each.memory} MiB, {each.cores} % cores)" for each in shares_of(made.containers))
    found.notes.append(f"reservation {made.id}, score {made.score:.4f}, cards: {cards or 'none'}")
    if held.phase is Phase.RESERVED:
        found.notes.append(f"the reservation lapses at {shown(made.deadline_ms)} if no bind comes")
    return found


def _without(story: PodStory) -> Explained:
    """No live allocation: gone, or pending."""
    if isinstance(story.ended, AllocationReleased):
        node = story.reservation.node if story.reservation is not None else ""
        return Explained(story.uid, story.key, f"gone: its devices are free again ({story.ended.reason})", False, node=node)
    found = Explained(story.uid, story.key, "pending", True)
    if story.ended is not None and story.reservation is not None:
        how = "lapsed" if "lapsed" in story.ended.TYPE else "failed"
        found.notes.append(f"its last reservation, on {story.reservation.node}, {how}: {story.ended.reason}")
    return found


def _judge(story: PodStory, now: ClusterSnapshot, found: Explained) -> None:
    """The pod against the cluster as it is now, by the newest policy on record."""
    if story.requested is None or not story.requested.containers:
        found.notes.append("the log does not hold its request in full: only what was said when it was refused can be shown")
        return
    request: PodRequest = asked_then(story.requested)
    vendors, defaults = rules_of(next(reversed(story.policies.values()), {}))
    found.asked = words_of(request)
    policy = policy_of(request.annotations, defaults)
    if not isinstance(policy, SchedulingPolicy):
        found.notes.append(policy.message)
        return
    scores, failed, _ = score_all(now, vendors, request, tuple(now.nodes), policy)
    found.failed, found.fitting = failed, tuple(sorted(scores))
    found.quotas = quota_lines(now, vendors, request)
    if scores:
        found.status = f"pending, though {len(scores)} of {len(now.nodes)} nodes would fit now: the next try should place it"
        return
    found.status = "pending: no node fits" if now.nodes else "pending: no node has registered devices"
    found.shortages = shortages(now, vendors, request, failed)
