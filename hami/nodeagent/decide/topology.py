"""decide for topology: how close two cards are, as one number, on HAMi's scale: its annotation reads the same. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from hami.domain.device import Device

LEVEL_SCORES: Final[Mapping[int, int]] = {50: 10, 40: 20, 30: 30, 20: 40, 10: 50, 0: 60}
"""NVML's nearest common ancestor (system, NUMA node, host bridge, several switches, one switch, same board) -> score."""

LINK_SCORE: Final = 100
SWITCH: Final = "switch"


def pair_score(level: int | None, a: str, b: str, links: Mapping[str, Sequence[str]]) -> int:
    """`links`: bus id -> what its active NVLinks end at, a bus id or `switch`. Cards that disagree on their links score 0."""
    there, back = links.get(a, ()), links.get(b, ())
    direct, returned = there.count(b), back.count(a)
    if direct != returned:
        return 0
    lanes = direct or min(there.count(SWITCH), back.count(SWITCH))
    return LEVEL_SCORES.get(-1 if level is None else level, 0) + LINK_SCORE * lanes


def linked(cards: Sequence[Device], uuid: str) -> tuple[str, ...]:
    """The cards that share a link with this one."""
    return tuple(other.uuid for other in cards if other.uuid != uuid and other.pair_scores.get(uuid, 0) >= LINK_SCORE)
