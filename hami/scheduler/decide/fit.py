"""Exactly one node: does the pod fit, and on which cards. This is the judge; planes only save its time.

Containers in order: an init container runs beside the sidecars started before it, sidecars and apps add up. Cards are sorted
by policy and walked from the end; the first check a card fails is its reason.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from operator import attrgetter
from typing import Final

import msgspec

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.cluster import NodeState
from hami.domain.device import DeviceState, Health, MigProfile, MigSlice
from hami.domain.reasons import Reason
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB
from hami.scheduler.decide import mig
from hami.scheduler.decide.policies import SchedulingPolicy, Weights
from hami.scheduler.decide.quota import Budget, vendor_usage
from hami.scheduler.decide.score import device_score
from hami.vendors.constraints import Wishes, wishes_of
from hami.vendors.vendor import Vendor

_NO_BUDGET: Final = Budget()
_MOST_SETS: Final = 20_000
"""Sets of cards that are compared one by one: all of 8 out of 16. Twice as many would hold other pods up for hours."""


class Fit(msgspec.Struct, frozen=True):
    """The pod fits; these cards would be its."""

    containers: tuple[ContainerShares, ...]


class Misfit(msgspec.Struct, frozen=True):
    """The pod does not fit; the text is what users see."""

    reason: str


class Question(msgspec.Struct, frozen=True):
    """A pod's request with everything that does not change from node to node already worked out."""

    request: PodRequest
    policy: SchedulingPolicy
    wishes: Mapping[str, Wishes]
    budgets: Mapping[str, Budget]
    mutex: bool
    topology: bool


def question(
    request: PodRequest, policy: SchedulingPolicy, vendors: Sequence[Vendor], budgets: Mapping[str, Budget]
) -> Question:
    return Question(
        request=request,
        policy=policy,
        wishes={each.word: wishes_of(request.annotations, each) for each in vendors},
        budgets={word: each for word, each in budgets.items() if each.limited},
        mutex=policy.mutex,
        topology=policy.topology_aware,
    )


class Card:
    """A device while a pod is being fitted: what is given out grows with every container."""

    __slots__ = ("cores", "device", "index", "memory", "numa", "score", "slices", "state", "used")

    def __init__(self, state: DeviceState) -> None:
        self.state = state
        self.device = state.device
        self.used = state.used.slots
        self.memory = state.used.memory
        self.cores = state.used.cores
        self.slices: tuple[MigSlice, ...] = state.mig_in_use
        self.numa = state.device.numa
        self.index = state.device.index
        self.score = 0.0

    def copy(self) -> "Card":
        twin = Card(self.state)
        twin.used, twin.memory, twin.cores, twin.slices = self.used, self.memory, self.cores, self.slices
        return twin

    def rate(self, asked: Sequence[DeviceRequest], weights: Weights) -> None:
        """The request counts only where the model is the vendor's word itself, as in HAMi (fault B2, kept for agreement)."""
        device = self.device
        slots, cores, memory = self.used, self.cores, self.memory
        for each in asked:
            if each.vendor == device.model:
                slots += 1
                cores += each.cores
                by_percent = each.memory_percent not in {None, 0}
                memory += device.memory * (each.memory_percent or 0) // 100 if by_percent else each.memory
        self.score = device_score((slots, device.slots), (cores, device.cores), (memory, device.memory), weights)

    def give(self, share: DeviceShare) -> None:
        self.used += 1
        self.memory += share.memory
        self.cores += share.cores
        if share.mig is not None:
            self.slices = (*self.slices, share.mig)


class Pick(msgspec.Struct, frozen=True):
    """A card that passed every check, and what it would give."""

    card: Card
    memory: int
    cores: int
    planned: tuple[MigProfile, MigSlice] | None = None


def fit_node(node: NodeState, ask: Question) -> Fit | Misfit:
    steady = [Card(each) for each in node.devices]
    decided: list[ContainerShares] = []
    for container in ask.request.containers:
        shares: tuple[DeviceShare, ...] = ()
        if container.requests:
            cards = steady if container.kind is not ContainerKind.INIT else [card.copy() for card in steady]
            found = _fit_container(cards, container, ask, decided)
            if isinstance(found, Misfit):
                return found
            shares = found
        decided.append(ContainerShares(name=container.name, kind=container.kind, shares=shares))
    return Fit(tuple(decided))


