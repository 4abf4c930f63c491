"""Compares the pods of the API with the log every `reconcile_s` and writes what makes the log true again."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import anyio
import msgspec

from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import Conflict
from hami.events.catalog.allocation import AllocationReleased, AllocationReserved
from hami.events.catalog.journal import Corrected
from hami.scheduler.core import Core, Decision
from hami.scheduler.decide.reconcile import Action, PodFacts, reconcile
from hami.scheduler.inventory import Inventory
from hami.scheduler.notes import Once
from hami.scheduler.podfacts import as_decision, by_pod, known, owner_of
from hami.scheduler.turns import breathe, slices
from hami.telemetry import get_logger

Compared = tuple[ClusterSnapshot, Mapping[str, PodFacts]]

_FIRST_LOOK_S: Final = 0.1
_log = get_logger("scheduler.reconcile")


class _Doubt(msgspec.Struct, frozen=True):
    """A pod that is taken for gone, or for running, and must be looked at before that is believed."""

    uid: str
    namespace: str
    name: str
    gone: bool


def _doubt(snapshot: ClusterSnapshot, uid: str, group: list[Action], pods: Mapping[str, PodFacts]) -> _Doubt | None:
    """Taken before anything is awaited. Adopting a pod that the log has heard of needs a look: it may have just ended."""
    owner = owner_of(snapshot, uid)
    if owner is not None and any(isinstance(each, AllocationReleased) and each.reason == "pod_absent" for each in group):
        return _Doubt(uid, owner.namespace, owner.name, gone=True)
    if known(snapshot, uid) and any(isinstance(each, AllocationReserved) for each in group):
        return _Doubt(uid, pods[uid].namespace, pods[uid].name, gone=False)
    return None


class ReconcileLoop:
    def __init__(self, core: Core, inventory: Inventory) -> None:
        self._core, self._inventory = core, inventory
        self._told = Once()

    async def run(self) -> None:
        while not self._inventory.synced:  # noqa: ASYNC110 - once, at start
            await anyio.sleep(_FIRST_LOOK_S)
        while True:
            await self.once()
            await anyio.sleep(self._core.settings.reconcile_s)

    async def once(self) -> int:
        """How many differences there were. Looks at a slice at a time: a filter never waits for the whole comparison."""
        found = 0
        for part in slices(sorted(self._core.view.snapshot().allocations)):
            found += await self._compare(partial(held_and_their_pods, ids=part))
        for part in slices(sorted(self._inventory.pods)):
            found += await self._compare(partial(pods_without_any, uids=part))
        self._core.metrics.drift.set(found)
        self._core.metrics.comparisons.inc()
        return found

    async def _compare(self, chosen: Callable[[ClusterSnapshot, Mapping[str, PodFacts]], Compared]) -> int:
        snapshot = self._core.view.snapshot()
        narrowed, pods = chosen(snapshot, self._inventory.pods)
        now = self._core.clock.now()
        actions = [each for each in reconcile(narrowed, pods, self._core.vendors, now_ms=now) if self._is_news(each)]
        # Versions are those of the comparison: whatever changes meanwhile wins, and the next round compares anew.
        found = [
            (uid, as_decision(snapshot, uid, group), _doubt(snapshot, uid, group, pods)) for uid, group in by_pod(actions, pods)
        ]
        for uid, decision, doubt in found:
            if doubt is None or await self._holds(doubt):
                await self._correct(uid, decision)
        await breathe()
        return len(actions)

    def _is_news(self, action: Action) -> bool:
        """What cannot be corrected is told once, not at every comparison."""
        return not isinstance(action, Corrected) or self._told.news(action.what, f"{action.fold_said} {action.api_said}")

    async def _holds(self, doubt: "_Doubt") -> bool:
        """The kept pods may be older than the view; what rests on them alone is asked for by name."""
        pod = await self._core.api.get_pod(doubt.namespace, doubt.name)
        there = pod is not None and pod.metadata.uid == doubt.uid and not pod.finished
        return there is not doubt.gone

    async def _correct(self, uid: str, decision: Decision) -> None:
        drafts, expected = decision
        try:
            await self._core.loop_writer.append(drafts, expected=expected)
        except Conflict:
            self._core.metrics.conflicts.labels("reconcile").inc()
            return
        for each in drafts:
            self._core.metrics.corrections.labels(each.event.TYPE).inc()
        _log.info("log corrected by the API", pod_uid=uid, events=[each.event.TYPE for each in drafts])


def held_and_their_pods(snapshot: ClusterSnapshot, pods: Mapping[str, PodFacts], *, ids: Sequence[str]) -> Compared:
    """These allocations, as far as they are still there, and their owners' pods."""
    held = {each: snapshot.allocations[each] for each in ids if each in snapshot.allocations}
    owners = {each.reservation.owner.uid: key for key, each in held.items()}
    narrowed = ClusterSnapshot(allocations=held, by_owner=owners, versions=snapshot.versions)
    return narrowed, {uid: pods[uid] for uid in owners if uid in pods}


def pods_without_any(snapshot: ClusterSnapshot, pods: Mapping[str, PodFacts], *, uids: Sequence[str]) -> Compared:
    """Those of these pods that hold nothing."""
    bare = {uid: pods[uid] for uid in uids if uid in pods and uid not in snapshot.by_owner}
    return ClusterSnapshot(versions=snapshot.versions), bare
