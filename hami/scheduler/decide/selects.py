"""Which of the cards that pass are taken: one function for every choice that a vendor page can name.

A choice gets the walk and answers with the picks, or None; then the walk's counts say why.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from types import MappingProxyType
from typing import Final

from hami.domain.device import Health
from hami.domain.reasons import Reason
from hami.scheduler.decide import classes
from hami.scheduler.decide.cards import Card, Pick, Walk
from hami.scheduler.decide.checks import are_dies, soft_wanted, try_card
from hami.scheduler.decide.wings import linked
from hami.vendors.ascend import NETWORK, SOFT_SPLIT
from hami.vendors.enflame import profile_for, profiles_on
from hami.vendors.neuron import NODE_TYPE
from hami.vendors.vastai import BOARD
from hami.vendors.vendor import Select

_MOST_SETS: Final = 20_000
"""Sets of cards that are compared one by one: all of 8 out of 16. Twice as many would hold other pods up for hours."""

Selecting = Callable[[Walk], Sequence[Pick] | None]
Linking = Callable[[Collection[int], int], list[int] | None]
"""Places of cards that fit, how many -> the places to take."""


def first(walk: Walk) -> Sequence[Pick] | None:
    """The first that fit. A MIG card is asked again after a success: it may serve several units."""
    count = walk.asked.count
    for card in reversed(walk.cards):
        while (pick := try_card(walk, card)) is not None:
            walk.taken.append(pick)
            if len(walk.taken) == count:
                return walk.taken
            if pick.planned is None:
                break
    short(walk)
    return None


def every(walk: Walk) -> list[Pick]:
    """All that fit, in the order of the walk."""
    for card in reversed(walk.cards):
        while (pick := try_card(walk, card)) is not None:
            walk.taken.append(pick)
            if pick.planned is None:
                break
    return walk.taken


def short(walk: Walk) -> None:
    """Too few fit: as in HAMi, the number of those that did is told under its own word."""
    if walk.taken:
        walk.refuse(Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, len(walk.taken))


def topology(walk: Walk) -> Sequence[Pick] | None:
    if not walk.topology:
        return first(walk)
    every(walk)
    count = walk.asked.count
    found = walk.taken if len(walk.taken) >= count else walk.earlier
    if len(found) >= count:
        return choose(found, count)
    short(walk)
    return None


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


def filled(groups: Iterable[Sequence[Pick]], count: int) -> list[Pick]:
    """Largest group first, equals in the order they came, until there are enough."""
    found: list[Pick] = []
    for group in sorted(groups, key=len, reverse=True):
        found += group[: count - len(found)]
    return found


def die_groups(walk: Walk) -> Sequence[Pick] | None:
    """Dies: several come from as few boards as possible. Other cards: the first that fit."""
    if not are_dies(walk.cards):
        return first(walk)
    found, count = every(walk), walk.asked.count
    if len(found) < count:
        short(walk)
        return None
    if len(found) == count or count == 1:
        return found[:count]
    boards: dict[str, list[Pick]] = {}
    for pick in found:
        boards.setdefault(pick.card.device.attributes.get(BOARD, ""), []).append(pick)
    return filled(boards.values(), count)


def neuron_runs(walk: Walk) -> Sequence[Pick] | None:
    """Several devices are idle neighbours by index: anywhere on Inferentia, else 4, 8 or 16 from a multiple of it on."""
    count = walk.asked.count
    if count == 1:
        return first(walk)
    cards = sorted(walk.cards, key=lambda card: card.index)
    ring = "inf" in cards[0].device.attributes.get(NODE_TYPE, "").lower()
    if ring or count in _ALIGNED:
        for start in range(0, len(cards) - count + 1, 1 if ring else count):
            run = cards[start : start + count]
            if all(card.state.health is Health.HEALTHY and not card.state.cordoned and card.used == 0 for card in run):
                return [Pick(card, 0, card.device.cores) for card in run]
    walk.refuse(Reason.NUMA_NOT_FIT)
    return None


def class_and_zones(walk: Walk) -> Sequence[Pick] | None:
    found, count = every(walk), walk.asked.count
    if len(found) < count:
        short(walk)
        return None
    return found if len(found) == count else classes.best(walk, found)


def wings(walk: Walk) -> Sequence[Pick] | None:
    """By index: HAMi goes by the place in a list sorted by load (fault V20.3)."""
    return linked_cards(walk, sorted(walk.cards, key=lambda card: card.index))


def linked_cards(walk: Walk, cards: Sequence[Card], find: Linking = linked) -> Sequence[Pick] | None:
    """Cards whose places in this list are linked. Why there are none is told in one word, as in HAMi."""
    picks = {place: pick for place, card in enumerate(cards) if (pick := try_card(walk, card)) is not None}
    found = find(picks, walk.asked.count)
    if found is not None:
        return [picks[place] for place in found]
    told = next((word for word in _TOLD if word in walk.counts), None)
    walk.counts = {Reason.NUMA_NOT_FIT: 1} if told is None else {told: walk.counts[told]}
    return None


def profile(walk: Walk) -> Sequence[Pick] | None:
    """One profile for the node, whichever card will give it."""
    walk.profile = profile_for(walk.asked, profiles_on(card.device for card in walk.cards))
    if walk.profile is None:
        walk.refuse(Reason.MODE_NOT_FIT)
        return None
    return first(walk)


_TOLD: Final = (Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, Reason.CARD_UUID_MISMATCH, Reason.CARD_CORDONED)


def split(walk: Walk) -> Sequence[Pick] | None:
    return first(walk) if _splits_as_wanted(walk) else None


def network_groups(walk: Walk) -> Sequence[Pick] | None:
    """Where every card names its network."""
    if not _splits_as_wanted(walk):
        return None
    count = walk.asked.count
    if count == 1 or any(NETWORK not in card.device.attributes for card in walk.cards):
        return first(walk)
    found = every(walk)
    if len(found) < count:
        short(walk)
        return None
    if len(found) == count:
        return found
    networks: dict[str, list[Pick]] = {}
    for pick in found:
        networks.setdefault(pick.card.device.attributes[NETWORK], []).append(pick)
    return filled(networks.values(), count)


def card_pairs(walk: Walk) -> Sequence[Pick] | None:
    """A card whose twin does not fit is not taken. As in HAMi, a refusal counts what is in pairs, out of what is asked for."""
    if not _splits_as_wanted(walk):
        return None
    count = walk.asked.count
    if count == 1:
        return first(walk)
    pairs: dict[int, list[Pick]] = {}
    for pick in every(walk):
        pairs.setdefault(pick.card.index // 2, []).append(pick)
    found: list[Pick] = []
    for pair in pairs.values():
        if len(pair) == 2 and len(found) < count:
            found += pair
    if len(found) == count:
        return found
    walk.out_of = count
    walk.refuse(Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, len(found))
    return None


def _splits_as_wanted(walk: Walk) -> bool:
    """One refusal for the whole node: a soft split is the node's affair."""
    if not soft_wanted(walk):
        return True
    said = walk.cards[0].device.attributes.get(SOFT_SPLIT)
    if walk.vendor.soft_split if said is None else said == "true":
        return True
    walk.refuse(Reason.MODE_NOT_FIT)
    return False


_ALIGNED: Final = frozenset({4, 8, 16})
SELECTS: Final[Mapping[Select, Selecting]] = MappingProxyType(
    {
        Select.FIRST: first,
        Select.TOPOLOGY: topology,
        Select.DIE_GROUPS: die_groups,
        Select.NEURON_RUNS: neuron_runs,
        Select.CLASS_AND_ZONES: class_and_zones,
        Select.WINGS: wings,
        Select.PROFILE: profile,
        Select.SPLIT: split,
        Select.NETWORK_GROUPS: network_groups,
        Select.CARD_PAIRS: card_pairs,
    }
)
