"""All that ours says to one recorded filter call."""

from dataclasses import dataclass

from hami.domain.allocation import ContainerShares
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import PodRequest
from hami.scheduler.decide.place import Placement, Unschedulable
from hami.scheduler.decide.policies import BadPolicy, SchedulingPolicy
from hami.vendors.vendor import Vendor


@dataclass
class Answer:
    """`scores` and `fits` of the nodes that fit, `failed` of the others; `result` of the whole call."""

    request: PodRequest
    snapshot: ClusterSnapshot
    policy: SchedulingPolicy | BadPolicy
    vendors: tuple[Vendor, ...]
    names: list[str]
    scores: dict[str, float]
    failed: dict[str, str]
    fits: dict[str, tuple[ContainerShares, ...]]
    result: Placement | Unschedulable | None
