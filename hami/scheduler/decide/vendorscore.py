"""What vendors add to a node's score for the cards chosen there: one function for every rule that a page can name."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.cluster import NodeState
from hami.scheduler.decide import classes
from hami.scheduler.decide.cards import Question
from hami.scheduler.decide.wings import bubbles
from hami.vendors.ascend import NETWORK
from hami.vendors.metax import LOSSES, in_table
from hami.vendors.metax import SCORES as SCORES_TABLE
from hami.vendors.vastai import BOARD, STRATEGY
from hami.vendors.vendor import Score, Vendor

Granted = Sequence[Sequence[DeviceShare]]
Scoring = Callable[[NodeState, Granted, Question, Vendor], float]


def added_score(node: NodeState, containers: Sequence[ContainerShares], ask: Question) -> float:
    """Summed over the vendors that the pod asks."""
    total = 0.0
    for word, vendor in ask.vendors.items():
        rule = SCORES.get(vendor.score)
        if rule is not None:
            granted = [[share for share in each.shares if share.vendor == word] for each in containers]
            total += rule(node, granted, ask, vendor)
    return total


def scored(ask: Question) -> bool:
    """Does any vendor's score depend on the cards chosen?"""
    return any(each.score is not Score.NONE for each in ask.vendors.values())


def same_board(node: NodeState, granted: Granted, _ask: Question, _vendor: Vendor) -> float:
    """Of each container's cards the largest part on one board; nothing where a card is no die or names no board."""
    known = {each.device.uuid: each.device.attributes for each in node.devices}
    total = 0.0
    for shares in granted:
        boards = Counter(known[share.uuid].get(BOARD) for share in shares)
        if None in boards or any(known[share.uuid].get(STRATEGY, "die") != "die" for share in shares):
            return 0.0
        if shares:
            total += max(boards.values()) / len(shares)
    return total


def node_table(node: NodeState, granted: Granted, ask: Question, vendor: Vendor) -> float:
    """The tables lie with each of the node's cards."""
    key = _TABLES.get(ask.policy.node)
    text = next((each.device.attributes.get(key or "") for each in node.devices if each.device.vendor == vendor.word), None)
    return 0.0 if text is None else float(_TABLE_TOP - in_table(text, sum(map(len, granted))))


def wings(node: NodeState, granted: Granted, _ask: Question, vendor: Vendor) -> float:
    """By how much the cards given out break groups of four that the cards in use before did not."""
    if any(each.device.vendor != vendor.word for each in node.devices):
        return 0.0
    before = bubbles([each.device.index for each in node.devices if each.used.slots > 0])
    now = bubbles([share.index for shares in granted for share in shares])
    return _BY_BUBBLES.get(now - before, 1000.0)


_BY_BUBBLES: Final = {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}


def same_network(node: NodeState, granted: Granted, _ask: Question, _vendor: Vendor) -> float:
    """Of each container's cards the largest part on one network, times ten; nothing where a card names none."""
    known = {each.device.uuid: each.device.attributes for each in node.devices}
    total = 0.0
    for shares in granted:
        networks = Counter(known[share.uuid].get(NETWORK) for share in shares)
        if None in networks:
            return 0.0
        if shares:
            total += max(networks.values()) / len(shares) * 10
    return total


_TABLES: Final = {"binpack": LOSSES, "spread": SCORES_TABLE}
_TABLE_TOP: Final = 2000
SCORES: Final[Mapping[Score, Scoring]] = MappingProxyType(
    {
        Score.SAME_BOARD: same_board,
        Score.NODE_TABLE: node_table,
        Score.CLASS_AND_ZONES: classes.score,
        Score.SAME_NETWORK: same_network,
        Score.WINGS: wings,
    }
)
