"""Every key that hami writes: its name, Redis type, lifetime and owner. A test fails on any other key.

All keys of one partition share a hash tag, so that one function call stays in one slot of a Redis Cluster.
"""

from typing import Final, NamedTuple

META: Final = "hami:meta"
LIBRARY: Final = "hami_v1"


class KeyKind(NamedTuple):
    """One row of the table. `pattern` has `*` for the varying part; `ttl` says whether every such key must expire."""

    pattern: str
    type: str
    ttl: bool
    owner: str
    purpose: str


class Keys:
    """Key names of one partition."""

    def __init__(self, partition: str = "p0") -> None:
        self.partition = partition
        base = f"hami:{{{partition}}}:"
        self.base = base
        self.log = base + "log"
        self.heads = base + "heads"
        self.locks = base + "locks"
        self.bell = base + "bell"
        self.archive = base + "archive"
        self.inbox_prefix = base + "in:"

    def inbox(self, node: str) -> str:
        return self.inbox_prefix + node

    def feed(self, node: str) -> str:
        return f"{self.base}out:{node}"

    def lease(self, name: str) -> str:
        return f"{self.base}lease:{name}"

    def lock(self, lock: str) -> str:
        return f"{self.base}lock:{lock}"

    def queue(self, lock: str) -> str:
        return f"{self.base}queue:{lock}"

    def wake_prefix(self, lock: str) -> str:
        """Followed by the waiting owner."""
        return f"{self.base}wake:{lock}:"

    def checkpoint(self, fold: str) -> str:
        return f"{self.base}checkpoint:{fold}"

    def checkpoint_before(self, fold: str) -> str:
        return f"{self.base}checkpoint-before:{fold}"

    def dead(self, group: str) -> str:
        return f"{self.base}dead:{group}"

    def back(self, group: str) -> str:
        return f"{self.base}back:{group}"

    def table(self) -> tuple[KeyKind, ...]:
        """All keys there may be, for docs, tests and `hami` commands that list what a store holds."""
        return (
            KeyKind(META, "hash", False, "hami init", "incarnation, store id, partitions, schema"),
            KeyKind(self.log, "stream", False, "append", "the ordered log"),
            KeyKind(self.heads, "hash", False, "append, hami init", "incarnation, g, producer/<name>, version of each entity"),
            KeyKind(self.inbox("*"), "stream", False, "that node's agent", "registrations, health, handshakes, prepared"),
            KeyKind(self.feed("*"), "stream", True, "append", "what the log says to one node"),
            KeyKind(self.bell, "stream", False, "agents", "wakes the ingester"),
            KeyKind(self.lease("*"), "string", True, "agents, single jobs", "liveness"),
            KeyKind(self.lock("*"), "string", True, "lock functions", "token, state, time and owner of a held lock"),
            KeyKind(self.queue("*"), "list", True, "lock functions", "waiters of a lock, oldest first"),
            KeyKind(self.wake_prefix("*") + "*", "list", True, "lock functions", "wakes one waiter"),
            KeyKind(self.locks, "hash", False, "lock functions", "lock -> last token and holder"),
            KeyKind(self.checkpoint("*"), "string", False, "projections", "a fold's newest saved state"),
            KeyKind(self.checkpoint_before("*"), "string", False, "projections", "the one before"),
            KeyKind(self.archive, "hash", False, "archive", "how far it is; when each consumer group moved last"),
            KeyKind(self.dead("*"), "stream", False, "consumers, ingester", "entries given up"),
            KeyKind(self.back("*"), "stream", False, "hami dlq replay", "what consumers gave up and are to try again"),
            *OUTBOX_KEYS,
        )


class OutboxKeys:
    """Keys in the agent's sidecar, a Redis of its own on the node."""

    entries: Final = "hami:outbox:entries"
    state: Final = "hami:outbox:state"


OUTBOX_KEYS: Final = (
    KeyKind(OutboxKeys.entries, "stream", False, "agent", "events waiting, and acknowledged ones kept for a while"),
    KeyKind(OutboxKeys.state, "hash", False, "agent", "epoch, next seq, chain, acknowledged position"),
)
