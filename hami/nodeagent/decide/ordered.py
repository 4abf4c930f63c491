"""decide for delivery in order: whose Allocate this is, or why it cannot be told. Pure.

The kubelet names ids, never a pod. The control plane keeps at most one reservation of such a node between bound and prepared,
so mostly there is one answer. Where there are several, the call is refused, unless all of them would be answered alike.
"""

from collections.abc import Sequence

import msgspec

from hami.domain.allocation import DeviceShare

NONE_BOUND = "no bound reservation of this node waits for devices"


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A container that was bound to this node and has not been answered: the next one of its pod, as the kubelet goes."""

    reservation: str
    owner_uid: str
    container: str
    shares: tuple[DeviceShare, ...]


class Refusal(msgspec.Struct, frozen=True):
    """Fails the pod at the kubelet; the text ends up in the pod's status."""

    why: str


def whose(waiting: Sequence[Waiting], asked: int) -> Waiting | Refusal:
    """The container that a call for this many devices is for."""
    if not waiting:
        return Refusal(NONE_BOUND)
    fitting = [each for each in waiting if len(each.shares) == asked]
    if not fitting:
        shapes = ", ".join(sorted({f"{each.container}: {len(each.shares)}" for each in waiting}))
        return Refusal(f"the kubelet asks for {asked} devices, what waits here has ({shapes})")
    if any(_answer(each) != _answer(fitting[0]) for each in fitting):
        names = ", ".join(sorted(each.reservation for each in fitting))
        return Refusal(f"{len(fitting)} containers could be meant (reservations {names}): a guess could be another tenant's")
    return fitting[0]


def _answer(waiting: Waiting) -> list[tuple[object, ...]]:
    """What the answer depends on: two containers with equal parts get equal answers, but for the cache folder."""
    return [(share.uuid, share.memory, share.cores, share.mig) for share in waiting.shares]
