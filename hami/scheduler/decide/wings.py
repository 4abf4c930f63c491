"""Eight linked cards: two wings of four neighbours (0-3, 4-7), each card linked across to the one four further on.

Cards are told by their places. A node with more than eight has one such group after another.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

_GROUP: Final = 8
_WING: Final = 4
_SIZES: Final = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
"""How many cards are asked -> which wing is taken first, by its fitting cards: rather the one that stays least useful."""
_QUADS: Final = ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6))
"""Four cards in two pairs across."""


def linked(fitting: Collection[int], count: int) -> list[int] | None:
    """The places to take, or None where the fitting ones are not linked so."""
    for start in range(0, max(fitting, default=-1) + 1, _GROUP):
        here = sorted(place - start for place in fitting if start <= place < start + _GROUP)
        found = _in_group(here, count)
        if found is not None:
            return [start + place for place in found]
    return None


def _in_group(fitting: Sequence[int], count: int) -> Sequence[int] | None:
    if count == _GROUP:
        return fitting if len(fitting) == _GROUP else None
    if count not in _SIZES:
        return None
    wings = ([place for place in fitting if place < _WING], [place for place in fitting if place >= _WING])
    for size in _SIZES[count]:
        for wing in wings:
            if len(wing) == size:
                return wing[:count]
    return across(fitting, count)


def across(fitting: Sequence[int], count: int) -> Sequence[int] | None:
    """Two or four of one group in pairs across; of six fitting ones those that leave a linked pair."""
    if count == 2:
        return next(((place, place + _WING) for place in fitting if place + _WING in fitting), None)
    quads = [quad for quad in _QUADS if set(quad) <= set(fitting)]
    if count != _WING or not quads:
        return None
    if len(fitting) < 6:
        return quads[0]
    return next((quad for quad in quads if _is_pair(set(fitting) - set(quad))), quads[-1])


def _is_pair(rest: set[int]) -> bool:
    """Are the two cards that are left linked to each other?"""
    low, high = sorted(rest)
    return high - low == _WING or low // _WING == high // _WING


def bubbles(taken: Collection[int]) -> int:
    """How many wings these cards break, a single card twice; a group with nothing taken counts as one."""
    groups = {place // _GROUP for place in taken}
    return sum(_broken(taken, group) for group in groups) if groups else 1


def _broken(taken: Collection[int], group: int) -> int:
    found = 0
    for wing in _wings(group):
        size = len(wing & set(taken))
        found += 0 if size == _WING else 2 if size == 1 else 1
    return found


def _wings(group: int) -> Iterator[set[int]]:
    for start in (group * _GROUP, group * _GROUP + _WING):
        yield set(range(start, start + _WING))
