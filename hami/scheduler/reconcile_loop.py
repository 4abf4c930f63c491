"""Compares the pods of the API with the log every `reconcile_s` and writes what makes the log true again."""

import anyio

from hami.domain.errors import Conflict
from hami.events.catalog.allocation import AllocationReleased
from hami.events.catalog.journal import Corrected
from hami.scheduler.core import Core, Decision
from hami.scheduler.decide.reconcile import Action, reconcile
from hami.scheduler.inventory import Inventory, absent
from hami.scheduler.notes import Once
from hami.scheduler.podfacts import as_decision, by_pod
from hami.telemetry import get_logger

_log = get_logger("scheduler.reconcile")


class ReconcileLoop:
    def __init__(self, core: Core, inventory: Inventory) -> None:
        self._core, self._inventory = core, inventory
        self._told = Once()

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._core.settings.reconcile_s)
            if self._inventory.synced:
                await self.once()

    async def once(self) -> int:
        """How many differences there were."""
        snapshot, pods = self._core.view.snapshot(), self._inventory.pods
        actions = [
            each for each in reconcile(snapshot, pods, self._core.vendors, now_ms=self._core.clock.now()) if self._is_news(each)
        ]
        self._core.metrics.drift.set(len(actions))
        # Versions are those of the comparison: whatever changes meanwhile wins, and the next round compares anew.
        found = [(uid, group, as_decision(snapshot, uid, group)) for uid, group in by_pod(actions, pods)]
        for uid, group, decision in found:
            if not await self._only_late(uid, group):
                await self._correct(uid, decision)
        self._core.metrics.comparisons.inc()
        return len(actions)

    def _is_news(self, action: Action) -> bool:
        """What cannot be corrected is told once, not at every comparison."""
        return not isinstance(action, Corrected) or self._told.news(action.what, f"{action.fold_said} {action.api_said}")

    async def _only_late(self, uid: str, group: list[Action]) -> bool:
        """The kept list may be older than the view: before a pod counts as gone the API is asked for it by name."""
        gone = any(isinstance(each, AllocationReleased) and each.reason == "pod_absent" for each in group)
        return gone and not await absent(self._core, uid)

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
