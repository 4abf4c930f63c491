"""Cases from HAMi's tests about locks, running pods and links: what decides beside placement."""

from collections.abc import Callable, Mapping
from typing import Final

from hami.domain.allocation import Allocation, Phase
from hami.domain.cluster import ClusterSnapshot
from hami.domain.device import MigPlacement, MigSlice
from hami.events.catalog.allocation import AllocationReleased
from hami.events.memory_locks import LockRules
from hami.nodeagent.decide.topology import pair_score
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.scheduler.decide.reconcile import PodFacts, reconcile
from tests.conformance.outcome import PASSED, Outcome, difference, documented, failed
from tests.conformance.world import Case
from tests.support.builders import (
    a_bound,
    a_container,
    a_device,
    a_node_registered,
    a_reservation,
    a_reserved,
    a_share,
    records_of,
)
from tests.support.clusters import VENDORS

_TTL_MS: Final = 300_000
_LANES: Final[Mapping[str, int]] = {"SingleNVLINKLink": 1, "FourNVLINKLinks": 4}


def check(case: Case) -> Outcome | None:
    """None for a kind that is not looked at here."""
    kind = case["kind"]
    if case["id"] == "lock-malformed" or kind == "lock_all":
        return documented("lock")
    if kind not in _CHECKS:
        return None
    ours = _CHECKS[kind](case["input"])
    return PASSED if ours == case["expect"] else failed(difference(kind, ours, case["expect"]))


def _lock_node(given: Case) -> Case:
    rules, now = LockRules(), 10 * _TTL_MS
    if given["existing_lock"] is not None:
        when, namespace, name = given["existing_lock"].split(",")
        taken = now - 1 if when == "<now>" else now - 2 * _TTL_MS
        assert rules.acquire(f"{namespace}/{name}", taken, _TTL_MS, 0) == ""
    got = rules.acquire(given["requester"], now, _TTL_MS, 0)
    return {"result": "acquired" if isinstance(got, str) else "error: contention"}


def _pod_cache(given: Case) -> Case:
    """Whether a pod's devices are still held after each of its events."""
    facts = {
        "add running": PodFacts(uid="u1", namespace="default", name="p", node="n1", phase="Running"),
        "add with deletionTimestamp": PodFacts(uid="u1", namespace="default", name="p", node="n1", phase="Running"),
        "add phase Succeeded": PodFacts(uid="u1", namespace="default", name="p", node="n1", phase="Succeeded"),
    }
    made = Allocation(reservation=a_reservation("r1"), phase=Phase.BOUND)
    held = ClusterSnapshot(allocations={"r1": made}, by_owner={"u1": "r1"})
    kept = [
        not any(isinstance(each, AllocationReleased) for each in reconcile(held, {"u1": facts[event]}, VENDORS, now_ms=0))
        for event in given["events"]
    ]
    return {"in_cache": kept}


def _mig_usage(given: Case) -> Case:
    device = given["device"]
    slices = [
        MigSlice(each["profile"], MigPlacement(each["placement"]["start"], each["placement"]["size"]))
        for each in given["mig_annotation"]
    ]
    card = a_device(device["id"])
    shares = [a_share(device["id"], 5120, 14, mig=each) for each in slices]
    made = a_reservation("r1", a_container(*shares))
    state = new_cluster()
    for record in records_of([a_node_registered(card), a_reserved(made), a_bound(made)]):
        apply(state, record)
    [known] = snapshot(state).nodes["n1"].devices
    return {
        "health": known.schedulable,
        "placements_in_use": [{"start": each.placement.start, "size": each.placement.size} for each in known.mig_in_use],
    }


def _pair_score(given: Case) -> Case:
    """Links by name, as HAMi's tests have them; a level is the same seen from both ends."""
    there, back = (
        [other for link in given[key] for other in [name] * _LANES.get(link, 0)]
        for key, name in (("links_0_to_1", "b"), ("links_1_to_0", "a"))
    )
    level = 20 if any(link == "P2PLinkSameCPU" for link in given["links_0_to_1"]) else None
    score = pair_score(level, "a", "b", {"a": there, "b": back})
    return {"score": score, "asymmetric": len(there) != len(back)}


_CHECKS: Final[Mapping[str, Callable[[Case], Case]]] = {
    "lock_node": _lock_node,
    "pod_cache": _pod_cache,
    "mig_usage": _mig_usage,
    "pair_score": _pair_score,
}
