"""One node's cards while a pod is being fitted, and one container's walk over them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.device import DeviceState, MigProfile, MigSlice
from hami.domain.reasons import Reason
from hami.domain.request import DeviceRequest, PodRequest
from hami.scheduler.decide.policies import SchedulingPolicy, Weights
from hami.scheduler.decide.quota import Budget
from hami.scheduler.decide.score import device_score
from hami.vendors.constraints import Wishes
from hami.vendors.enflame import Profile
from hami.vendors.vendor import Vendor

_NO_BUDGET: Final = Budget()


class Rules(msgspec.Struct, frozen=True):
    """A vendor page's checks, size and choice as functions, looked up once for a request."""

    size: "Callable[[Walk, Card], tuple[int, int]]"
    checks: "tuple[Callable[[Walk, Card], Reason | None], ...]"
    select: "Callable[[Walk], Sequence[Pick] | None]"


class Question(msgspec.Struct, frozen=True):
    """A pod's request with everything that does not change from node to node already worked out.

    `vendors`, `rules`, `wishes` and `budgets` are of the vendors that the pod asks, by word. `numa_bind`: cards are sorted by
    NUMA node first, whoever made them.
    """

    request: PodRequest
    policy: SchedulingPolicy
    vendors: Mapping[str, Vendor]
    rules: Mapping[str, Rules]
    wishes: Mapping[str, Wishes]
    budgets: Mapping[str, Budget]
    mutex: bool
    topology: bool
    numa_bind: bool


def part_of(total: int, percent: int) -> int:
    """Rounded towards zero."""
    return total * percent // 100 if percent >= 0 else -(total * -percent // 100)


class Card:
    """A device while a pod is being fitted: what is given out grows with every container."""

    __slots__ = ("cores", "device", "index", "memory", "notes", "numa", "score", "slices", "state", "used")

    def __init__(self, state: DeviceState) -> None:
        self.state = state
        self.device = state.device
        self.used = state.used.slots
        self.memory = state.used.memory
        self.cores = state.used.cores
        self.slices: tuple[MigSlice, ...] = state.mig_in_use
        self.notes: tuple[str, ...] = state.notes
        self.numa = state.device.numa
        self.index = state.device.index
        self.score = 0.0

    def copy(self) -> "Card":
        twin = Card(self.state)
        twin.used, twin.memory, twin.cores, twin.slices = self.used, self.memory, self.cores, self.slices
        twin.notes = self.notes
        return twin

    def rate(self, asked: Sequence[DeviceRequest], weights: Weights) -> None:
        """The request counts only where the model is the vendor's word itself, as in HAMi (fault B2, kept for agreement)."""
        device = self.device
        slots, cores, memory = self.used, self.cores, self.memory
        for each in asked:
            if each.vendor == device.model:
                slots += 1
                cores += each.cores
                percent = each.memory_percent or 0
                memory += part_of(device.memory, percent) if percent else each.memory
        self.score = device_score((slots, device.slots), (cores, device.cores), (memory, device.memory), weights)

    def give(self, share: DeviceShare, slots: int = 1) -> None:
        self.used += slots
        self.memory += share.memory
        self.cores += share.cores
        if share.mig is not None:
            self.slices = (*self.slices, share.mig)
        if share.note:
            self.notes = (*self.notes, share.note)


class Pick(msgspec.Struct, frozen=True):
    """A card that passed every check, and what it would give."""

    card: Card
    memory: int
    cores: int
    planned: tuple[MigProfile, MigSlice] | None = None
    slots: int = 1
    """For the pod's further containers; the ledger counts one a share, as HAMi does."""


class Walk:
    """One container's request for one vendor, over one node's cards: what checks and choices read and write.

    `cards`: the vendor's cards on this node, sorted so that the walk starts at the end. `decided`: the pod's containers so
    far, this one last. `memory`, `cores` and `planned` are about the card looked at now. `profile`: what each card is to give,
    where that was chosen for the whole node. `out_of`: what its counts are told to be a part of, mostly the cards.
    """

    def __init__(
        self, asked: DeviceRequest, ask: Question, decided: Sequence[ContainerShares], cards: Sequence["Card"]
    ) -> None:
        self.asked = asked
        self.vendor = ask.vendors[asked.vendor]
        self.rules = ask.rules[asked.vendor]
        self.wishes = ask.wishes[asked.vendor]
        self.mutex = ask.mutex
        self.topology = ask.topology
        self.budget = ask.budgets.get(asked.vendor, _NO_BUDGET)
        self.decided = decided
        self.cards = cards
        self.out_of = len(cards)
        self.taken: list[Pick] = []
        self.earlier: list[Pick] = []
        self.counts: dict[Reason, int] = {}
        self.numa = -1
        self.memory = 0
        self.cores = 0
        self.planned: tuple[MigProfile, MigSlice] | None = None
        self.profile: Profile | None = None

    def refuse(self, reason: Reason, times: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + times

    @property
    def text(self) -> str:
        return ", ".join(sorted(f"{count}/{self.out_of} {reason}" for reason, count in self.counts.items()))
