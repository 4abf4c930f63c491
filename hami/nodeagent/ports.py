"""What the agent needs of the outside to tell what it knows, smallest possible. The rest is hami.events.log and .lease."""

from typing import Protocol

from hami.events.catalog.union import Event
from hami.events.outbox import OutboxState


class Publisher(Protocol):
    """Takes the agent's events for delivery to its inbox, in the order of the calls. The outbox is one.

    Never waits and never raises: the store being away is the publisher's business.
    """

    @property
    def state(self) -> OutboxState:
        """Among others the epoch under which the agent's events are numbered; 0 until the first could be."""
        ...

    def resend(self, epoch: int, seq: int) -> None:
        """The log has seen events up to that one: what follows goes out again."""
        ...

    def publish(self, event: Event, *, subject: str = "") -> None:
        """`subject` is what people search by: a device's uuid, a pod's uid."""
        ...
