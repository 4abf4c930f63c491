"""Why a whole node is passed over, and how often each word was a reason."""

from collections import Counter
from collections.abc import Mapping

from hami.domain.allocation import Reservation, shares_of
from hami.domain.cluster import Liveness, NodeState
from hami.domain.reasons import NodeReason


def node_refusal(node: NodeState | None) -> NodeReason | None:
    """Why a node's cards are not looked at; None when they are."""
    if node is None or not node.devices:
        return NodeReason.UNREGISTERED
    if node.quarantine:
        return NodeReason.QUARANTINED
    return NodeReason.LOST if node.liveness is Liveness.LOST else None


def still_stands(reservation: Reservation, node: NodeState | None) -> bool:
    """Whether a node could still serve what was reserved on it: the same node, there, with every card in order.

    Between filter and bind a card may fail, be cordoned or leave, and a node may be lost or made anew under its name.
    """
    if node is None or node_refusal(node) is not None:
        return False
    if reservation.node_uid and node.uid and reservation.node_uid != node.uid:
        return False
    fit = {each.device.uuid for each in node.devices if each.schedulable}
    return all(share.uuid in fit for share in shares_of(reservation.containers))


def nodes_by_word(failed: Mapping[str, str]) -> dict[str, list[str]]:
    """Word -> the nodes where cards failed for it, by name. Words that stand for a whole node are not among them."""
    found: dict[str, list[str]] = {}
    words = {
        text: {item.rpartition(" ")[2] for item in text.split(", ")} for text in set(failed.values()) if text[:1].isdigit()
    }
    for node in sorted(failed):
        for word in words.get(failed[node], ()):
            found.setdefault(word, []).append(node)
    return dict(sorted(found.items()))


def reason_counts(failed: Mapping[str, str]) -> dict[str, int]:
    """On how many nodes each word stands: `3/4 CardInsufficientMemory` counts its node once."""
    counts: Counter[str] = Counter()
    for text, nodes in Counter(failed.values()).items():
        words = {item.rpartition(" ")[2] for item in text.split(", ")} if text[:1].isdigit() else {text}
        for word in words:
            counts[word] += nodes
    return dict(sorted(counts.items()))
