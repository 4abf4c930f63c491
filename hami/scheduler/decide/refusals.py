"""Why a whole node is passed over, and how often each word was a reason."""

from collections import Counter
from collections.abc import Mapping

from hami.domain.cluster import Liveness, NodeState
from hami.domain.reasons import NodeReason


def node_refusal(node: NodeState | None) -> NodeReason | None:
    """Why a node's cards are not looked at; None when they are."""
    if node is None or not node.devices:
        return NodeReason.UNREGISTERED
    if node.quarantine:
        return NodeReason.QUARANTINED
    return NodeReason.LOST if node.liveness is Liveness.LOST else None


def reason_counts(failed: Mapping[str, str]) -> dict[str, int]:
    """On how many nodes each word stands: `3/4 CardInsufficientMemory` counts its node once."""
    counts: Counter[str] = Counter()
    for text, nodes in Counter(failed.values()).items():
        words = {item.rpartition(" ")[2] for item in text.split(", ")} if text[:1].isdigit() else {text}
        for word in words:
            counts[word] += nodes
    return dict(sorted(counts.items()))
