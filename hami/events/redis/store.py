"""All parts of one store over one client."""

from hami.events.redis.checkpoints import RedisCheckpoints
from hami.events.redis.client import Client
from hami.events.redis.feed import RedisFeed
from hami.events.redis.group import RedisGroup
from hami.events.redis.inbox import SWEEP_S, RedisInbox, RedisInboxes
from hami.events.redis.leases import RedisLeases
from hami.events.redis.locks import RedisLocks
from hami.events.redis.log import RedisLog


class RedisStore:
    """Implements hami.events.store.Store. `durable`: appends wait for the append-only file."""

    def __init__(self, client: Client, *, incarnation: str = "", sweep_s: float = SWEEP_S, durable: bool = False) -> None:
        self.client = client
        self.log = RedisLog(client, incarnation=incarnation, durable=durable)
        self.locks = RedisLocks(client)
        self.leases = RedisLeases(client)
        self.checkpoints = RedisCheckpoints(client)
        self.inboxes = RedisInboxes(client, sweep_s=sweep_s)

    def inbox(self, node: str) -> RedisInbox:
        return RedisInbox(self.client, node)

    def feed(self, node: str) -> RedisFeed:
        return RedisFeed(self.client, node)

    def group(self, name: str, consumer: str) -> RedisGroup:
        return RedisGroup(self.client, name, consumer)
