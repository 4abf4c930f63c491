"""`/bind`: put a pod on the node where it has reserved devices.

`AllocationBound` is written before the Binding is posted, on the pod's version and under the node lock. A re-filter of the same
pod (kube-scheduler sends one when a bind was slow) then finds it bound and gives its devices to nobody; a late Binding
lands on devices that are still held. What was written stands until the API has refused for certain: then AllocationFailed.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from hami.domain.allocation import Allocation, Phase, shares_of
from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.errors import Conflict, Fenced, HamiError, InvalidInput, StaleFence, StoreUnavailable, StoreUnsafe
from hami.events.catalog.allocation import AllocationBound, AllocationFailed
from hami.events.catalog.governance import LockReclaimed, LockWaitTimedOut
from hami.events.lease import Busy, Held
from hami.events.log import Draft, Fence
from hami.kube.errors import ApiError
from hami.kube.results import AlreadyBound, BindResult, Bound, Refused
from hami.scheduler import texts
from hami.scheduler.compat.locks import NodeLocks
from hami.scheduler.core import CATCH_UP_S, Core, Decision, at_versions
from hami.scheduler.decide.door import lock_keys
from hami.scheduler.decide.refusals import still_stands
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.events_out import About
from hami.scheduler.late import Late
from hami.scheduler.scored import Remembered, reserve_for_bind
from hami.scheduler.wire import BindingArgs, BindingResult, decode_binding
from hami.telemetry import get_logger
from hami.vendors import identity

WORK_S: Final = 12.0
"""What a bind may take beyond its wait for the lock; with the wait it stays below HAMi's httpTimeout of 30 s."""

POST_S: Final = 5.0
MIG_WAIT_S: Final = 8.0
TRIES: Final = 3
_LONGEST_LABEL: Final = 63
_log = get_logger("scheduler.bind")


class _Stop(Exception):  # noqa: N818 - control flow inside one bind, carries the answer
    """The bind ends here with this text."""


