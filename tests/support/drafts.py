"""Small events and envelopes for tests of the log."""

from hami.domain.units import EpochMs
from hami.events.catalog.node import NodeLost
from hami.events.codec import seal
from hami.events.envelope import Envelope
from hami.events.log import Draft


def lost(node: str = "n1", reason: str = "lease expired") -> Draft:
    return Draft(event=NodeLost(reason=reason), node=node, subject=node)


def sealed(seq: int, *, producer: str = "p", epoch: int = 1, node: str = "n1", reason: str = "lease expired") -> Envelope:
    return seal(lost(node, reason), producer=producer, epoch=epoch, seq=seq, occurred_ms=EpochMs(1_000 + seq))
