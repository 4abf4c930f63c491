"""Why a pod fits nowhere, in numbers: what it asks, what is free at best, and what would have to change."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from hami.domain.cluster import ClusterSnapshot
from hami.domain.device import DeviceState, Health
from hami.domain.reasons import NodeReason, Reason
from hami.domain.request import DeviceRequest, PodRequest
from hami.scheduler.decide.quota import admission_need, budget_of
from hami.scheduler.decide.refusals import reason_counts
from hami.vendors.constraints import wishes_of
from hami.vendors.vendor import Vendor


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """One reason: on how many nodes it stands, what the pod asks, the best that any node has, and what would help.

    `asked` and `best` are words with their unit, empty where a reason has no number.
    """

    reason: str
    nodes: int
    asked: str = ""
    best: str = ""
    change: str = ""


class QuotaLine(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of the pod's namespace, in the vendor's unit times its factor: MiB or percent."""

    vendor: str
    what: str
    quota: str
    limit: int
    used: int
    asked: int

    @property
    def exceeded(self) -> bool:
        return self.used + self.asked > self.limit


def shortages(
    snapshot: ClusterSnapshot, vendors: Sequence[Vendor], request: PodRequest, failed: Mapping[str, str]
) -> list[Shortage]:
    """One for each word in the nodes' reasons, the most frequent first."""
    board = _Board(snapshot, vendors, request, failed)
    counted = sorted(reason_counts(failed).items(), key=lambda each: (-each[1], each[0]))
    return [board.line(word, nodes) for word, nodes in counted]


def quota_lines(snapshot: ClusterSnapshot, vendors: Sequence[Vendor], request: PodRequest) -> list[QuotaLine]:
    """The limits that bind this pod; the pod's own live allocation counts as not yet taken."""
    found: list[QuotaLine] = []
    quota = snapshot.quotas.get(request.namespace)
    if quota is None:
        return found
    for vendor in vendors:
        left = budget_of(snapshot, request.namespace, vendor, exclude_owner=request.uid)
        memory, cores = admission_need(request, vendor.word)
        for resource, free, asked, factor, what in (
            (vendor.resources.memory, left.memory, memory, vendor.memory_factor, "memory MiB"),
            (vendor.resources.cores, left.cores, cores, 1, "cores %"),
        ):
            limits = [each for each in quota.limits if each.resource == resource]
            if not resource or free is None or not limits:
                continue
            least = min(limits, key=lambda each: each.limit)
            limit = least.limit * factor
            found.append(
                QuotaLine(vendor=vendor.word, what=what, quota=least.quota, limit=limit, used=limit - free, asked=asked)
            )
    return found


class _Board:
    """The cards that count for this pod, and what it asks of each."""

    def __init__(
        self, snapshot: ClusterSnapshot, vendors: Sequence[Vendor], request: PodRequest, failed: Mapping[str, str]
    ) -> None:
        self._snapshot, self._request, self._failed = snapshot, request, failed
        self._asked = [each for container in request.containers for each in container.requests]
        words = {each.vendor for each in self._asked}
        self._wishes = {each.word: wishes_of(request.annotations, each) for each in vendors if each.word in words}
        self._vendors = [each for each in vendors if each.word in words]
        self._cards = {
            name: [each for each in snapshot.nodes[name].devices if each.device.vendor in words]
            for name in failed
            if name in snapshot.nodes
        }

    def line(self, word: str, nodes: int) -> Shortage:
        make = _LINES.get(word)
        asked, best, change = make(self) if make is not None else ("", "", _FIXED.get(word, ""))
        return Shortage(reason=word, nodes=nodes, asked=asked, best=best, change=change)

    def usable(self) -> list[tuple[str, DeviceState]]:
        """Healthy, not cordoned, and of a kind that the pod takes."""
        return [
            (name, each)
            for name, cards in self._cards.items()
            for each in cards
            if each.schedulable and self._kind_fits(each) and self._wishes[each.device.vendor].uuid_fits(each.device.uuid)
        ]

    def _kind_fits(self, each: DeviceState) -> bool:
        wishes = self._wishes.get(each.device.vendor)
        return wishes is not None and wishes.type_fits(each.device.model, each.device.mode)

    def memory(self) -> tuple[str, str, str]:
        asked = max(self._asked, key=lambda each: (each.memory, each.memory_percent or 0))
        free = [(each.device.memory - each.used.memory, name, each.device.uuid) for name, each in self.usable()]
        if asked.form:
            most = max((memory for memory, _, _ in free), default=0)
            return f"{asked.memory} of {asked.form}", f"{most} MiB", "ask a smaller part, or free more memory on one card"
        need = f"{asked.memory} MiB per card" if asked.memory else f"{asked.memory_percent or 0} % of a card's memory"
        if not free:
            return need, "no usable card", _NO_CARD
        most, name, uuid = max(free)
        best = f"{most} MiB ({uuid} on {name})"
        if asked.memory and most >= asked.memory:
            return need, best, _OTHER_CHECK
        more = f"free {asked.memory - most} MiB more on one card, or " if asked.memory else ""
        return need, best, f"{more}ask at most {most} MiB per card"

    def cores(self) -> tuple[str, str, str]:
        asked = max(min(each.cores, 100) for each in self._asked)
        free = [(each.device.cores - each.used.cores, name, each.device.uuid) for name, each in self.usable()]
        if not free:
            return f"{asked} % per card", "no usable card", _NO_CARD
        most, name, uuid = max(free)
        change = _OTHER_CHECK if most >= asked else f"free {asked - most} % on one card, or ask at most {most} %"
        return f"{asked} % per card", f"{most} % ({uuid} on {name})", change

    def slots(self) -> tuple[str, str, str]:
        free = [each.device.slots - each.used.slots for _, each in self.usable()]
        return "1 slot per card", f"{max(free, default=0)} slots", "a pod has to leave a card, or cards need more slots"

    def cards(self) -> tuple[str, str, str]:
        asked = max(each.count for each in self._asked)
        most = max((len(each) for each in self._cards.values()), default=0)
        return f"{asked} cards on one node", f"{most} cards on one node", f"ask at most {most} cards, or add a larger node"

    def passing(self) -> tuple[str, str, str]:
        asked = max(self._asked, key=lambda each: each.count)
        counts: dict[str, int] = dict.fromkeys(self._cards, 0)
        for name, each in self.usable():
            counts[name] += _has_room(each, asked)
        name, most = max(counts.items(), key=lambda each: (each[1], each[0]), default=("", 0))
        best = f"{most} cards with room ({name})" if name else "no card with room"
        return f"{asked.count} cards with room on one node", best, f"free {asked.count - most} more cards on one node"

    def types(self) -> tuple[str, str, str]:
        wanted: list[str] = []
        for wishes in self._wishes.values():
            wanted += [*(wishes.use_types or ()), *(f"not {each}" for each in wishes.nouse_types or ())]
            wanted += [f"mode {wishes.mode}"] if wishes.mode is not None else []
        there = sorted({each.device.model for cards in self._cards.values() for each in cards})
        return ", ".join(wanted), ", ".join(there), "change the pod's type annotations, or add such cards"

    def uuids(self) -> tuple[str, str, str]:
        wanted: list[str] = []
        for wishes in self._wishes.values():
            wanted += [*(wishes.use_uuids or ()), *(f"not {each}" for each in wishes.nouse_uuids or ())]
        return ", ".join(wanted), "", "change the pod's uuid annotations"

    def unhealthy(self) -> tuple[str, str, str]:
        bad = self._uuids(lambda each: each.health is not Health.HEALTHY)
        return "", f"{len(bad)} cards are not healthy", f"repair them; `hami audit device {bad[0]}` tells why" if bad else ""

    def cordoned(self) -> tuple[str, str, str]:
        bad = self._uuids(lambda each: each.cordoned)
        return "", f"{len(bad)} cards are cordoned", f"`hami device uncordon`, for example {bad[0]}" if bad else ""

    def _uuids(self, bad: Callable[[DeviceState], bool]) -> list[str]:
        return [each.device.uuid for cards in self._cards.values() for each in cards if bad(each)]

    def quota(self) -> tuple[str, str, str]:
        lines = [each for each in quota_lines(self._snapshot, self._vendors, self._request) if each.exceeded]
        if not lines:
            return "", "", "raise the namespace's quota, or end one of its pods"
        asked = "; ".join(f"{each.asked} {each.what}" for each in lines)
        best = "; ".join(f"{max(0, each.limit - each.used)} {each.what} left of {each.limit}" for each in lines)
        names = ", ".join(sorted({each.quota for each in lines}))
        over = "; ".join(f"{each.used + each.asked - each.limit} {each.what}" for each in lines)
        return asked, best, f"raise ResourceQuota {names} of {self._request.namespace} by {over}, or free as much"


