"""The node lock as vendor plugins read it: an annotation, written before the bind and taken away by the plugin.

The lock in the store decides who binds; the annotation only tells the plugin which pod is meant. Every write names the version
of the Node object it rests on, so that of two writers one finds out. Ages are counted from when a lock was first seen here: the
clock of whoever wrote it does not matter.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

import anyio
import msgspec

from hami.domain.allocation import Allocation, Phase, PodOwner
from hami.domain.errors import HamiError
from hami.domain.pod import Node, Pod
from hami.kube.errors import ApiError
from hami.scheduler.core import Core
from hami.scheduler.decide import door
from hami.scheduler.podfacts import known
from hami.telemetry import get_logger
from hami.vendors.vendor import Vendor

TRIES: Final = 5
LOOK_AGAIN_MS: Final = 5_000
_MOST_SEEN: Final = 20_000
_log = get_logger("scheduler.compat")


class Writes(Protocol):
    """What the door needs of the Kubernetes API; hami.kube.client.KubeClient is one. Raises ApiError."""

    async def get_pod(self, namespace: str, name: str) -> Pod | None: ...

    async def get_node(self, name: str) -> Node | None: ...

    async def patch_node(self, name: str, patch: dict[str, Any]) -> Node: ...

    async def patch_pod(self, namespace: str, name: str, patch: dict[str, Any]) -> Pod: ...


class Mirrored(msgspec.Struct, frozen=True):
    """A lock annotation that we wrote."""

    node: str
    key: str
    text: str


class NodeLocks:
    """Lock annotations of nodes: taking one for a bind, freeing it, and finding those that were left behind."""

    def __init__(self, core: Core, api: Writes) -> None:
        self._core, self._api = core, api
        self._seen: dict[Mirrored, int] = {}
        self._next_look: dict[Mirrored, int] = {}
        self._ours: dict[str, tuple[Mirrored, ...]] = {}

    def saw(self, node: str, locks: Iterable[tuple[str, str]]) -> None:
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        for key, text in locks:
            self._seen.setdefault(Mirrored(node, key, text), self._core.clock.now())

    async def take(self, held: Allocation) -> bool:
        """Write every lock that this allocation's plugins expect. False where somebody else's stands. Raises ApiError."""
        node = self._core.view.snapshot().nodes.get(held.reservation.node)
        taken: list[Mirrored] = []
        for key, vendor in door.lock_keys(held, node, self._core.vendors).items():
            mine = await self._take(held, key, vendor)
            if mine is None:
                await self._free(taken)
                return False
            taken.append(mine)
        self._ours[held.id] = tuple(taken)
        return True

    async def _take(self, held: Allocation, key: str, vendor: Vendor) -> Mirrored | None:
        owner, name = held.reservation.owner, held.reservation.node
        if not isinstance(owner, PodOwner):
            return None
        for _ in range(TRIES):
            node = await self._api.get_node(name)
            if node is None:
                return None
            there = node.metadata.notes.get(key, "")
            if there and door.lock_owner(there) == (owner.namespace, owner.name):
                return Mirrored(name, key, there)
            if there and not await self._is_stale(Mirrored(name, key, there), vendor, but=held.id):
                return None
            text = door.lock_text(vendor, self._core.clock.now(), owner)
            if await self._write(node, key, text):
                return Mirrored(name, key, text)
        return None

    async def _is_stale(self, lock: Mirrored, vendor: Vendor, *, but: str) -> bool:
        """Whether this lock of somebody else may be taken over: its pod is gone or no longer waits, or it stood long enough."""
        named = door.lock_owner(lock.text)
        if named is None:
            if self._someone_waits(lock, but=but):
                return False
        else:
            pod = await self._api.get_pod(*named)
            if pod is None or pod.finished:
                return True
            held = self._core.view.snapshot().allocation_of(pod.metadata.uid)
            if held is not None and held.phase is Phase.BOUND and held.reservation.node == lock.node:
                return False
            if known(self._core.view.snapshot(), pod.metadata.uid):
                return True
        self.saw(lock.node, [(lock.key, lock.text)])
        return self._core.clock.now() - self._seen[lock] > vendor.keys.lock_expires_s * 1000

    def _someone_waits(self, lock: Mirrored, *, but: str) -> bool:
        snapshot = self._core.view.snapshot()
        node = snapshot.nodes.get(lock.node)
        return any(
            held.phase is Phase.BOUND
            and held.reservation.node == lock.node
            and held.id != but
            and lock.key in door.lock_keys(held, node, self._core.vendors)
            for held in snapshot.allocations.values()
        )

    async def stands(self, held: Allocation, keys: Iterable[str]) -> bool:
        """Whether any of these locks is on the node now, for this allocation. Raises ApiError.

        They are written before it is bound: once it is bound, absence means that they were taken away.
        """
        node, owner = await self._api.get_node(held.reservation.node), held.reservation.owner
        if node is None or not isinstance(owner, PodOwner):
            return True
        for key in keys:
            there = node.metadata.notes.get(key, "")
            if there and door.lock_owner(there) in {None, (owner.namespace, owner.name)}:
                return True
        return False

    async def free(self, reservation: str) -> None:
        """Take away what this process wrote for a reservation, where it still stands; also while being cancelled."""
        with anyio.move_on_after(2.0, shield=True):
            await self._free(self._ours.pop(reservation, ()))

    async def tidy(self) -> None:
        """Take away what this process wrote for reservations that are no longer waiting, whatever became of their binds."""
        allocations = self._core.view.snapshot().allocations
        for reservation in list(self._ours):
            held = allocations.get(reservation)
            if held is None or held.phase not in {Phase.RESERVED, Phase.BOUND}:
                await self.free(reservation)

    async def _free(self, locks: Iterable[Mirrored]) -> None:
        for each in locks:
            try:
                await self._remove(each)
            except HamiError as error:
                _log.warning("lock annotation not removed", node=each.node, key=each.key, error=str(error))

    async def _remove(self, lock: Mirrored) -> None:
        for _ in range(TRIES):
            node = await self._api.get_node(lock.node)
            if node is None or node.metadata.notes.get(lock.key) != lock.text or await self._write(node, lock.key, None):
                return

    async def sweep(self, seen: Iterable[Mirrored], waiting: frozenset[tuple[str, str, str]]) -> None:
        """Take away locks that name a pod of ours which no longer waits: their binder died. Locks of strangers stay.

        `waiting`: node, namespace and name of pods whose allocation is reserved or bound.
        """
        now = self._core.clock.now()
        self._next_look = {lock: at for lock, at in self._next_look.items() if at > now}
        for lock in seen:
            named = door.lock_owner(lock.text)
            if named is None or (lock.node, *named) in waiting or lock in self._next_look:
                continue
            self._next_look[lock] = now + LOOK_AGAIN_MS
            try:
                if await self._is_left(lock, named):
                    _log.info("lock annotation was left behind", node=lock.node, key=lock.key)
                    await self._remove(lock)
            except ApiError as error:
                _log.warning("lock annotation not looked at", node=lock.node, key=lock.key, error=str(error))

    async def _is_left(self, lock: Mirrored, named: tuple[str, str]) -> bool:
        pod = await self._api.get_pod(*named)
        if pod is None or pod.finished:
            return True
        await self._core.catch_up()
        snapshot = self._core.view.snapshot()
        held = snapshot.allocation_of(pod.metadata.uid)
        if held is not None and held.reservation.node == lock.node and held.phase in {Phase.RESERVED, Phase.BOUND}:
            return False
        return known(snapshot, pod.metadata.uid)

    async def _write(self, node: Node, key: str, text: str | None) -> bool:
        """False where the node changed since it was read."""
        patch = {"metadata": {"resourceVersion": node.metadata.resource_version, "annotations": {key: text}}}
        try:
            await self._api.patch_node(node.metadata.name, patch)
        except ApiError as error:
            if error.code == 409:
                return False
            raise
        return True