class Bind:
    """`mirror`: node locks as vendor plugins read them, None where none are served."""

    def __init__(self, remembered: Remembered, late: Late, mirror: NodeLocks | None = None) -> None:
        self._remembered, self._late, self._mirror = remembered, late, mirror

    async def answer(self, core: Core, body: bytes) -> BindingResult:
        """Never raises. Success is never said without a Binding in the API."""
        started = time.perf_counter()
        core.idle.interrupt()
        about: About | None = None
        try:
            # 1. What is asked.
            args = decode_binding(body)
            about = About(args.pod_namespace, args.pod_name, args.pod_uid)
            with anyio.fail_after(core.settings.bind_wait_s + WORK_S):
                await self._recipe(core, args)
            error = ""
        except _Stop as stop:
            error = str(stop)
        except TimeoutError:
            error = texts.BIND_SLOW
        except InvalidInput as wrong:
            error = str(wrong)
        except (StoreUnavailable, Conflict):
            error = texts.STORE_AWAY
        except StaleFence:
            error = texts.LOCK_LOST
        except (StoreUnsafe, Fenced) as sand:
            core.alarm.ring(sand)
            error = texts.STORE_UNSAFE
        except HamiError as broken:
            _log.exception("bind failed", error=str(broken))
            error = texts.BROKEN_PROMISE
        core.metrics.decision.labels("bind", "error" if error else "bound").observe(time.perf_counter() - started)
        if about is not None and error:
            core.told.binding_failed(about, error)
        return BindingResult(error=error)

    async def _recipe(self, core: Core, args: BindingArgs) -> None:
        # 2. Worth waiting for the lock at all?
        reason = core.readiness.first_reason()
        if reason:
            raise _Stop(reason)
        await self._alive(core, args)
        # 3. + 4. One bind at a time on this node, first come first served, and the lock kept while it runs.
        async with self._locked(core, args) as fence:
            # 5. The wait may have been long.
            held = await self._alive(core, args)
            async with self._mirrored(core, held):
                # 6. From here on the devices stay held, whatever becomes of the Binding.
                if held.phase is Phase.RESERVED:
                    if not still_stands(held.reservation, core.view.snapshot().nodes.get(args.node)):
                        raise _Stop(texts.DEVICES_GONE)
                    held = await self._write_bound(core, args, fence)
                # 7. What must exist on the node first.
                held = await self._prepared(core, args, held)
                # 8. The Binding, with everything the container needs to know.
                result = await self._post(core, args, held)
                # 9. What became of it.
                await self._conclude(core, args, held, result)
        # 10. The lock is free again (or kept until the pod is served, see `late`).
        core.told.binding_succeeded(About(args.pod_namespace, args.pod_name, args.pod_uid), args.node)

    async def _alive(self, core: Core, args: BindingArgs) -> Allocation:
        """The pod's live allocation on this node; filter may have answered elsewhere a moment ago, so the head counts."""
        held = _on_node(core, args)
        if held is None:
            await core.catch_up()
            held = _on_node(core, args)
        if held is None and core.settings.placement == "scored":
            held = await reserve_for_bind(core, self._remembered, args)
        if held is None:
            raise _Stop(texts.NO_RESERVATION)
        return held

    @asynccontextmanager
    async def _locked(self, core: Core, args: BindingArgs) -> AsyncIterator[Fence]:
        ttl_ms = round(core.settings.lock_ttl_s * 1000)
        with core.metrics.lock_wait.time():
            got = await core.store.locks.acquire(
                args.node, args.pod_uid, ttl_ms=ttl_ms, wait_ms=round(core.settings.bind_wait_s * 1000)
            )
        if isinstance(got, Busy):
            waited = LockWaitTimedOut(lock=args.node, waiter=args.pod_uid, holder=got.holder, waited_ms=got.waited_ms)
            core.notes.write(Draft(event=waited, node=args.node, subject=args.pod_uid))
            raise _Stop(texts.LOCK_BUSY)
        if got.reclaimed_from:
            reclaimed = LockReclaimed(lock=args.node, owner=got.reclaimed_from, why="its time ran out")
            core.notes.write(Draft(event=reclaimed, node=args.node, subject=got.reclaimed_from))
        kept = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_renew, core, got, ttl_ms)
                yield Fence(got.lock, got.owner, got.token)
                kept = self._late.keeps(core, got, args.pod_uid)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _only(group) from None
        finally:
            if not kept:
                await _release(core, got)

    @asynccontextmanager
    async def _mirrored(self, core: Core, held: Allocation) -> AsyncIterator[None]:
        """The lock annotation that a vendor's plugin expects, before it may see the pod; taken back where the bind fails."""
        mirror, node = self._mirror, core.view.snapshot().nodes.get(held.reservation.node)
        if mirror is None or not lock_keys(held, node, core.vendors):
            yield
            return
        try:
            taken = await mirror.take(held)
        except ApiError as error:
            raise _Stop(f"hami: the Kubernetes API refused the node's lock annotation: {error.message}") from error
        if not taken:
            raise _Stop(texts.NODE_LOCKED)
        try:
            yield
        except BaseException:
            now = core.view.snapshot().allocations.get(held.id)
            # A bound pod's Binding may still land: then its plugin needs the lock.
            if now is None or now.phase is not Phase.BOUND:
                await mirror.free(held.id)
            raise

    async def _write_bound(self, core: Core, args: BindingArgs, fence: Fence) -> Allocation:
        for _ in range(TRIES):
            found = await self._try_to_write(core, args, fence)
            if found is not None:
                return found
            core.metrics.conflicts.labels("bind").inc()
            await core.catch_up()
        raise _Stop(texts.CONTENDED)

    async def _try_to_write(self, core: Core, args: BindingArgs, fence: Fence) -> Allocation | None:
        """None where another writer was first."""
        async with core.turn:
            held = await self._alive(core, args)
            if held.phase is not Phase.RESERVED:
                return held
            owner = held.reservation.owner
            event = AllocationBound(reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace)
            expected = at_versions(core.view.snapshot(), f"pod/{owner.uid}")
            try:
                with core.metrics.append.time():
                    appended = await core.writer.append(
                        [Draft(event=event, node=args.node, subject=owner.uid)], expected=expected, fence=fence
                    )
            except Conflict:
                return None
            await core.view.wait_for(appended.positions[-1], timeout=CATCH_UP_S)
            return held

    async def _prepared(self, core: Core, args: BindingArgs, held: Allocation) -> Allocation:
        """The agent makes MIG instances when it reads Bound; their uuids come back through the log."""
        if _realised(held):
            return held
        with anyio.move_on_after(MIG_WAIT_S):
            while True:
                now = _on_node(core, args)
                if now is None:
                    raise _Stop(texts.NO_RESERVATION)
                if _realised(now):
                    return now
                await core.view.wait_for(core.view.position.g + 1, timeout=MIG_WAIT_S)
        await self._fail(core, held, "the node did not make the MIG instance in time")
        raise _Stop(texts.MIG_SLOW)

    async def _post(self, core: Core, args: BindingArgs, held: Allocation) -> BindResult:
        notes = dict(held.reservation.annotations)
        if any(share.mig is not None for share in shares_of(held.reservation.containers)):
            node = core.view.snapshot().nodes.get(args.node, NodeState(name=args.node))
            notes |= binding_annotations(
                held.reservation.containers,
                core.vendors,
                reservation_id=held.id,
                node=node,
                now_s=core.clock.now() // 1000,
            )
        return await core.api.bind(
            uid=args.pod_uid,
            namespace=args.pod_namespace,
            name=args.pod_name,
            node=args.node,
            annotations=notes,
            labels={identity.NODE: args.node} if len(args.node) <= _LONGEST_LABEL else None,
            within=POST_S,
        )

    async def _conclude(self, core: Core, args: BindingArgs, held: Allocation, result: BindResult) -> None:
        match result:
            case Bound():
                return
            case AlreadyBound(node) if node == args.node:
                # It is where we wanted it; what its annotations say instead of ours is for the reconciler to compare.
                _log.warning("pod was bound to the wanted node by another write", pod=args.pod_name, node=node)
            case AlreadyBound(node):
                await self._fail(core, held, f"the pod is bound to {node}")
                raise _Stop(texts.BOUND_ELSEWHERE)
            case Refused(code, message):
                await self._fail(core, held, f"the API refused the binding: {code} {message}")
                raise _Stop(f"hami: the Kubernetes API refused the binding: {message}")
            case _:
                # It may still land. The allocation stays bound, and the next try finds out.
                _log.warning("binding has no known outcome", pod=args.pod_name, node=args.node, why=result.why)
                raise _Stop(texts.BIND_UNKNOWN)

    async def _fail(self, core: Core, held: Allocation, reason: str) -> None:
        """Free the devices; if another writer ended the allocation meanwhile, that is as good."""
        owner = held.reservation.owner

        def decision(snapshot: ClusterSnapshot) -> Decision | None:
            now = snapshot.allocations.get(held.id)
            if now is None or not now.live:
                return None
            event = AllocationFailed(reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace, reason=reason)
            draft = Draft(event=event, node=held.reservation.node, subject=owner.uid)
            return [draft], at_versions(snapshot, f"pod/{owner.uid}")

        await core.decide("bind", decision)