def _has_room(each: DeviceState, asked: DeviceRequest) -> bool:
    device, used = each.device, each.used
    memory = asked.memory or device.memory * (asked.memory_percent or 0) // 100
    return (
        device.slots > used.slots
        and device.memory - used.memory >= memory
        and device.cores - used.cores >= min(asked.cores, 100)
    )


_NO_CARD: Final = "no card is healthy, uncordoned and of a kind that the pod takes"
_OTHER_CHECK: Final = "a card with enough exists; another reason keeps the pod from it"
_FIXED: Final[Mapping[str, str]] = {
    NodeReason.UNREGISTERED.value: "start the agent on these nodes, or wait until it has registered their cards",
    NodeReason.LOST.value: "bring the agents of these nodes back: their leases have expired",
    NodeReason.QUARANTINED.value: "`hami state` shows which event cannot be read; a new registration ends most quarantines",
    Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT.value: "a card has to become empty: the pod wants it for itself",
    Reason.CARD_COMPUTE_UNITS_EXHAUSTED.value: "a pod that took all compute of a card has to leave it",
    Reason.MODE_NOT_FIT.value: "no card of these nodes is shared in that way or size: ask another, or offer it on a node",
    Reason.NUMA_NOT_FIT.value: (
        "cards that lie together (on one NUMA node, linked, or neighbours) have to become free, or drop the NUMA annotation"
    ),
    Reason.CARD_APP_CLASS_MISMATCH.value: "a card has to become empty, or get pods that the pod's class bears",
    Reason.CARD_QOS_POLICY_MISMATCH.value: "a card has to become empty, or ask for the policy by which one is shared",
    Reason.CARD_MIG_TOPOLOGY_INFEASIBLE.value: "MIG instances have to leave: no profile that is large enough can be cut now",
}
_LINES: Final = {
    Reason.CARD_INSUFFICIENT_MEMORY.value: _Board.memory,
    Reason.CARD_INSUFFICIENT_CORE.value: _Board.cores,
    Reason.CARD_TIME_SLICING_EXHAUSTED.value: _Board.slots,
    Reason.NODE_INSUFFICIENT_DEVICE.value: _Board.cards,
    Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST.value: _Board.passing,
    Reason.CARD_TYPE_MISMATCH.value: _Board.types,
    Reason.CARD_UUID_MISMATCH.value: _Board.uuids,
    Reason.CARD_NOT_HEALTHY.value: _Board.unhealthy,
    Reason.CARD_UNHEALTHY.value: _Board.unhealthy,
    Reason.CARD_CORDONED.value: _Board.cordoned,
    Reason.RESOURCE_QUOTA_NOT_FIT.value: _Board.quota,
}
