"""What the agent needs of the outside to tell what it knows, smallest possible. The rest is hami.events.log and .lease."""

from typing import Protocol

from hami.events.catalog.union import Event


class Publisher(Protocol):
    """Takes the agent's events for delivery to its inbox, in the order of the calls. The outbox is one.

    Never waits and never raises: the store being away is the publisher's business.
    """

    def publish(self, event: Event, *, subject: str = "") -> None:
        """`subject` is what people search by: a device's uuid, a pod's uid."""
        ...
