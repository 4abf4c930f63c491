"""What surrounds every event: who wrote it, in which order, about what. CloudEvents in spirit, JSON in field `d`. Pure."""

import hashlib

import msgspec

from hami.domain.units import EpochMs


class Envelope(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`id` is `<producer>/<epoch>/<seq>`: the same event sent twice has the same id.

    `occurred_ms` is the producer's clock, for display only; order comes from the log. `chain` is a hash over the producer's
    previous chain value and this event, so that a missing or altered event of a producer shows offline.
    """

    id: str
    type: str
    producer: str
    epoch: int
    seq: int
    data: msgspec.Raw
    schema: int = 1
    node: str = ""
    subject: str = ""
    occurred_ms: EpochMs = EpochMs(0)
    correlation: str = ""
    causation: str = ""
    chain: str = ""


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place in the log: `g` is the gapless counter of the partition, `entry` the stream id. Ordered by `g`."""

    g: int
    entry: str

    @property
    def recorded_ms(self) -> EpochMs:
        """When the store wrote it, by the store's clock."""
        return EpochMs(int(self.entry.partition("-")[0]))


START = Position(0, "0-0")


def event_id(producer: str, epoch: int, seq: int) -> str:
    return f"{producer}/{epoch}/{seq}"


def agent_name(node: str) -> str:
    """The producer name of a node's agent: what its inbox accepts."""
    return f"agent-{node}"


def chain_of(previous: str, identity: str, data: bytes) -> str:
    """Producer's chain: 128 bits of sha256 over what came before, the id and the payload."""
    return hashlib.sha256(b"\n".join((previous.encode(), identity.encode(), data))).hexdigest()[:32]


def entry_before(entry: str) -> str:
    """The stream id just below: reading after it begins with `entry` itself."""
    ms, _, n = entry.partition("-")
    return f"{ms}-{int(n) - 1}" if int(n or 0) > 0 else f"{int(ms) - 1}-{2**64 - 1}"


def entry_key(entry: str) -> tuple[int, int]:
    """Stream ids compare by number, not by text."""
    ms, _, n = entry.partition("-")
    return int(ms), int(n or 0)
