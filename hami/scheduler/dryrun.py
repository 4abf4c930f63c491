"""A filter call that carries whole Node objects: what would fit on them if nothing ran there. Nothing is written.

Devices come from the nodes' own register annotations, as vendor plugins write them; a node without any is unregistered.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import DeviceState
from hami.domain.pod import Node
from hami.domain.request import PodRequest
from hami.scheduler.core import Core
from hami.scheduler.decide.place import Unschedulable, place_exactly
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.wire import ExtenderArgs, FilterResult, NodeList, decode_node
from hami.vendors.announced import announced
from hami.vendors.vendor import Vendor

_CORDON: Final = "hami.io/device-cordon"


def answer(core: Core, args: ExtenderArgs, request: PodRequest, policy: SchedulingPolicy) -> FilterResult:
    """The best node, and a reason for every other. Raises InvalidInput."""
    given = args.nodes.items if args.nodes is not None else []
    raw: dict[str, msgspec.Raw] = {}
    states: dict[str, NodeState] = {}
    for number, item in enumerate(given):
        node = decode_node(item, f"Nodes.items[{number}]")
        raw[node.metadata.name] = item
        states[node.metadata.name] = node_state(node, core.vendors)
    live = core.view.snapshot()
    empty = ClusterSnapshot(nodes=states, quotas=live.quotas, quota_used=live.quota_used)
    found = place_exactly(empty, core.vendors, request, tuple(raw), policy)
    if isinstance(found, Unschedulable):
        return FilterResult(failed_nodes=found.reasons)
    return FilterResult(nodes=NodeList([raw[found.node]]), failed_nodes=found.failed)


def node_state(node: Node, vendors: Sequence[Vendor]) -> NodeState:
    """What a Node object says of its devices; what of it cannot be read is passed over."""
    cordoned = cordoned_uuids(node.metadata.notes.get(_CORDON, ""))
    devices = [
        DeviceState(device=each, health=each.health, cordoned=each.uuid in cordoned)
        for vendor in vendors
        for each in announced(node, vendor).devices
    ]
    return NodeState(name=node.metadata.name, uid=node.metadata.uid, devices=tuple(devices))


def cordoned_uuids(text: str) -> frozenset[str]:
    """The value of `hami.io/device-cordon`: a comma list, blanks and empty entries ignored."""
    return frozenset(each.strip() for each in text.split(",")) - {""}
