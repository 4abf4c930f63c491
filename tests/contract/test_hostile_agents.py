"""A node that was taken over writes whatever it likes into its inbox and onto the bell: it costs that node, and nobody else."""

import json
from typing import Any

import anyio
import pytest

from hami.domain.device import Device, MigPlacement, MigSlice
from hami.events.catalog.device import MigInstanceCreated
from hami.events.catalog.journal import InputRejected
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.plausible import LARGEST, MOST_DEVICES, objection
from hami.events.codec import decode_record
from hami.events.ingester import LONGEST, Ingester
from hami.events.log import Undecodable
from hami.events.redis.client import Client
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from tests.contract.test_ingest import sent
from tests.support.builders import a_device

NESTED = b"[" * 50_000 + b"]" * 50_000


def raw(**given: Any) -> bytes:
    """An envelope as bytes, with whatever the sender wants to see in it."""
    fields = {
        "id": "agent-n1/1/1",
        "type": "hami.node.registered",
        "producer": "agent-n1",
        "epoch": 1,
        "seq": 1,
        "data": {"vendor": "NVIDIA", "devices": []},
        "node": "n1",
    }
    return json.dumps(fields | given).encode()


def registering(**device: Any) -> bytes:
    fields = {"uuid": "GPU-1", "vendor": "NVIDIA", "model": "m", "memory": 1000, "cores": 100, "slots": 10}
    return raw(data={"vendor": "NVIDIA", "devices": [fields | device]})


HOSTILE = {
    "a registration in the scheduler's name": raw(data={"vendor": "NVIDIA", "devices": [], "source": "door"}),
    "nesting in the payload": raw(data="@").replace(b'"@"', b'{"further": ' + NESTED + b"}"),
    "nesting beside the payload": raw(further="@").replace(b'"@"', NESTED),
    "an epoch that Lua calls infinite": raw(epoch=10**400, id=f"agent-n1/{10**400}/1"),
    "a seq that a double cannot hold": raw(seq=2**53, id=f"agent-n1/1/{2**53}"),
    "memory beyond 64 bits": registering(memory=10**30),
    "a pair score beyond 64 bits": registering(pair_scores={"GPU-2": 10**30}),
    "an index beyond 64 bits": registering(index=2**64),
    "negative memory": registering(memory=-1),
    "every card of the node": registering(uuid="all"),
    "a uuid that breaks annotations": registering(uuid="GPU-1,NVIDIA,1,1:;"),
    "no json": b"\xff\xfe{",
    "a megabyte and more": raw(subject="x" * LONGEST),
}


@pytest.mark.parametrize("entry", HOSTILE.values(), ids=HOSTILE.keys())
async def test_what_a_hostile_agent_sends_ends_at_the_door(valkey_client: Client, entry: bytes) -> None:
    store, keys = RedisStore(valkey_client), valkey_client.keys
    writer = EventWriter(store.log, "control")
    await writer.start()
    before = await store.log.head()
    await valkey_client.command.call("XADD", keys.inbox("n1"), "*", "d", entry)
    await valkey_client.command.call("XADD", keys.bell, "*", "node", "n1")
    await store.inbox("n2").put([sent(1, node="n2")])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Ingester(store.log, store.inboxes, writer).run)
            seen: list[Any] = []
            async for batch in store.log.tail(before):
                seen += batch
                if len(seen) == 2:
                    tasks.cancel_scope.cancel()
    assert sorted(type(each.event).__name__ for each in seen) == ["FaultObserved", "InputRejected"]
    [rejected] = [each.event for each in seen if isinstance(each.event, InputRejected)]
    assert rejected.source == "inbox of n1"
    assert rejected.why
    assert await store.inboxes.peek("n1") == []


@pytest.mark.parametrize("ring", [b"\xff\xfe", b"", b"a b", b"n1\nn2", b"x" * 5000])
async def test_a_ring_for_what_is_no_node_is_not_heard(valkey_client: Client, ring: bytes) -> None:
    store = RedisStore(valkey_client, sweep_s=60)
    rings = store.inboxes.rung()
    await store.inbox("n1").put([sent(1)])
    with anyio.fail_after(10):
        assert list(await anext(rings)) == ["n1"]
        await valkey_client.command.call("XADD", valkey_client.keys.bell, "*", "node", ring)
        await store.inbox("n2").put([sent(1, node="n2")])
        assert list(await anext(rings)) == ["n2"]


async def test_a_bell_that_one_node_spoilt_costs_a_sweep_and_loses_nothing(valkey_client: Client) -> None:
    """With the last possible id in it, no stream takes another entry."""
    store = RedisStore(valkey_client, sweep_s=0.3)
    last = "18446744073709551615-18446744073709551615"
    await valkey_client.command.call("XADD", valkey_client.keys.bell, last, "node", "n9")
    rings = store.inboxes.rung()
    await store.inbox("n1").put([sent(1)])
    with anyio.fail_after(10):
        assert list(await anext(rings)) == ["n1"]


def test_a_log_entry_nested_without_end_is_undecodable_and_nothing_worse() -> None:
    for entry in (HOSTILE["nesting in the payload"], HOSTILE["nesting beside the payload"]):
        assert isinstance(decode_record("1-0", entry, b'{"g":1,"v":{}}').event, Undecodable)


def _registered(*devices: Device) -> NodeRegistered:
    return NodeRegistered(vendor="NVIDIA", devices=devices)


def test_a_registration_names_each_of_its_vendors_cards_once() -> None:
    assert objection(_registered(a_device("GPU-1"), a_device("GPU-2"))) is None
    assert "twice" in str(objection(_registered(a_device("GPU-1"), a_device("GPU-1"))))
    assert "vendor" in str(objection(_registered(a_device("GPU-1", vendor="MLU"))))
    assert "names no device" in str(objection(_registered(a_device(""))))
    assert "memory" in str(objection(_registered(a_device("GPU-1", memory=LARGEST + 1))))
    many = [a_device(f"GPU-{number}") for number in range(MOST_DEVICES + 1)]
    assert objection(_registered(*many[:-1])) is None
    assert "more than" in str(objection(_registered(*many)))


@pytest.mark.parametrize("uuid", ["all", "", "MIG-1,GPU-2"])
def test_a_mig_instance_is_one_instance(uuid: str) -> None:
    made = MigInstanceCreated(device="GPU-1", instance=MigSlice("1g.5gb", MigPlacement(0, 1), uuid=uuid), reservation="r")
    assert "names no MIG instance" in str(objection(made))
