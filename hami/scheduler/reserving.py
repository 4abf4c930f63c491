"""A placement as events: what is written, and the versions it rests on."""

import os
from collections.abc import Sequence

from hami.domain.allocation import Allocation
from hami.domain.cluster import ClusterSnapshot
from hami.domain.request import PodRequest
from hami.events.catalog.allocation import AllocationLapsed, AllocationReserved
from hami.events.catalog.governance import PlacementRequested
from hami.events.log import Draft
from hami.scheduler.core import Core, Decision, at_versions
from hami.scheduler.decide.place import Placement
from hami.scheduler.decide.reserve import reservation
from hami.scheduler.decide.words import wishes_in, words_of
from hami.vendors.vendor import Vendor


def reserved_drafts(
    core: Core, snapshot: ClusterSnapshot, request: PodRequest, found: Placement, held: Allocation | None
) -> Decision:
    """AllocationReserved, after AllocationLapsed of what the pod had reserved before.

    It rests on the node (what fits there), the pod (what it holds) and, where limits exist, on the namespace's quota.
    """
    now = core.clock.now()
    made = reservation(
        found,
        request,
        core.vendors,
        reservation_id=f"r-{os.urandom(10).hex()}",
        scheduler=core.writer.producer,
        node_state=snapshot.nodes[found.node],
        deadline_ms=now + round(core.settings.reservation_ttl_s * 1000),
        policy_version=core.policy_version,
        now_s=now // 1000,
    )
    rests_on = [f"node/{found.node}", f"pod/{request.uid}"]
    if request.namespace in snapshot.quotas:
        rests_on.append(f"quota/{request.namespace}")
    reserved = Draft(event=AllocationReserved(reservation=made), node=found.node, subject=request.uid)
    drafts = [reserved] if held is None else [lapsed_draft(held, "replaced"), reserved]
    return drafts, at_versions(snapshot, *rests_on)


def first_time(snapshot: ClusterSnapshot, vendors: Sequence[Vendor], request: PodRequest, created: str) -> list[Draft]:
    """PlacementRequested when the log has never heard of this pod; goes into the same append as what was decided."""
    if f"pod/{request.uid}" in snapshot.versions:
        return []
    event = PlacementRequested(
        owner_uid=request.uid,
        namespace=request.namespace,
        name=request.name,
        request=words_of(request),
        created=created,
        containers=request.containers,
        wishes=wishes_in(request.annotations, vendors),
    )
    return [Draft(event=event, subject=request.uid)]


def lapsed_draft(held: Allocation, reason: str) -> Draft:
    owner = held.reservation.owner
    event = AllocationLapsed(reservation=held.id, owner_uid=owner.uid, namespace=owner.namespace, reason=reason)
    return Draft(event=event, node=held.reservation.node, subject=owner.uid)
