"""Handshakes: the control plane asks a node what it has; the node answers within 60 s of server time."""

from typing import ClassVar, Final

import msgspec

from hami.domain.device import Health
from hami.domain.units import EpochMs

DIGEST: Final = "digest"
"""`why` of a request whose answer is a new registration: log and node differ on what the node has."""


FORGOTTEN: Final = "forgotten"
"""`why` of a request to a node that has lost what it knew of its cards: it says what the log holds against them."""


class Held(msgspec.Struct, frozen=True):
    """What the log has of one card that is not healthy."""

    health: Health
    reason: str = ""


class HandshakeRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Ask one node to report; `nonce` ties the answer to the question. Delivered through the node's feed."""

    TYPE: ClassVar[str] = "hami.handshake.requested"
    SCHEMA: ClassVar[int] = 1

    nonce: str
    why: str
    deadline_ms: EpochMs = EpochMs(0)
    seen_epoch: int = 0
    seen_seq: int = 0
    """What the log has seen of the agent, when `seen_epoch` is not 0: whatever follows is to be sent again."""
    devices: tuple[str, ...] = ()
    """Cards whose health the log has differently: it is to be told again."""
    held: dict[str, Held] | None = None
    """The cards of the node that are not healthy in the log; None = not told. A node without a record takes this one."""


class HandshakeReported(msgspec.Struct, frozen=True, kw_only=True):
    """The node's answer. `digest` is over its registered device set, so that a difference shows without sending the set."""

    TYPE: ClassVar[str] = "hami.handshake.reported"
    SCHEMA: ClassVar[int] = 1

    nonce: str
    incarnation: str = ""
    epoch: int = 0
    digest: str = ""
    vendor: str = ""
    """Whose devices the digest covers; empty = all of the node's."""
    health: dict[str, Health] = msgspec.field(default_factory=dict)
    """Cards that are not healthy, as the node knows them."""
    forgotten: tuple[str, ...] = ()
    """Cards whose record this node has lost: it wants to hear what the log holds against them. The nonce may be empty then."""


class HandshakeExpired(msgspec.Struct, frozen=True, kw_only=True):
    """No answer within the deadline. `vendor`: whose plugin did not answer, where the question was an annotation."""

    TYPE: ClassVar[str] = "hami.handshake.expired"
    SCHEMA: ClassVar[int] = 1

    nonce: str
    vendor: str = ""
