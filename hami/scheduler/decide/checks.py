"""The checks and sizes that vendor pages name, one function each: what does this card lack for this walk?"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from hami.domain.allocation import DeviceShare
from hami.domain.device import Health
from hami.domain.reasons import Reason
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, MiB
from hami.scheduler.decide import classes, mig
from hami.scheduler.decide.cards import Card, Pick, Walk
from hami.scheduler.decide.quota import vendor_usage
from hami.vendors.ascend import MODE, SOFT
from hami.vendors.vastai import BOARD, STRATEGY
from hami.vendors.vendor import Check, Size

Checking = Callable[[Walk, Card], Reason | None]
Sizing = Callable[[Walk, Card], tuple[int, int]]


def try_card(walk: Walk, card: Card) -> Pick | None:
    """The card's share if it passes every check of its vendor; the first that fails is counted."""
    rules = walk.rules
    walk.planned = None
    walk.memory, walk.cores = rules.size(walk, card)
    for check in rules.checks:
        reason = check(walk, card)
        if reason is not None:
            walk.refuse(reason)
            return None
    slots = 1 if walk.profile is None else walk.profile.slices
    return Pick(card, walk.memory, walk.cores, walk.planned, slots)


# --- sizes: (memory, cores) of one share of this card ---


def share(walk: Walk, card: Card) -> tuple[int, int]:
    asked = walk.asked
    cores = min(asked.cores, 100)
    if asked.memory > 0:
        return asked.memory, cores
    return (card.device.memory * asked.memory_percent // 100 if asked.memory_percent is not None else 0), cores


def nothing(_walk: Walk, _card: Card) -> tuple[int, int]:
    return 0, 0


def compute_units(walk: Walk, card: Card) -> tuple[int, int]:
    """Percent of the card's compute units, rounded down, at least one; all of them where the whole card is meant."""
    asked, total = walk.asked, card.device.cores
    memory = asked.memory or card.device.memory
    if asked.cores == 0:
        return memory, total if asked.memory == 0 else 0
    return memory, min(max(total * asked.cores // 100, 1), total)


def neuron_cores(walk: Walk, card: Card) -> tuple[int, int]:
    """The lowest free bits; all of the device where the whole of it is asked for."""
    total = card.device.cores
    if walk.asked.cores == 0:
        return 0, total
    free = [bit for bit in range(total.bit_length()) if not card.cores >> bit & 1]
    return 0, sum(1 << bit for bit in free[: walk.asked.cores])


def whole(_walk: Walk, card: Card) -> tuple[int, int]:
    return card.device.memory, card.device.cores


def profile(walk: Walk, _card: Card) -> tuple[int, int]:
    return (0, 0) if walk.profile is None else (walk.profile.memory, walk.profile.cores)


# --- checks ---


def health(_walk: Walk, card: Card) -> Reason | None:
    return None if card.state.health is Health.HEALTHY else Reason.CARD_NOT_HEALTHY


def unhealthy(_walk: Walk, card: Card) -> Reason | None:
    return None if card.state.health is Health.HEALTHY else Reason.CARD_UNHEALTHY


def cordon(_walk: Walk, card: Card) -> Reason | None:
    return Reason.CARD_CORDONED if card.state.cordoned else None


def model(walk: Walk, card: Card) -> Reason | None:
    return None if walk.wishes.type_fits(card.device.model, card.device.mode) else Reason.CARD_TYPE_MISMATCH


def numa(walk: Walk, card: Card) -> Reason | None:
    """All cards on one NUMA node: start again there, but keep an earlier one that had enough."""
    if walk.wishes.numa_bind and card.numa != walk.numa:
        if walk.taken and not walk.topology:
            walk.refuse(Reason.NUMA_NOT_FIT, len(walk.taken))
        if len(walk.taken) >= walk.asked.count:
            walk.earlier = walk.taken
        walk.taken, walk.numa = [], card.numa
    return None


def uuid(walk: Walk, card: Card) -> Reason | None:
    return None if walk.wishes.uuid_fits(card.device.uuid) else Reason.CARD_UUID_MISMATCH


def slots(_walk: Walk, card: Card) -> Reason | None:
    return Reason.CARD_TIME_SLICING_EXHAUSTED if card.device.slots <= card.used else None


def mutex(walk: Walk, card: Card) -> Reason | None:
    return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if walk.mutex and card.used > 0 else None


def board_mutex(walk: Walk, card: Card) -> Reason | None:
    reason = mutex(walk, card)
    if reason is not None or not walk.mutex or not are_dies(walk.cards):
        return reason
    board = card.device.attributes.get(BOARD)
    busy = board is not None and any(other.used > 0 and other.device.attributes.get(BOARD) == board for other in walk.cards)
    return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if busy else None


def are_dies(cards: Sequence[Card]) -> bool:
    return bool(cards) and cards[0].device.attributes.get(STRATEGY) == "die"


def quota(walk: Walk, card: Card) -> Reason | None:
    """The whole pod as it would stand with this card (fault B3 fixed); MIG counts what is asked here, as in HAMi."""
    if not walk.budget.limited:
        return None
    *before, current = walk.decided
    word = walk.vendor.word
    wanted = [(each.card.device.uuid, each.memory) for each in walk.taken] + [(card.device.uuid, walk.memory)]
    shares = tuple(
        DeviceShare(vendor=word, uuid=name, memory=MiB(size), cores=CorePercent(walk.cores)) for name, size in wanted
    )
    pod = [*before, msgspec.structs.replace(current, shares=(*current.shares, *shares))]
    return None if walk.budget.fits(*vendor_usage(pod, word)) else Reason.RESOURCE_QUOTA_NOT_FIT


def memory(walk: Walk, card: Card) -> Reason | None:
    return Reason.CARD_INSUFFICIENT_MEMORY if card.device.memory - card.memory < walk.memory else None


def cores(walk: Walk, card: Card) -> Reason | None:
    return Reason.CARD_INSUFFICIENT_CORE if card.device.cores - card.cores < walk.cores else None


def exclusive(walk: Walk, card: Card) -> Reason | None:
    whole = card.device.cores == 100 and walk.cores == 100
    return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if whole and card.used > 0 else None


def exhausted(walk: Walk, card: Card) -> Reason | None:
    total = card.device.cores
    return Reason.CARD_COMPUTE_UNITS_EXHAUSTED if total != 0 and card.cores == total and walk.cores == 0 else None


def same_card(walk: Walk, card: Card) -> Reason | None:
    """Containers of one phase (init, or from then on) share one card: what any of them holds must be this one."""
    *before, current = walk.decided
    early = current.kind is ContainerKind.INIT
    for container in before:
        if (container.kind is ContainerKind.INIT) is early:
            for each in container.shares:
                if each.vendor == walk.vendor.word and each.uuid != card.device.uuid:
                    return Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE
    return None


def mig_place(walk: Walk, card: Card) -> Reason | None:
    if card.device.mode != "mig":
        return None
    queued = [pick.planned[1] for pick in walk.taken if pick.card is card and pick.planned is not None]
    walk.planned = mig.plan(card.device.mig_profiles, walk.memory, (*card.slices, *queued))
    return None if walk.planned else Reason.CARD_MIG_TOPOLOGY_INFEASIBLE


def units(walk: Walk, card: Card) -> Reason | None:
    total = card.device.cores
    return Reason.CARD_INSUFFICIENT_CORE if total <= 0 or total - card.cores < walk.cores else None


def bits(walk: Walk, card: Card) -> Reason | None:
    total = card.device.cores.bit_count()
    return Reason.CARD_INSUFFICIENT_CORE if total - card.cores.bit_count() < (walk.asked.cores or total) else None


def idle(_walk: Walk, card: Card) -> Reason | None:
    return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if card.used > 0 else None


def all_of_it(_walk: Walk, card: Card) -> Reason | None:
    return Reason.NUMA_NOT_FIT if card.used > 0 else None


def equal_parts(walk: Walk, card: Card) -> Reason | None:
    return Reason.NUMA_NOT_FIT if card.used > 0 and card.memory // card.used != walk.memory else None


def counted_cores(walk: Walk, card: Card) -> Reason | None:
    return cores(walk, card) if card.device.cores > 0 else None


def split_cores(walk: Walk, card: Card) -> Reason | None:
    return Reason.CARD_INSUFFICIENT_CORE if _split_total(walk, card) - card.cores < walk.cores else None


def split_exclusive(walk: Walk, card: Card) -> Reason | None:
    whole = walk.cores == 100 and _split_total(walk, card) == 100
    return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if whole and card.used > 0 else None


def split_exhausted(walk: Walk, card: Card) -> Reason | None:
    total = _split_total(walk, card)
    return Reason.CARD_COMPUTE_UNITS_EXHAUSTED if total != 0 and card.cores == total and walk.cores == 0 else None


def soft_wanted(walk: Walk) -> bool:
    return walk.wishes.note(MODE) == SOFT


def _split_total(walk: Walk, card: Card) -> int:
    return 100 if soft_wanted(walk) else card.device.cores


CHECKS: Final[Mapping[Check, Checking]] = MappingProxyType(
    {
        Check.HEALTH: health,
        Check.CORDON: cordon,
        Check.TYPE: model,
        Check.NUMA: numa,
        Check.UUID: uuid,
        Check.SLOTS: slots,
        Check.MUTEX: mutex,
        Check.QUOTA: quota,
        Check.MEMORY: memory,
        Check.CORES: cores,
        Check.EXCLUSIVE: exclusive,
        Check.EXHAUSTED: exhausted,
        Check.SAME_CARD: same_card,
        Check.MIG: mig_place,
        Check.COMPUTE_UNITS: units,
        Check.NEURON_CORES: bits,
        Check.BOARD_MUTEX: board_mutex,
        Check.UNHEALTHY: unhealthy,
        Check.APP_CLASS: classes.app_class,
        Check.QOS: classes.same_sharing,
        Check.IDLE: idle,
        Check.WHOLE: all_of_it,
        Check.EQUAL_PARTS: equal_parts,
        Check.COUNTED_CORES: counted_cores,
        Check.SPLIT_CORES: split_cores,
        Check.SPLIT_EXCLUSIVE: split_exclusive,
        Check.SPLIT_EXHAUSTED: split_exhausted,
    }
)
WORDS: Final[Mapping[Check, Reason]] = MappingProxyType(
    {
        Check.HEALTH: Reason.CARD_NOT_HEALTHY,
        Check.CORDON: Reason.CARD_CORDONED,
        Check.TYPE: Reason.CARD_TYPE_MISMATCH,
        Check.NUMA: Reason.NUMA_NOT_FIT,
        Check.UUID: Reason.CARD_UUID_MISMATCH,
        Check.SLOTS: Reason.CARD_TIME_SLICING_EXHAUSTED,
        Check.MUTEX: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
        Check.QUOTA: Reason.RESOURCE_QUOTA_NOT_FIT,
        Check.MEMORY: Reason.CARD_INSUFFICIENT_MEMORY,
        Check.CORES: Reason.CARD_INSUFFICIENT_CORE,
        Check.EXCLUSIVE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
        Check.EXHAUSTED: Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
        Check.SAME_CARD: Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE,
        Check.MIG: Reason.CARD_MIG_TOPOLOGY_INFEASIBLE,
        Check.COMPUTE_UNITS: Reason.CARD_INSUFFICIENT_CORE,
        Check.NEURON_CORES: Reason.CARD_INSUFFICIENT_CORE,
        Check.BOARD_MUTEX: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
        Check.UNHEALTHY: Reason.CARD_UNHEALTHY,
        Check.APP_CLASS: Reason.CARD_APP_CLASS_MISMATCH,
        Check.QOS: Reason.CARD_QOS_POLICY_MISMATCH,
        Check.IDLE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
        Check.WHOLE: Reason.NUMA_NOT_FIT,
        Check.EQUAL_PARTS: Reason.NUMA_NOT_FIT,
        Check.COUNTED_CORES: Reason.CARD_INSUFFICIENT_CORE,
        Check.SPLIT_CORES: Reason.CARD_INSUFFICIENT_CORE,
        Check.SPLIT_EXCLUSIVE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
        Check.SPLIT_EXHAUSTED: Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
    }
)
"""What users read of a card that fails this check."""
SIZES: Final[Mapping[Size, Sizing]] = MappingProxyType(
    {
        Size.SHARE: share,
        Size.NOTHING: nothing,
        Size.COMPUTE_UNITS: compute_units,
        Size.NEURON_CORES: neuron_cores,
        Size.CLASSED: classes.classed,
        Size.WHOLE: whole,
        Size.PROFILE: profile,
    }
)