def _fit_container(
    cards: list[Card], container: ContainerRequest, ask: Question, decided: Sequence[ContainerShares]
) -> tuple[DeviceShare, ...] | Misfit:
    for card in cards:
        card.rate(container.requests, ask.policy.weights)
    shares: tuple[DeviceShare, ...] = ()
    for asked in container.requests:
        wishes = ask.wishes[asked.vendor]
        sort_cards(cards, ask.policy.sort_keys(numa_bind=wishes.numa_bind))
        own = [card for card in cards if card.device.vendor == asked.vendor]
        if asked.count > len(own) and not _may_cut(own, wishes):
            return Misfit(Reason.NODE_INSUFFICIENT_DEVICE.value)
        walk = Walk(asked, wishes, ask, [*decided, ContainerShares(name=container.name, kind=container.kind, shares=shares)])
        picks = walk.over(own)
        if picks is None:
            return Misfit(walk.text(len(own)))
        for pick in picks:
            share = _share_of(pick, asked)
            pick.card.give(share)
            shares = (*shares, share)
    return shares


def sort_cards(cards: list[Card], keys: Sequence[str]) -> None:
    """Stable, key by key from the last to the first."""
    for key in reversed(keys):
        cards.sort(key=attrgetter(key.rstrip("-")), reverse=False) if key[-1] != "-" else _sort_down(cards, key[:-1])


def _sort_down(cards: list[Card], name: str) -> None:
    read = attrgetter(name)
    cards.sort(key=lambda card: -read(card))


def _may_cut(cards: Sequence[Card], wishes: Wishes) -> bool:
    """One MIG card can serve several units of one container."""
    return wishes.mig_welcome and any(card.device.mode == "mig" for card in cards)


def _share_of(pick: Pick, asked: DeviceRequest) -> DeviceShare:
    """MIG is planned anew, one unit after another: a topology choice may have passed over units planned before."""
    device = pick.card.device
    memory, cores, piece = pick.memory, pick.cores, None
    if pick.planned is not None:
        planned = mig.plan(device.mig_profiles, pick.memory, pick.card.slices) or pick.planned
        memory, cores, piece = planned[0].memory, planned[0].cores, planned[1]
    return DeviceShare(
        vendor=asked.vendor,
        uuid=device.uuid,
        memory=MiB(memory),
        cores=CorePercent(cores),
        model=asked.vendor,
        index=device.index,
        mig=piece,
    )


