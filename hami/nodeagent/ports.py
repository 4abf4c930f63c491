"""What the agent needs of the outside, smallest possible: where its events go, what the log says to it, that it lives."""

from typing import Protocol

from hami.events.catalog.union import Event


class Publisher(Protocol):
    """Takes the agent's events for delivery to its inbox, in the order of the calls.

    Returns when the event is kept, not when it has arrived; the store being away is the publisher's business and never raises.
    """

    async def publish(self, event: Event, *, subject: str = "") -> None:
        """`subject` is what people search by: a device's uuid, a pod's uid."""
        ...
