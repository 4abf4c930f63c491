"""The key table: everything hami writes is in it, and the check that says so can fail."""

import pytest

from hami.events.redis.client import Client
from hami.events.redis.keys import Keys
from tests.support.key_leaks import row_of, unlisted_keys

FORGOTTEN = {
    "not listed": ("SET", "hami:{p0}:surprise", "1"),
    "is a string": ("SET", "hami:{p0}:bell", "1"),
    "has no TTL": ("SET", "hami:{p0}:lease:n1", "1"),
    "expires": ("SET", "hami:{p0}:checkpoint:cluster", "1", "PX", "60000"),
}


@pytest.mark.parametrize("why", FORGOTTEN)
async def test_a_key_against_the_table_is_found(valkey_client: Client, why: str) -> None:
    name = FORGOTTEN[why][1]
    await valkey_client.command.call(*FORGOTTEN[why])
    found = await unlisted_keys(valkey_client)
    await valkey_client.command.call("DEL", name)
    assert [each.startswith(name) and why in each for each in found] == [True]


def test_every_key_of_a_partition_has_its_row_and_shares_its_hash_tag() -> None:
    keys = Keys("p7")
    names = [
        *(keys.log, keys.heads, keys.locks, keys.bell, keys.archive),
        *(keys.inbox("n"), keys.feed("n"), keys.lease("n"), keys.lock("n"), keys.queue("n"), keys.wake_prefix("n") + "pod"),
        *(keys.checkpoint("f"), keys.checkpoint_before("f"), keys.dead("g"), keys.back("g")),
    ]
    assert [name for name in names if row_of(keys.table(), name) is None] == []
    assert {name[: len("hami:{p7}:")] for name in names} == {"hami:{p7}:"}
    assert len({row.pattern for row in keys.table()}) == len(keys.table())
