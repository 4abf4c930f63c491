"""A placement as the reservation that goes into the log, with what the Binding will carry onto the pod."""

import hashlib
from collections.abc import Sequence

import msgspec

from hami.domain.allocation import ContainerShares, PodOwner, Reservation
from hami.domain.cluster import Delivery, NodeState
from hami.domain.request import PodRequest
from hami.domain.units import EpochMs
from hami.scheduler.decide.place import Placement
from hami.vendors import annotations, identity
from hami.vendors.vendor import Vendor, Writing


def reservation(
    placement: Placement,
    request: PodRequest,
    vendors: Sequence[Vendor],
    *,
    reservation_id: str,
    scheduler: str,
    node_state: NodeState,
    deadline_ms: int,
    policy_version: str,
    now_s: int,
) -> Reservation:
    return Reservation(
        id=reservation_id,
        owner=PodOwner(request.uid, request.namespace, request.name),
        node=placement.node,
        containers=placement.containers,
        scheduler=scheduler,
        deadline_ms=EpochMs(deadline_ms),
        node_uid=node_state.uid,
        node_epoch=node_state.epoch,
        policy_version=policy_version,
        request_digest=request_digest(request),
        score=placement.score,
        annotations=binding_annotations(
            placement.containers, vendors, reservation_id=reservation_id, node=node_state, now_s=now_s, request=request
        ),
    )


def binding_annotations(
    containers: Sequence[ContainerShares],
    vendors: Sequence[Vendor],
    *,
    reservation_id: str,
    node: NodeState,
    now_s: int,
    request: PodRequest | None = None,
) -> dict[str, str]:
    """HAMi's keys and ours. Call it again with realised MIG instances before the Binding is written.

    Without a request the vendors' further annotations stay as they were.
    """
    found = {
        identity.RESERVATION: reservation_id,
        identity.NODE: node.name,
        identity.TIME: str(now_s),
        identity.BIND_TIME: str(now_s),
        identity.BIND_PHASE: "allocating" if _is_awaited(containers, node) else "success",
    }
    for vendor in vendors:
        if not any(share.vendor == vendor.word for each in containers for share in each.shares):
            continue
        text = annotations.encode_shares(containers, vendor.word)
        found[vendor.keys.allocated] = text
        if vendor.keys.to_allocate:
            found[vendor.keys.to_allocate] = text
        instances = annotations.mig_entries(containers)
        if vendor.keys.mig and instances:
            found[vendor.keys.mig] = annotations.encode_mig(instances)
        if vendor.annotate is not None and request is not None:
            own = tuple(
                msgspec.structs.replace(each, shares=tuple(share for share in each.shares if share.vendor == vendor.word))
                for each in containers
            )
            found |= vendor.annotate(Writing(containers=own, request=request, node=node, now_s=now_s), vendor)
        if vendor.identity:
            found |= identity.delivered(containers, reservation_id, vendor.word, node.visible)
    return found


def _is_awaited(containers: Sequence[ContainerShares], node: NodeState) -> bool:
    """Whether a device plugin has yet to answer for this very pod."""
    if node.delivery is Delivery.ORDERED:
        return True
    return any(node.is_foreign(share.vendor) for each in containers for share in each.shares)


def request_digest(request: PodRequest) -> str:
    """What was asked, in short: two pods of one shape have the same."""
    return hashlib.sha256(msgspec.json.encode(request.containers, order="deterministic")).hexdigest()[:32]
