"""Everything a process needs of one store, under one name. Implementations: `memory.MemoryStore`, `redis.store.RedisStore`."""

from typing import Protocol

from hami.events.group import Group
from hami.events.lease import Leases, Locks
from hami.events.log import Checkpoints, Inbox, Inboxes, Log, NodeFeed


class Store(Protocol):
    @property
    def log(self) -> Log: ...

    @property
    def locks(self) -> Locks: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def inboxes(self) -> Inboxes: ...

    def inbox(self, node: str) -> Inbox: ...

    def feed(self, node: str) -> NodeFeed: ...

    def group(self, name: str, consumer: str) -> Group: ...