def _on_node(core: Core, args: BindingArgs) -> Allocation | None:
    held = core.view.snapshot().allocation_of(args.pod_uid)
    return held if held is not None and held.live and held.reservation.node == args.node else None


def _realised(held: Allocation) -> bool:
    return all(share.mig is None or share.mig.uuid for share in shares_of(held.reservation.containers))


async def _renew(core: Core, held: Held, ttl_ms: int) -> None:
    """A third of the TTL leaves two tries before it runs out. A lost lock ends the bind."""
    while True:
        await anyio.sleep(ttl_ms / 3000)
        try:
            ours = await core.store.locks.renew(held, ttl_ms=ttl_ms)
        except StoreUnavailable:
            continue
        if not ours:
            raise _Stop(texts.LOCK_LOST)


async def _release(core: Core, held: Held) -> None:
    """Also when this bind is being cancelled. A release that fails costs the next one a TTL."""
    with anyio.move_on_after(1.0, shield=True):
        try:
            await core.store.locks.release(held)
        except HamiError as error:
            _log.warning("node lock not released, it will run out", lock=held.lock, error=str(error))


def _only(group: BaseExceptionGroup) -> BaseException:
    """The one failure inside a task group that has one child besides the body."""
    first = group.exceptions[0]
    return _only(first) if isinstance(first, BaseExceptionGroup) else first
