"""Cards shared by classes of pods, under one policy a card, in link zones: what fits beside what, which are taken, the score.

What runs on a card is read from the notes of the pods there; those of the pod being placed are among them as its containers
get their cards.
"""

from collections.abc import Collection, Sequence
from typing import Final

from hami.domain.allocation import DeviceShare
from hami.domain.cluster import NodeState
from hami.domain.device import Device, DeviceState
from hami.domain.reasons import Reason
from hami.scheduler.decide.cards import Card, Pick, Question, Walk
from hami.vendors.metax_shared import CLASS, LINKED, OFFLINE, ONLINE, QOS, classes, sharing, zone
from hami.vendors.vendor import Vendor

_WHOLE: Final = 100
_PAIR: Final = 10
_NEUTRAL: Final = 10_000
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def wanted(walk: Walk) -> str:
    return walk.wishes.note(CLASS)


def classed(walk: Walk, card: Card) -> tuple[int, int]:
    """An online pod's share has no cores."""
    asked = walk.asked
    memory = asked.memory or card.device.memory * (asked.memory_percent or 0) // 100
    return memory, 0 if wanted(walk) == ONLINE else asked.cores


def app_class(walk: Walk, card: Card) -> Reason | None:
    """Of the pods that were there before; a share of this very pod counts as one without a class, as in HAMi."""
    if card.used == 0:
        return None
    online, offline = classes(card.state.notes)
    own = wanted(walk)
    if own == ONLINE:
        fits = online + offline > 0
    elif own == OFFLINE:
        fits = online == 0 and offline > 0
    else:
        fits = online + offline == 0
    return None if fits else Reason.CARD_APP_CLASS_MISMATCH


def same_sharing(walk: Walk, card: Card) -> Reason | None:
    if card.used == 0 or walk.asked.cores == _WHOLE:
        return None
    fits = sharing(card.device, card.notes) in {"", walk.wishes.note(QOS)}
    return None if fits else Reason.CARD_QOS_POLICY_MISMATCH


def best(walk: Walk, found: Sequence[Pick]) -> Sequence[Pick]:
    """More cards fit than are asked for."""
    count, own = walk.asked.count, wanted(walk)
    if own == ONLINE:
        return sorted(found, key=lambda pick: _beside(pick.card.state.notes))[:count]
    if own != OFFLINE and walk.asked.cores == _WHOLE:
        return _by_zone(found, count)
    return found[:count]


def _beside(notes: Sequence[str]) -> tuple[bool, int, int]:
    """Cards where offline pods would get their first online one come last."""
    online, offline = classes(notes)
    return online == 0 and offline > 0, online, offline


def _by_zone(found: Sequence[Pick], count: int) -> list[Pick]:
    """Equal zones by number; HAMi takes any."""
    zones: dict[int, list[Pick]] = {}
    for pick in found:
        zones.setdefault(max(zone(pick.card.device), 0), []).append(pick)
    loose = zones.pop(0, [])
    groups = [zones[number] for number in sorted(zones, key=lambda number: (len(zones[number]), number))]
    enough = next((group for group in groups if len(group) >= count), None)
    if enough is not None:
        return enough[:count]
    return [pick for group in (*groups, loose) for pick in group][:count]


def score(node: NodeState, granted: Sequence[Sequence[DeviceShare]], ask: Question, vendor: Vendor) -> float:
    """Larger is better under either policy, so the sign follows the policy."""
    shares = [share for container in granted for share in container]
    cards = [each for each in node.devices if each.device.vendor == vendor.word]
    sign = -1 if ask.policy.spreads_nodes else 1
    if ask.wishes[vendor.word].note(CLASS) == ONLINE:
        return float(sign * _NEUTRAL * _company(cards, shares))
    if not _zones_count(ask, vendor):
        return 0.0
    return float(sign * _NEUTRAL * _linked(cards, {share.uuid for share in shares if share.cores == _WHOLE}))


def _company(cards: Sequence[DeviceState], shares: Sequence[DeviceShare]) -> int:
    """What an online pod costs those that run there already."""
    notes = {each.device.uuid: each.notes for each in cards}
    total = 0
    for share in shares:
        online, offline = classes(notes.get(share.uuid, ()))
        total -= 100 * offline if online == 0 else 20 * online + 2 * offline
    return total


def _zones_count(ask: Question, vendor: Vendor) -> bool:
    said = ask.wishes[vendor.word].note(LINKED)
    return said in _TRUE or (vendor.link_zones and said not in _FALSE)


def _linked(cards: Sequence[DeviceState], taken: Collection[str]) -> int:
    """Ten times what is linked among the cards taken, less the links that the choice breaks; of cards that were idle."""
    if not taken:
        return 0
    idle = [each.device for each in cards if each.used.slots == 0]
    chosen = _pairs([each for each in idle if each.uuid in taken])
    rest = _pairs([each for each in idle if each.uuid not in taken])
    return 10 * chosen - (_pairs(idle) - chosen - rest)


def _pairs(devices: Sequence[Device]) -> int:
    zones = [zone(each) for each in devices]
    return _PAIR * sum(zones.count(each) * (zones.count(each) - 1) // 2 for each in set(zones) - {0})
