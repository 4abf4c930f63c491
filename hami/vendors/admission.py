"""What admission adds to a container for one vendor; pages with rules of their own bring them."""

from hami.domain.pod import Container, Pod
from hami.vendors.vendor import Changes, Refused, Vendor


def changes_of(container: Container, pod: Pod, vendor: Vendor) -> Changes | Refused:
    """The common rule: the container asks where its limits name the count, and nothing is added."""
    if vendor.admit is not None:
        return vendor.admit(container, pod, vendor)
    limits = container.resources.limits if container.resources is not None else None
    return Changes(claims=limits is not None and vendor.resources.count in limits)
