"""`/filter`: which node. In placement `winner` it reserves and names one; in `scored` it names every node that fits.

kube-scheduler filters one pod at a time, so this recipe sets the cluster's pace and must never hang: it has a budget, and what
it cannot do within it becomes an `Error` with a fixed text, which kube-scheduler answers with a real back-off.
"""

import time
from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from hami.domain.allocation import Allocation, Phase
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import Conflict, Fenced, HamiError, InvalidInput, StoreRefuses, StoreUnavailable, StoreUnsafe
from hami.domain.reasons import NodeReason
from hami.domain.request import PodRequest
from hami.events.catalog.governance import PlacementRefused
from hami.events.log import Draft
from hami.scheduler import dryrun, texts
from hami.scheduler.core import CATCH_UP_S, Core, at_versions
from hami.scheduler.decide.place import Placement, Unschedulable, place, score_all
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy, policy_of
from hami.scheduler.decide.refusals import nodes_by_word, reason_counts
from hami.scheduler.decide.words import refusal_digest, words_of
from hami.scheduler.events_out import About
from hami.scheduler.notes import Once
from hami.scheduler.reserving import first_time, lapsed_draft, reserved_drafts
from hami.scheduler.scored import Remembered
from hami.scheduler.wire import FilterResult, NodeNames, decode_args
from hami.telemetry import get_logger
from hami.vendors.requests import pod_request

BUDGET_S: Final = 4.0
TRIES: Final = 3
LONGEST_NAME: Final = 253
"""Of anything in Kubernetes that has a name."""

REASONS_ON_SUCCESS: Final = 256
"""Candidates up to which a success also says why the other nodes do not fit. kube-scheduler looks at reasons only when no node
is left; for thousands of names they would cost more than the decision."""

MOST_RANKED: Final = 10
"""Nodes that the Event about a success names with their scores."""

_log = get_logger("scheduler.filter")


class Asked(msgspec.Struct, frozen=True):
    """One pod's question, decoded."""

    request: PodRequest
    policy: SchedulingPolicy
    names: tuple[str, ...]
    created: str = ""

    @property
    def about(self) -> About:
        return About(self.request.namespace, self.request.name, self.request.uid)


