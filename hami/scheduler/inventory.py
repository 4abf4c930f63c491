"""What Kubernetes says about nodes, pods and quotas, turned into events when it changes something.

Safe on every replica: an event rests on the version of what it is about, so the second one conflicts, looks again and finds
nothing left to say. Nothing here writes to Kubernetes.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import anyio
import anyio.lowlevel

from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import HamiError
from hami.domain.pod import Node, Pod, ResourceQuota
from hami.events.catalog.allocation import AllocationReleased
from hami.events.catalog.device import DeviceCordoned, DeviceUncordoned
from hami.events.catalog.governance import LockReclaimed
from hami.events.catalog.node import NodeRemoved
from hami.events.lease import Release
from hami.events.log import Draft
from hami.kube.kinds import NODES, PODS, QUOTAS
from hami.kube.results import Added, Deleted, Modified
from hami.kube.watch import Complete, Interrupted, Listed, Reflected, Reflector, Replaced, Source
from hami.scheduler.core import Core, Decision, at_versions
from hami.scheduler.decide.reconcile import PodFacts
from hami.scheduler.dryrun import cordoned_uuids
from hami.scheduler.podfacts import Relevance, owner_of, settle
from hami.scheduler.quotas import QuotaWatch
from hami.scheduler.turns import breathe, slices
from hami.telemetry import get_logger

CORDON: Final = "hami.io/device-cordon"
ANNOTATION: Final = "annotation"
"""The actor of a cordon that came from the node's annotation."""

_NONE: Final[frozenset[str]] = frozenset()
_log = get_logger("scheduler.inventory")


class Watcher(Protocol):
    """Hears of nodes and pods beside the inventory; must not wait."""

    def node_seen(self, node: Node) -> None: ...

    def node_gone(self, name: str) -> None: ...

    def nodes_unseen(self) -> None:
        """Nodes cannot be followed until one is seen again."""
        ...

    def pod_changed(self, pod: PodFacts) -> None: ...


