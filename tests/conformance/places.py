"""Kunlunxin's links as HAMi looks for them: neighbours by place in the list sorted by load, pairs across by index.

Only the first eight places count; eight cards of a larger node are taken unchecked.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from hami.domain.reasons import NodeReason
from hami.scheduler.decide.cards import Card, Pick, Question, Walk
from hami.scheduler.decide.checks import try_card
from hami.scheduler.decide.fit import Misfit
from hami.scheduler.decide.place import ask, full_score, judge, own_node
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.selects import linked_cards
from hami.scheduler.decide.wings import across, linked
from hami.vendors.vendor import Select
from tests.conformance.answer import Answer

_EIGHT = 8


def by_place(answer: Answer) -> Answer | None:
    """What would be said of every node if cards were linked by place; None where the pod does not ask for linked cards."""
    if not isinstance(answer.policy, SchedulingPolicy):
        return None
    asked = ask(answer.snapshot, answer.vendors, answer.request, answer.policy, answer.request.uid)
    rules = {
        word: msgspec.structs.replace(each, select=_by_place) if asked.vendors[word].select is Select.WINGS else each
        for word, each in asked.rules.items()
    }
    if rules == asked.rules:
        return None
    return _answered(answer, msgspec.structs.replace(asked, rules=rules))


def _answered(answer: Answer, asked: Question) -> Answer:
    found = replace(answer, scores={}, failed={}, fits={})
    own = own_node(answer.snapshot, answer.request.uid)
    for name in answer.names:
        node = own if own is not None and own.name == name else answer.snapshot.nodes.get(name)
        verdict = judge(node, asked)
        if isinstance(verdict, Misfit) or node is None:
            found.failed[name] = verdict.reason if isinstance(verdict, Misfit) else NodeReason.UNREGISTERED.value
        else:
            found.scores[name], found.fits[name] = full_score(node, verdict, asked), verdict.containers
    return found


def _by_place(walk: Walk) -> Sequence[Pick] | None:
    first, rest = walk.cards[:_EIGHT], walk.cards[_EIGHT:]
    if rest and walk.asked.count == _EIGHT:
        return [_unchecked(walk, card) for card in first]
    for card in rest:
        try_card(walk, card)

    def found(fitting: Collection[int], count: int) -> list[int] | None:
        return _linked(first, fitting, count)

    return linked_cards(walk, first, found)


def _linked(cards: Sequence[Card], fitting: Collection[int], count: int) -> list[int] | None:
    largest = max(sum(place // 4 == wing for place in fitting) for wing in (0, 1))
    if count not in {2, 4} or largest >= count:
        return linked(fitting, count)
    places = {cards[place].index: place for place in fitting}
    pairs = across(sorted(places), count)
    return None if pairs is None else [places[index] for index in pairs]


def _unchecked(walk: Walk, card: Card) -> Pick:
    memory, cores = walk.rules.size(walk, card)
    return Pick(card, memory, cores)
