"""decide for delivery: what the kubelet gave a container, beside what was reserved for it. Pure."""

from collections.abc import Sequence

from hami.domain.allocation import Reservation


def difference(reservation: Reservation, container: str, device_ids: Sequence[str]) -> str:
    """What differs, in words; empty when nothing does.

    In identity delivery the kubelet's ids say nothing of the card, only how many it counted; the cards themselves come from
    the pod's own environment.
    """
    shares = next((each.shares for each in reservation.containers if each.name == container), None)
    if shares is None:
        return f"container {container} is not in the reservation"
    if len(shares) != len(device_ids):
        return f"the kubelet counted {len(device_ids)} devices, the reservation has {len(shares)}"
    return ""
