"""The door's loop: what was seen of nodes and pods in; events, answers to handshakes and ends of overdue pods out.

Every replica watches; one at a time acts (a job lock says who), and each append rests on the version of what it is about. A
cluster without such plugins costs a look at each Node object and nothing else.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import anyio
import msgspec

from hami.domain.allocation import Allocation, Phase, PodOwner
from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.pod import Node
from hami.events.catalog.allocation import AllocationFailed
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.jobs import OneOf
from hami.events.log import Draft
from hami.kube.errors import ApiError
from hami.scheduler.compat.handshakes import Handshakes
from hami.scheduler.compat.locks import Mirrored, NodeLocks, Writes
from hami.scheduler.core import Core, Decision, at_versions
from hami.scheduler.decide import door
from hami.scheduler.decide.door import NodeSeen
from hami.scheduler.decide.reconcile import PodFacts
from hami.scheduler.events_out import About
from hami.scheduler.podfacts import Relevance
from hami.scheduler.turns import breathe, slices
from hami.telemetry import get_logger
from hami.vendors import identity

LOOK_EVERY_S: Final = 1.0
_GATHER_S: Final = 0.02
"""Changes that arrive together are looked at together."""

_log = get_logger("scheduler.compat")


class Door:
    """`pods` are the inventory's. Implements hami.scheduler.inventory.Watcher."""

    def __init__(self, core: Core, api: Writes, pods: Mapping[str, PodFacts], locks: NodeLocks, job: OneOf) -> None:
        self._core, self._api, self._pods, self._locks, self._job = core, api, pods, locks, job
        self._relevance = Relevance(core.vendors)
        self._handshakes = Handshakes(core, api)
        self._nodes: dict[str, NodeSeen] = {}
        self._changed: dict[str, None] = {}
        self._woken = anyio.Event()
        self._mine, self._ask_again = False, -1.0

    # --- what the inventory tells ---

    def node_seen(self, node: Node) -> None:
        known = self._core.view.snapshot().nodes.get(node.metadata.name)
        seen = door.look_at(node, self._core.vendors, known)
        if seen is None:
            self._forget(node.metadata.name)
            return
        before = self._nodes.get(seen.name)
        self._nodes[seen.name] = seen
        self._handshakes.saw(before, seen, known)
        self._locks.saw(seen.name, seen.locks.items())
        if before is None or (before.uid, before.vendors, before.locks) != (seen.uid, seen.vendors, seen.locks):
            self._changed[seen.name] = None
            self._woken.set()

    def node_gone(self, name: str) -> None:
        self._forget(name)

    def nodes_unseen(self) -> None:
        self._handshakes.blind()

    def pod_changed(self, pod: PodFacts) -> None:
        if pod.node in self._nodes:
            self._woken.set()

    def _forget(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._handshakes.forget(name)
            self._changed.pop(name, None)

    # --- what is done about it ---

    async def run(self) -> None:
        """Raises StoreUnavailable."""
        self._handshakes.begin()
        self._changed = dict.fromkeys(self._nodes)
        while True:
            with anyio.move_on_after(LOOK_EVERY_S if self._nodes else None):
                await self._woken.wait()
            await anyio.sleep(_GATHER_S)
            self._woken = anyio.Event()
            if not self._nodes:
                continue
            await self._locks.tidy()
            if await self._is_mine():
                await self.once()

    async def _is_mine(self) -> bool:
        now = anyio.current_time()
        if now >= self._ask_again:
            self._ask_again = now + LOOK_EVERY_S
            self._mine = await self._job.mine()
        return self._mine

    async def once(self) -> None:
        # 1. What nodes announce, and which plugins fell silent or came back.
        changed, self._changed = self._changed, {}
        changed |= dict.fromkeys(await self._handshakes.turned(self._nodes))
        for name in changed:
            await self._register(name)
        # 2. What plugins wait for an answer to.
        await self._handshakes.answer(self._nodes)
        # 3. How far pods are that plugins serve, and locks that nobody waits for any more.
        waiting = await self._serve()
        locks = [Mirrored(seen.name, key, text) for seen in self._nodes.values() for key, text in seen.locks.items()]
        await self._locks.sweep(locks, waiting)

    async def _register(self, name: str) -> None:
        seen = self._nodes.get(name)
        if seen is None:
            return
        if await self._agent_is_coming(seen):
            self._changed[name] = None
            return
        for word in seen.vendors:
            # A registration may bring a device whose health the log has differently: that is the second step.
            for _ in range(2):
                if await self._core.decide("compat", partial(self._registration, seen=seen, word=word)) is None:
                    break

    async def _agent_is_coming(self, seen: NodeSeen) -> bool:
        """An agent of hami is on the node and has not said yet what it registers: some of what is announced may be its own."""
        node = self._core.view.snapshot().nodes.get(seen.name)
        if node is not None and node.own and node.uid in {"", seen.uid}:
            return False
        return (await self._core.store.leases.alive((seen.name,)))[seen.name] is not None

    def _registration(self, snapshot: ClusterSnapshot, *, seen: NodeSeen, word: str) -> Decision | None:
        node = snapshot.nodes.get(seen.name)
        silent = self._handshakes.is_silent(seen, word)
        events = door.registration(node, seen, word, silent=silent)
        drafts = [
            Draft(event=each, node=seen.name, subject=each.device if isinstance(each, DeviceHealthChanged) else "")
            for each in events
        ]
        return (drafts, at_versions(snapshot, f"node/{seen.name}")) if drafts else None

    async def _serve(self) -> frozenset[tuple[str, str, str]]:
        """Node, namespace and name of the pods that are still to be served."""
        allocations = self._core.view.snapshot().allocations
        waiting: set[tuple[str, str, str]] = set()
        bound: list[Allocation] = []
        for ids in slices(list(allocations)):
            for key in ids:
                held = allocations.get(key)
                if held is None or held.phase not in {Phase.RESERVED, Phase.BOUND} or held.reservation.node not in self._nodes:
                    continue
                owner = held.reservation.owner
                waiting.add((held.reservation.node, owner.namespace, owner.name))
                if held.phase is Phase.BOUND:
                    bound.append(held)
            await breathe()
        for held in bound:
            try:
                await self._look_at(held)
            except ApiError as error:
                _log.warning("bound pod not looked at", reservation=held.id, error=str(error))
        return frozenset(waiting)

    async def _look_at(self, held: Allocation) -> None:
        node = door.waiting_for_plugin(self._core.view.snapshot(), held)
        pod = self._pods.get(held.reservation.owner.uid)
        if node is None or pod is None:
            return
        keys = door.lock_keys(held, node, self._core.vendors)
        released = False
        if keys and not pod.admitted and not self._lock_seen(held, keys):
            released = not await self._locks.stands(held, keys)
            if released:
                # The plugin writes the pod before it takes the lock away: now the pod says how it went.
                pod = await self._fresh(held) or pod
        if await self._served(held.id, pod, locked=bool(keys), released=released):
            return
        late = held.reservation.deadline_ms + round(self._core.settings.compat_serve_s * 1000)
        if keys and self._core.clock.now() > late:
            await self._give_up(held)

    def _lock_seen(self, held: Allocation, keys: Iterable[str]) -> bool:
        """Whether the lock stands there for this pod, as far as the watch has told."""
        seen, owner = self._nodes.get(held.reservation.node), held.reservation.owner
        if seen is None or not isinstance(owner, PodOwner):
            return True
        there = [seen.locks[key] for key in keys if key in seen.locks]
        return any(door.lock_owner(each) in {None, (owner.namespace, owner.name)} for each in there)

    async def _fresh(self, held: Allocation) -> PodFacts | None:
        owner = held.reservation.owner
        if not isinstance(owner, PodOwner):
            return None
        pod = await self._api.get_pod(owner.namespace, owner.name)
        return self._relevance.facts(pod) if pod is not None and pod.metadata.uid == owner.uid else None

    async def _served(self, reservation: str, pod: PodFacts, *, locked: bool, released: bool) -> bool:
        def decision(snapshot: ClusterSnapshot) -> Decision | None:
            held = snapshot.allocations.get(reservation)
            node: NodeState | None = None if held is None else snapshot.nodes.get(held.reservation.node)
            if held is None or node is None or held.phase is not Phase.BOUND:
                return None
            events = door.served(held, node, pod, locked=locked, released=released)
            drafts = [Draft(event=each, node=node.name, subject=pod.uid) for each in events]
            return (drafts, at_versions(snapshot, f"pod/{pod.uid}")) if drafts else None

        return await self._core.decide("compat", decision) is not None

    async def _give_up(self, held: Allocation) -> None:
        """1 look once more, 2 tell the plugin to leave the pod alone, 3 its devices are free."""
        owner = held.reservation.owner
        pod = await self._api.get_pod(owner.namespace, owner.name) if isinstance(owner, PodOwner) else None
        if pod is None or pod.metadata.uid != owner.uid or pod.finished:
            return
        facts = self._relevance.facts(pod)
        if door.said_served(facts):
            await self._served(held.id, msgspec.structs.replace(facts, admitted=True), locked=True, released=True)
            return
        notes = {identity.BIND_PHASE: door.FAILED}
        meta = {"uid": owner.uid, "resourceVersion": pod.metadata.resource_version, "annotations": notes}
        try:
            await self._api.patch_pod(owner.namespace, owner.name, {"metadata": meta})
        except ApiError as error:
            if error.code in {404, 409}:
                return
            raise
        await self._core.decide("compat", partial(_too_late, reservation=held.id))
        self._core.told.binding_failed(About(owner.namespace, owner.name, owner.uid), door.TOO_LATE)


def _too_late(snapshot: ClusterSnapshot, *, reservation: str) -> Decision | None:
    held = snapshot.allocations.get(reservation)
    if held is None or held.phase is not Phase.BOUND:
        return None
    owner = held.reservation.owner
    event = AllocationFailed(reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace, reason=door.TOO_LATE)
    return [Draft(event=event, node=held.reservation.node, subject=owner.uid)], at_versions(snapshot, f"pod/{owner.uid}")