class Inventory:
    """`pods` are the pods that matter here, by uid, as last seen. `watchers` may be added to before `run`."""

    def __init__(self, core: Core, source: Source) -> None:
        self._core = core
        self.pods: dict[str, PodFacts] = {}
        self.watchers: list[Watcher] = []
        self._relevance = Relevance(core.vendors)
        self._quotas = QuotaWatch(core)
        self._cordons: dict[str, frozenset[str]] = {}
        self._arriving: dict[str, PodFacts | None] = {}
        self._waiting_for = {"nodes", "pods", "quotas"}
        self._reflectors = (
            Reflector(source, NODES, self._on_node),
            Reflector(source, PODS, self._on_pod, in_pages=True),
            Reflector(source, QUOTAS, self._on_quota),
        )

    @property
    def synced(self) -> bool:
        """Every kind was listed completely once."""
        return not self._waiting_for

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for each in self._reflectors:
                tasks.start_soon(each.run)

    # --- nodes ---

    async def _on_node(self, event: Reflected[Node]) -> None:
        match event:
            case Added(node) | Modified(node):
                await self._node_seen(node)
            case Deleted(node):
                self._cordons.pop(node.metadata.name, None)
                for each in self.watchers:
                    each.node_gone(node.metadata.name)
                await self._node_gone(node.metadata.name, node.metadata.uid)
            case Replaced(items):
                for part in slices(items):
                    for node in part:
                        await self._node_seen(node)
                    await breathe()
                await self._missing_nodes({node.metadata.name for node in items})
                self._waiting_for.discard("nodes")
            case Interrupted(why):
                _log.warning("nodes cannot be followed", why=why)
                for watcher in self.watchers:
                    watcher.nodes_unseen()
            case _:
                pass

    async def _node_seen(self, node: Node) -> None:
        for each in self.watchers:
            each.node_seen(node)
        await self._cordon(node)

    async def _missing_nodes(self, listed: set[str]) -> None:
        """A node may have registered after the list was made: each missing one is asked for by name."""
        for name in sorted(set(self._core.view.snapshot().nodes) - listed):
            if await self._core.api.get_node(name) is None:
                await self._node_gone(name, "")

    async def _node_gone(self, name: str, uid: str) -> None:
        def decision(snapshot: ClusterSnapshot) -> Decision | None:
            known = snapshot.nodes.get(name)
            if known is None or (uid and known.uid and known.uid != uid):
                return None
            return [Draft(event=NodeRemoved(node_uid=uid or known.uid), node=name)], at_versions(snapshot, f"node/{name}")

        await self._core.decide("inventory", decision)

    async def _cordon(self, node: Node) -> None:
        """Only a change of the annotation moves a cordon, so that an operator's own cordons stay."""
        name = node.metadata.name
        wanted = cordoned_uuids(node.metadata.notes.get(CORDON, ""))
        before = self._cordons.get(name, _NONE)
        if wanted == before:
            return
        gone = before - wanted

        def decision(snapshot: ClusterSnapshot) -> Decision | None:
            known = snapshot.nodes.get(name)
            state = {each.device.uuid: each.cordoned for each in known.devices} if known is not None else {}
            drafts = [
                Draft(event=DeviceCordoned(device=uuid, actor=ANNOTATION, reason=CORDON), node=name, subject=uuid)
                for uuid in sorted(wanted)
                if not state.get(uuid, False)
            ]
            drafts += [
                Draft(event=DeviceUncordoned(device=uuid, actor=ANNOTATION, reason=CORDON), node=name, subject=uuid)
                for uuid in sorted(gone)
                if state.get(uuid, True)
            ]
            return (drafts, at_versions(snapshot, f"node/{name}")) if drafts else None

        await self._core.decide("inventory", decision)
        self._cordons[name] = wanted

    # --- pods ---

    async def _on_pod(self, event: Reflected[Pod]) -> None:
        match event:
            case Added(pod) | Modified(pod):
                await self._pod_seen(pod)
            case Deleted(pod):
                self.pods.pop(pod.metadata.uid, None)
                await self.pod_gone(pod.metadata.uid, "pod_deleted")
            case Listed(items, first):
                self._arrived(items, first=first)
            case Complete():
                await self._all_arrived()
                self._waiting_for.discard("pods")
            case Interrupted(why):
                _log.warning("pods cannot be followed", why=why)
            case _:
                pass

    async def _pod_seen(self, pod: Pod) -> None:
        facts = self._facts(pod)
        if facts is not None:
            await self._keep(facts)

    async def _keep(self, facts: PodFacts) -> None:
        if self.pods.get(facts.uid) == facts:
            return
        self.pods[facts.uid] = facts
        for each in self.watchers:
            each.pod_changed(facts)
        now = self._core.clock.now
        await self._core.decide("inventory", lambda snapshot: settle(snapshot, facts, self._core.vendors, now()))

    def _facts(self, pod: Pod) -> PodFacts | None:
        """None for a pod that does not matter here."""
        if not self._relevance.matters(pod) and owner_of(self._core.view.snapshot(), pod.metadata.uid) is None:
            return None
        return self._relevance.facts(pod)

    def _arrived(self, items: Sequence[Pod], *, first: bool) -> None:
        """One page of a list: its pods are dropped, their facts stay until the list is complete."""
        if first:
            self._arriving = {}
        for pod in items:
            self._arriving[pod.metadata.uid] = self._facts(pod)

    async def _all_arrived(self) -> None:
        listed, self._arriving = self._arriving, {}
        for uid in [uid for uid in self.pods if uid not in listed]:
            del self.pods[uid]
        for part in slices(list(listed.values())):
            for facts in part:
                if facts is not None:
                    await self._keep(facts)
            await breathe()
        owners = [held.reservation.owner.uid for held in self._core.view.snapshot().allocations.values()]
        for uid in owners:
            if uid not in listed and await absent(self._core, uid):
                await self.pod_gone(uid, "pod_absent")

    async def pod_gone(self, uid: str, reason: str) -> None:
        """Its devices are free, and the node lock it may hold or wait for goes to the next."""
        held = self._core.view.snapshot().allocation_of(uid)
        if held is not None:
            await self._core.decide("inventory", _released(uid, reason))
            await self._evict(held.reservation.node, uid)

    async def _evict(self, node: str, uid: str) -> None:
        try:
            freed = await self._core.store.locks.evict(node, uid)
        except HamiError as error:
            _log.warning("lock of a deleted pod not evicted, it will run out", lock=node, error=str(error))
            return
        if freed is Release.RELEASED:
            event = LockReclaimed(lock=node, owner=uid, why="its pod was deleted")
            self._core.notes.write(Draft(event=event, node=node, subject=uid))

    # --- quotas ---

    async def _on_quota(self, event: Reflected[ResourceQuota]) -> None:
        await self._quotas.on(event)
        if isinstance(event, Replaced):
            self._waiting_for.discard("quotas")


async def absent(core: Core, uid: str) -> bool:
    """Whether the API knows no pod of this uid any more. False also when the owner is no pod. Raises ApiError."""
    owner = owner_of(core.view.snapshot(), uid)
    if owner is None:
        return False
    pod = await core.api.get_pod(owner.namespace, owner.name)
    return pod is None or pod.metadata.uid != uid


def _released(uid: str, reason: str) -> Callable[[ClusterSnapshot], Decision | None]:
    def decision(snapshot: ClusterSnapshot) -> Decision | None:
        held = snapshot.allocation_of(uid)
        if held is None or not held.live:
            return None
        event = AllocationReleased(
            reservation=held.id, owner_uid=uid, namespace=held.reservation.owner.namespace, reason=reason
        )
        draft = Draft(event=event, node=held.reservation.node, subject=uid)
        return [draft], at_versions(snapshot, f"pod/{uid}")

    return decision