class Filter:
    def __init__(self, remembered: Remembered) -> None:
        self._names = NodeNames()
        self._remembered = remembered
        self._refused = Once()

    async def answer(self, core: Core, body: bytes) -> FilterResult:
        """Never raises, never takes longer than its budget."""
        started = time.perf_counter()
        core.idle.interrupt()
        try:
            with anyio.fail_after(BUDGET_S):
                result = await self._recipe(core, body)
        except TimeoutError:
            result = FilterResult(error=texts.SLOW)
        except InvalidInput as error:
            result = FilterResult(error=str(error))
        except StoreUnavailable as error:
            _log.warning("filter not answered", why=str(error))
            result = FilterResult(error=texts.WRITES_REFUSED if isinstance(error, StoreRefuses) else texts.STORE_AWAY)
        except (StoreUnsafe, Fenced) as error:
            core.alarm.ring(error)
            result = FilterResult(error=texts.STORE_UNSAFE)
        except HamiError as error:
            _log.exception("filter failed", error=str(error))
            result = FilterResult(error=texts.BROKEN_PROMISE)
        outcome = "error" if result.error else "placed" if result.node_names else "refused"
        core.metrics.decision.labels("filter", outcome).observe(time.perf_counter() - started)
        return result

    async def _recipe(self, core: Core, body: bytes) -> FilterResult:
        # 1. What is asked.
        args = decode_args(body)
        assert args.pod is not None
        request = pod_request(args.pod, core.vendors)
        names = self._names.decode(args.node_names)
        # 2. Not our business: every node is as good as any other.
        if not request.asks_for_devices:
            return FilterResult(nodes=args.nodes, node_names=names)
        # 3. A view that may be wrong decides nothing.
        reason = core.readiness.first_reason()
        if reason:
            return FilterResult(error=reason)
        policy = policy_of(request.annotations, core.policy)
        if isinstance(policy, BadPolicy):
            return self._bad_policy(core, request, policy)
        # 4. Whole Node objects: a dry run over what they say of themselves.
        if args.nodes is not None:
            return dryrun.answer(core, args, request, policy)
        if names is None:
            raise InvalidInput("NodeNames", None, "neither Nodes nor NodeNames is given")
        _check_owner(request)
        asked = Asked(request, policy, names, args.pod.metadata.creation_timestamp or "")
        self._remembered.put(request, policy)
        # 5. Score only, or decide and reserve.
        if core.settings.placement == "scored":
            return self._all_that_fit(core, asked)
        async with core.turn:
            return await self._decide(core, asked)

    async def _decide(self, core: Core, asked: Asked) -> FilterResult:
        for _ in range(TRIES):
            # a. The pod may hold devices already: bound ones stay, merely reserved ones are replaced.
            snapshot = core.view.snapshot()
            held = snapshot.allocation_of(asked.request.uid)
            if held is not None and held.phase is not Phase.RESERVED:
                return _already_bound(held, asked.names)
            # b. Where it fits.
            found = place(snapshot, core.planes, asked.request, asked.names, asked.policy, exclude_owner=asked.request.uid)
            failed = _reasons(found, asked.names)
            ranked = found.ranked(MOST_RANKED) if isinstance(found, Placement) else []
            # c. Write it down, if nothing it rests on has changed.
            try:
                if isinstance(found, Unschedulable):
                    await self._release(core, snapshot, held)
                    return self._refuse(core, snapshot, asked, found)
                await self._reserve(core, snapshot, asked, found, held)
            except Conflict:
                core.metrics.conflicts.labels("filter").inc()
                await core.catch_up()
                continue
            # d. Say so.
            self._refused.forget(asked.request.uid)
            core.told.filtering_succeeded(asked.about, ranked, fitting=found.fitting, nodes=len(asked.names))
            return FilterResult(node_names=[found.node], failed_nodes=failed)
        return FilterResult(error=texts.CONTENDED)

    async def _reserve(
        self, core: Core, snapshot: ClusterSnapshot, asked: Asked, found: Placement, held: Allocation | None
    ) -> None:
        """Reserve, giving up the pod's own earlier reservation in the same step; return when the own view knows it.

        Raises Conflict, StoreUnavailable, StoreUnsafe.
        """
        drafts, expected = reserved_drafts(core, snapshot, asked.request, found, held)
        drafts = [*first_time(snapshot, core.vendors, asked.request, asked.created), *drafts]
        with core.metrics.append.time():
            appended = await core.writer.append(drafts, expected=expected)
        if not await core.view.wait_for(appended.positions[-1], timeout=CATCH_UP_S):
            raise StoreUnavailable("the view did not reach the reservation just written")

    async def _release(self, core: Core, snapshot: ClusterSnapshot, held: Allocation | None) -> None:
        """The pod asks anew and fits nowhere: what it had reserved is free for others at once."""
        if held is None:
            return
        expected = at_versions(snapshot, f"pod/{held.reservation.owner.uid}")
        await core.writer.append([lapsed_draft(held, "replaced")], expected=expected)

    def _refuse(self, core: Core, snapshot: ClusterSnapshot, asked: Asked, found: Unschedulable) -> FilterResult:
        core.metrics.refusals.inc()
        request, digest = asked.request, refusal_digest(asked.request, found.counts, len(asked.names))
        if self._refused.news(request.uid, digest):
            event = PlacementRefused(
                owner_uid=request.uid,
                namespace=request.namespace,
                name=request.name,
                request=words_of(request),
                counts=found.counts,
                nodes_seen=len(asked.names),
                digest=digest,
            )
            for draft in (*first_time(snapshot, core.vendors, request, asked.created), Draft(event=event, subject=request.uid)):
                core.notes.write(draft)
            core.told.filtering_reasons(asked.about, nodes_by_word(found.reasons))
        core.told.filtering_failed(asked.about, len(asked.names))
        return FilterResult(failed_nodes=found.reasons)

    def _all_that_fit(self, core: Core, asked: Asked) -> FilterResult:
        snapshot = core.view.snapshot()
        held = snapshot.allocation_of(asked.request.uid)
        if held is not None and held.phase is not Phase.RESERVED:
            return _already_bound(held, asked.names)
        scores, failed, _ = score_all(
            snapshot, core.vendors, asked.request, asked.names, asked.policy, exclude_owner=asked.request.uid
        )
        if not scores:
            return self._refuse(core, snapshot, asked, Unschedulable(failed, reason_counts(failed)))
        return FilterResult(node_names=list(scores), failed_nodes=failed)

    def _bad_policy(self, core: Core, request: PodRequest, policy: BadPolicy) -> FilterResult:
        message = f"calcScore failed {policy.message} for pod {request.name}"
        core.told.filtering_error(About(request.namespace, request.name, request.uid), message)
        return FilterResult(error=message)


def _check_owner(request: PodRequest) -> None:
    """Devices are held in a pod's name: two pods without a uid would pass for one. Raises InvalidInput."""
    for field, value in (("uid", request.uid), ("namespace", request.namespace), ("name", request.name)):
        if not value:
            raise InvalidInput(f"Pod.metadata.{field}", value, "must not be empty")
        if len(value) > LONGEST_NAME:
            raise InvalidInput(f"Pod.metadata.{field}", value, f"must not have more than {LONGEST_NAME} characters")


def _already_bound(held: Allocation, names: Sequence[str]) -> FilterResult:
    """The pod's devices are on one node for good: that node, or none."""
    node = held.reservation.node
    failed = {name: NodeReason.RESERVATION_EXISTS.value for name in names if name != node}
    return FilterResult(node_names=[node] if node in names else None, failed_nodes=failed)


def _reasons(found: Placement | Unschedulable, names: Sequence[str]) -> dict[str, str] | None:
    """Asked for before anything is awaited: they are worked out from the planes as they stand now."""
    if isinstance(found, Unschedulable):
        return found.reasons
    return found.failed if len(names) <= REASONS_ON_SUCCESS else None