class Walk:
    """One container's request for one vendor, over one node's cards."""

    def __init__(self, asked: DeviceRequest, wishes: Wishes, ask: Question, decided: Sequence[ContainerShares]) -> None:
        self.asked = asked
        self.wishes = wishes
        self.mutex = ask.mutex
        self.topology = ask.topology
        self.budget = ask.budgets.get(asked.vendor, _NO_BUDGET)
        self.decided = decided
        self.cores = min(asked.cores, 100)
        self.taken: list[Pick] = []
        self.earlier: list[Pick] = []
        self.counts: dict[Reason, int] = {}
        self.numa = -1

    def over(self, cards: Sequence[Card]) -> list[Pick] | None:
        """The chosen cards, or None; then `text` says why."""
        count = self.asked.count
        for card in reversed(cards):
            while (pick := self._try(card)) is not None:
                self.taken.append(pick)
                if not self.topology and len(self.taken) == count:
                    return self.taken
                if pick.planned is None:
                    break
        found = self.taken if len(self.taken) >= count else self.earlier
        if self.topology and len(found) >= count:
            return choose(found, count)
        if self.taken:
            self._refuse(Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, len(self.taken))
        return None

    def text(self, cards: int) -> str:
        return ", ".join(sorted(f"{count}/{cards} {reason}" for reason, count in self.counts.items()))

    def _try(self, card: Card) -> Pick | None:
        reason = self._early(card)
        if reason is None:
            if self.wishes.numa_bind and card.numa != self.numa:
                self._cross(card.numa)
            reason = self._room(card)
        if reason is not None:
            self._refuse(reason)
            return None
        memory = self._memory(card)
        if self.budget.limited and not self._within_quota(card, memory):
            self._refuse(Reason.RESOURCE_QUOTA_NOT_FIT)
            return None
        reason = self._capacity(card, memory)
        planned = None
        if reason is None and card.device.mode == "mig":
            planned = self._plan(card, memory)
            reason = None if planned else Reason.CARD_MIG_TOPOLOGY_INFEASIBLE
        if reason is not None:
            self._refuse(reason)
            return None
        return Pick(card, memory, self.cores, planned)

    def _early(self, card: Card) -> Reason | None:
        state = card.state
        if state.health is not Health.HEALTHY:
            return Reason.CARD_NOT_HEALTHY
        if state.cordoned:
            return Reason.CARD_CORDONED
        return None if self.wishes.type_fits(card.device.model, card.device.mode) else Reason.CARD_TYPE_MISMATCH

    def _cross(self, numa: int) -> None:
        """All cards on one NUMA node: start again there, but keep an earlier one that had enough."""
        if self.taken and not self.topology:
            self._refuse(Reason.NUMA_NOT_FIT, len(self.taken))
        if len(self.taken) >= self.asked.count:
            self.earlier = self.taken
        self.taken, self.numa = [], numa

    def _room(self, card: Card) -> Reason | None:
        if not self.wishes.uuid_fits(card.device.uuid):
            return Reason.CARD_UUID_MISMATCH
        if card.device.slots <= card.used:
            return Reason.CARD_TIME_SLICING_EXHAUSTED
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if self.mutex and card.used > 0 else None

    def _memory(self, card: Card) -> int:
        if self.asked.memory > 0:
            return self.asked.memory
        return card.device.memory * self.asked.memory_percent // 100 if self.asked.memory_percent is not None else 0

    def _capacity(self, card: Card, memory: int) -> Reason | None:
        total = card.device.cores
        if card.device.memory - card.memory < memory:
            return Reason.CARD_INSUFFICIENT_MEMORY
        if total - card.cores < self.cores:
            return Reason.CARD_INSUFFICIENT_CORE
        if total == 100 and self.cores == 100 and card.used > 0:
            return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
        if total != 0 and card.cores == total and self.cores == 0:
            return Reason.CARD_COMPUTE_UNITS_EXHAUSTED
        return None

    def _plan(self, card: Card, memory: int) -> tuple[MigProfile, MigSlice] | None:
        queued = [pick.planned[1] for pick in self.taken if pick.card is card and pick.planned is not None]
        return mig.plan(card.device.mig_profiles, memory, (*card.slices, *queued))

    def _within_quota(self, card: Card, memory: int) -> bool:
        """The whole pod as it would stand with this card (faults B3 fixed); MIG counts what is asked here, as in HAMi."""
        *before, current = self.decided
        vendor = self.asked.vendor
        wanted = [(each.card.device.uuid, each.memory) for each in self.taken] + [(card.device.uuid, memory)]
        shares = tuple(
            DeviceShare(vendor=vendor, uuid=uuid, memory=MiB(size), cores=CorePercent(self.cores)) for uuid, size in wanted
        )
        pod = [*before, msgspec.structs.replace(current, shares=(*current.shares, *shares))]
        return self.budget.fits(*vendor_usage(pod, vendor))

    def _refuse(self, reason: Reason, times: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + times


def choose(picks: Sequence[Pick], count: int) -> list[Pick]:
    """Topology: one card leaves the best connected ones together; several are the best connected set. First wins a tie."""
    if len(picks) == count:
        return list(picks)
    pairs = [[a.card.device.pair_scores.get(b.card.device.uuid, 0) for b in picks] for a in picks]
    if count == 1:
        sums = [sum(row) - row[i] for i, row in enumerate(pairs)]
        return [picks[sums.index(min(sums))]]
    if comb(len(picks), count) > _MOST_SETS:
        return [picks[i] for i in _grown(pairs, count)]
    best: tuple[int, ...] = ()
    best_sum: int | None = None
    for subset in combinations(range(len(picks)), count):
        total = sum(pairs[a][b] for a, b in combinations(subset, 2))
        if best_sum is None or total > best_sum:
            best, best_sum = subset, total
    return [picks[i] for i in best]


def _grown(pairs: Sequence[Sequence[int]], count: int) -> list[int]:
    """A well connected set where there are too many to compare: the best pair, then card by card what connects best to it."""
    size = range(len(pairs))
    pair = max(combinations(size, 2), key=lambda both: pairs[both[0]][both[1]])
    found = [*pair]
    while len(found) < count:
        found.append(max((i for i in size if i not in found), key=lambda i: sum(pairs[i][j] for j in found)))
    return sorted(found)
