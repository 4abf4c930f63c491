"""Placement `scored`: filter names every node that fits, kube-scheduler's plugins and `/prioritize` choose, bind reserves.

Also what `/prioritize` and `/preempt` answer in either placement.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hami.domain.allocation import Allocation, Phase
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import Conflict, InvalidInput
from hami.domain.request import PodRequest
from hami.scheduler.core import CATCH_UP_S, Core
from hami.scheduler.decide.fit import Fit
from hami.scheduler.decide.place import Placement, ask, judge, place, score_all, without
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy, policy_of
from hami.scheduler.decide.quota import vendor_usage
from hami.scheduler.reserving import reserved_drafts
from hami.scheduler.wire import (
    BindingArgs,
    HostPriority,
    MetaPod,
    MetaVictims,
    NodeNames,
    PreemptionArgs,
    PreemptionResult,
    decode_args,
    decode_preemption,
)
from hami.vendors.requests import pod_request

BEST: Final = 10
"""kube-scheduler's MaxExtenderPriority."""

_TRIES: Final = 3


class Remembered:
    """Requests of pods lately filtered, by uid: `/bind` names a pod and says nothing of what it asks."""

    def __init__(self, keep: int = 4096) -> None:
        self._keep = keep
        self._known: OrderedDict[str, tuple[PodRequest, SchedulingPolicy]] = OrderedDict()

    def put(self, request: PodRequest, policy: SchedulingPolicy) -> None:
        self._known[request.uid] = (request, policy)
        self._known.move_to_end(request.uid)
        if len(self._known) > self._keep:
            self._known.popitem(last=False)

    def get(self, uid: str) -> tuple[PodRequest, SchedulingPolicy] | None:
        return self._known.get(uid)


async def reserve_for_bind(core: Core, remembered: Remembered, args: BindingArgs) -> Allocation | None:
    """Reserve on exactly the node that was chosen; None when the pod does not fit there any more or asks for nothing."""
    known = remembered.get(args.pod_uid) or await _read_request(core, args)
    if known is None:
        return None
    request, policy = known
    for _ in range(_TRIES):
        snapshot = core.view.snapshot()
        held = snapshot.allocation_of(request.uid)
        if held is not None and held.phase is not Phase.RESERVED:
            # A Binding was sent for it: whether it lands or not, these devices are not to be swapped for others.
            return held if held.reservation.node == args.node else None
        found = place(snapshot, core.planes, request, (args.node,), policy, exclude_owner=request.uid)
        if not isinstance(found, Placement):
            return None
        drafts, expected = reserved_drafts(core, snapshot, request, found, held)
        try:
            appended = await core.writer.append(drafts, expected=expected)
        except Conflict:
            await core.catch_up()
            continue
        await core.view.wait_for(appended.positions[-1], timeout=CATCH_UP_S)
        return core.view.snapshot().allocation_of(request.uid)
    return None


async def _read_request(core: Core, args: BindingArgs) -> tuple[PodRequest, SchedulingPolicy] | None:
    pod = await core.api.get_pod(args.pod_namespace, args.pod_name)
    if pod is None or pod.metadata.uid != args.pod_uid:
        return None
    request = pod_request(pod, core.vendors)
    policy = policy_of(request.annotations, core.policy)
    return None if isinstance(policy, BadPolicy) or not request.asks_for_devices else (request, policy)


def prioritize(core: Core, names: NodeNames, body: bytes) -> list[HostPriority]:
    """0 for the least wanted node to 10 for the most wanted, by the pod's node policy. Raises InvalidInput."""
    args = decode_args(body)
    assert args.pod is not None
    request = pod_request(args.pod, core.vendors)
    candidates = names.decode(args.node_names) or ()
    policy = policy_of(request.annotations, core.policy)
    if isinstance(policy, BadPolicy):
        raise InvalidInput("Pod.metadata.annotations", request.name, policy.message)
    if not request.asks_for_devices:
        return [HostPriority(name, 0) for name in candidates]
    scores, _, _ = score_all(core.view.snapshot(), core.vendors, request, candidates, policy, exclude_owner=request.uid)
    return scaled(scores, candidates, least_first=policy.spreads_nodes)


def scaled(scores: Mapping[str, float], candidates: tuple[str, ...], *, least_first: bool) -> list[HostPriority]:
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    span = high - low

    def points(name: str) -> int:
        if name not in scores:
            return 0
        if not span:
            return BEST
        share = (scores[name] - low) / span
        return round(BEST * (1 - share if least_first else share))

    return [HostPriority(name, points(name)) for name in candidates]


def preempt(core: Core, body: bytes) -> PreemptionResult:
    """The nodes on which evicting the proposed victims would leave room for the pod's devices. Raises InvalidInput.

    kube-scheduler asks only about shortages it sees itself (CPU, memory): victims are never added here.
    """
    args = decode_preemption(body)
    assert args.pod is not None
    request = pod_request(args.pod, core.vendors)
    proposed = _proposed(args)
    policy = policy_of(request.annotations, core.policy)
    if not request.asks_for_devices:
        return PreemptionResult(proposed)
    if isinstance(policy, BadPolicy):
        # Filter will refuse this pod whatever is evicted for it.
        return PreemptionResult({})
    snapshot = core.view.snapshot()
    kept = {}
    for name, victims in proposed.items():
        node = snapshot.nodes.get(name)
        gone = [held for pod in victims.pods or () if (held := snapshot.allocation_of(pod.uid)) is not None and held.live]
        own = snapshot.allocation_of(request.uid)
        for held in (*gone, *([own] if own is not None and own.live else [])):
            if node is not None and held.reservation.node == name:
                node = without(node, held)
        asked = ask(_quota_without(core, snapshot, request.namespace, gone), core.vendors, request, policy, request.uid)
        if isinstance(judge(node, asked), Fit):
            kept[name] = victims
    return PreemptionResult(kept)


def _quota_without(core: Core, snapshot: ClusterSnapshot, namespace: str, gone: Sequence[Allocation]) -> ClusterSnapshot:
    """What a namespace's quota has left once these allocations are given back."""
    own = [held for held in gone if held.reservation.owner.namespace == namespace]
    if namespace not in snapshot.quotas or not own:
        return snapshot
    used = dict(snapshot.quota_used.get(namespace, {}))
    for held in own:
        for vendor in core.vendors:
            memory, cores = vendor_usage(held.reservation.containers, vendor.word, init_done=held.init_done)
            before = used.get(vendor.word, (0, 0))
            used[vendor.word] = (before[0] - memory, before[1] - cores)
    return msgspec.structs.replace(snapshot, quota_used={**snapshot.quota_used, namespace: used})


def _proposed(args: PreemptionArgs) -> dict[str, MetaVictims]:
    if args.meta_victims is not None:
        return args.meta_victims
    return {
        name: MetaVictims([MetaPod(pod.metadata.uid) for pod in each.pods or ()], each.pdb_violations)
        for name, each in (args.victims or {}).items()
    }
