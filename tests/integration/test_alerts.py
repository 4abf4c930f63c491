"""The alert consumer on a real store, with receivers on real HTTP."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.alerts.metrics import Metrics
from hami.alerts.sinks.alertmanager import Alertmanager
from hami.alerts.sinks.webhook import Webhook
from hami.domain.device import Health
from hami.domain.units import EpochMs
from hami.events.catalog.device import DeviceCordoned, DeviceHealthChanged, DeviceUncordoned
from hami.events.catalog.union import Event
from hami.events.codec import seal
from hami.events.envelope import START
from hami.events.log import Draft, Record
from hami.events.redis.dead import dead_letters, replay
from hami.events.redis.store import RedisStore
from hami.projections.timetravel import state_at
from tests.support.alerting import (
    FAULT,
    GROUP,
    QUICK,
    SICK,
    WELL,
    Story,
    an_http,
    caught_up,
    consuming,
    fault,
    nothing_pending,
    sick,
    webhook,
    well,
)
from tests.support.builders import a_device, a_node_registered
from tests.support.receivers import Call, Receiver, a_receiver, free_url, listening
from tests.support.waiting import wait_until

CASES: dict[str, Any] = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data/pain-cases.json").read_text())
}


@pytest.fixture
def story(redis_store: RedisStore) -> Story:
    return Story(redis_store)


# At the start


async def test_the_first_start_tells_what_fires_and_not_what_is_over(redis_store: RedisStore, story: Story) -> None:
    await story.tell(sick("GPU-a"), fault("GPU-a"), sick("GPU-b"), well("GPU-b"))
    async with a_receiver() as receiver, an_http() as http, consuming(redis_store, [webhook(http, receiver.url)]):
        await receiver.told_in_the_end([SICK])
        await story.tell(fault(), well())
        await receiver.told_in_the_end([SICK, FAULT, WELL])


async def test_a_restart_tells_nothing_again_and_misses_nothing(redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as receiver, an_http() as http:
        sinks = [webhook(http, receiver.url)]
        async with consuming(redis_store, sinks) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick())
            await receiver.told_in_the_end([SICK])
            await nothing_pending(redis_store)
        await story.tell(fault())
        async with consuming(redis_store, sinks, name="two"):
            await receiver.told_in_the_end([SICK, FAULT])
            await nothing_pending(redis_store)
        assert len(receiver.calls) == 2


HOW_LOST: dict[str, list[tuple[str, ...]]] = {
    "group gone": [("XGROUP", "DESTROY", "LOG", GROUP)],
    "group back at 0-0": [("XGROUP", "SETID", "LOG", GROUP, "0-0")],
    "all memory gone": [("XGROUP", "DESTROY", "LOG", GROUP), ("DEL", "NEWEST"), ("DEL", "BEFORE")],
    "begun by hand at 0-0": [
        *[("XGROUP", "DESTROY", "LOG", GROUP), ("DEL", "NEWEST"), ("DEL", "BEFORE")],
        ("XGROUP", "CREATE", "LOG", GROUP, "0-0"),
    ],
}


@pytest.mark.parametrize("how", HOW_LOST)
async def test_replay_01_a_lost_offset_has_no_side_effects(redis_store: RedisStore, story: Story, how: str) -> None:
    """The case's remediation is an operator who takes the card out and puts it back; the log has no other word for it."""
    case = CASES["replay-01-no-side-effects"]
    words = {
        "health.unhealthy(GPU-n-0,79)": sick("GPU-n-0"),
        "remediation.requested(node n)": DeviceCordoned(device="GPU-n-0", actor="remediation"),
        "remediation.completed(node n)": DeviceUncordoned(device="GPU-n-0", actor="remediation"),
        "health.recovered(GPU-n-0)": well("GPU-n-0"),
    }
    client, keys = redis_store.client, redis_store.client.keys
    names = {"LOG": keys.log, "NEWEST": keys.checkpoint(GROUP), "BEFORE": keys.checkpoint_before(GROUP)}
    async with a_receiver() as receiver, an_http() as http:
        sinks = [webhook(http, receiver.url)]
        # 1. Everything happens once, while the consumer looks on.
        async with consuming(redis_store, sinks) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(a_node_registered(a_device("GPU-n-0")), node="n")
            await story.tell(*[words[each["e"]] for each in case["given"]["stream"]], node="n")
            cordon = [("HamiDeviceCordoned", "firing"), ("HamiDeviceCordoned", "resolved")]
            await receiver.told_in_the_end([SICK, *cordon, WELL])
            await nothing_pending(redis_store)
            live = consumer.state
        # 2. The offset is lost, and the consumer begins again.
        for command in HOW_LOST[how]:
            await client.command.call(*[names.get(word, word) for word in command])
        before, head = len(receiver.calls), await redis_store.log.head()
        async with consuming(redis_store, sinks, name="two") as consumer:
            await caught_up(redis_store, consumer)
            await nothing_pending(redis_store)
            assert consumer.state == live, case["then"]["projection_equals_live"]
            # What comes now is told: it was not deaf, it had nothing to say.
            assert await redis_store.log.head() == head, case["then"]["new_remediation_requests"]
            await story.tell(fault("GPU-n-0"), node="n")
            await wait_until(lambda: receiver.told[-1] == FAULT, "the next event to be told")
        assert len(receiver.calls) - before - 1 == case["then"]["new_alerts"]
    cluster = await state_at(redis_store.log, redis_store.checkpoints, incarnation=await redis_store.log.incarnation())
    assert [each.health for each in cluster.nodes["n"].devices] == [Health(case["then"]["state"])]


async def test_what_fires_when_the_offset_is_lost_is_told_under_its_old_key(redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as receiver, an_http() as http:
        sinks = [webhook(http, receiver.url)]
        async with consuming(redis_store, sinks) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick())
            await receiver.told_in_the_end([SICK])
            await nothing_pending(redis_store)
        await redis_store.client.command.call("XGROUP", "DESTROY", redis_store.client.keys.log, GROUP)
        async with consuming(redis_store, sinks):
            await wait_until(lambda: len(receiver.calls) == 2, "the condition to be told again", timeout=30)
        assert len(receiver.keys) == 1


async def test_a_group_that_vanishes_while_it_is_read_does_not_stop_the_consumer(redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as receiver, an_http() as http, consuming(redis_store, [webhook(http, receiver.url)]) as consumer:
        await caught_up(redis_store, consumer)
        await redis_store.client.command.call("XGROUP", "DESTROY", redis_store.client.keys.log, GROUP)

        async def there() -> bool:
            return await redis_store.group(GROUP, "onlooker").state() is not None

        await wait_until(there, "the group to be made anew", timeout=30)
        await caught_up(redis_store, consumer)
        await story.tell(sick())
        await receiver.told_in_the_end([SICK])


async def test_a_log_that_lost_its_end_is_read_again_and_what_comes_is_told(redis_store: RedisStore, story: Story) -> None:
    """As after a failover to a replica that had not got everything: new events stand where others stood."""
    call, keys = redis_store.client.command.call, redis_store.client.keys
    async with a_receiver() as receiver, an_http() as http, consuming(redis_store, [webhook(http, receiver.url)]) as consumer:
        await caught_up(redis_store, consumer)
        await story.tell(sick())
        await receiver.told_in_the_end([SICK])
        await nothing_pending(redis_store)
        behind = {key: await call("DUMP", key) for key in (keys.log, keys.heads)}
        await story.tell(sick("GPU-b"), sick("GPU-c"))
        await receiver.told_in_the_end([SICK] * 3)
        await nothing_pending(redis_store)
        for key, dump in behind.items():
            await call("RESTORE", key, 0, dump, "REPLACE")
        await story.tell(well())
        await receiver.told_in_the_end([*[SICK] * 3, ("HamiEventsLost", "once"), WELL])
        await caught_up(redis_store, consumer)
        assert consumer.state.firing == {}


async def test_a_restart_reads_only_what_its_checkpoint_lacks(redis_store: RedisStore, story: Story) -> None:
    timing = msgspec.structs.replace(QUICK, checkpoint_every=2)
    async with an_http() as http, a_receiver() as receiver:
        sinks = [webhook(http, receiver.url)]
        async with consuming(redis_store, sinks, timing=timing) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick(), fault(), well())
            await receiver.told_in_the_end([SICK, FAULT, WELL])

            async def saved() -> bool:
                return (await redis_store.checkpoints.load(GROUP))[0][0].g == (await redis_store.log.head()).g

            await wait_until(saved, "a checkpoint at the head", timeout=30)
        # What it holds cannot be had from the log any more.
        await redis_store.client.command.call("XTRIM", redis_store.client.keys.log, "MAXLEN", "1")
        async with consuming(redis_store, sinks, timing=timing) as consumer:
            await caught_up(redis_store, consumer)
            assert consumer.state.seen["test"] == (1, 3)
            await story.tell(sick())
            await receiver.told_in_the_end([SICK, FAULT, WELL, SICK])


# Sinks in trouble


async def test_a_sink_that_is_away_gets_everything_in_order_and_holds_up_nobody(redis_store: RedisStore, story: Story) -> None:
    away = Receiver(free_url())
    metrics = Metrics()
    async with a_receiver() as here, an_http() as http:
        sinks = [webhook(http, away.url, "away"), webhook(http, here.url, "here")]
        async with consuming(redis_store, sinks, metrics=metrics) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick(), fault(), well())
            await here.told_in_the_end([SICK, FAULT, WELL])

            def failed() -> float:
                return metrics.registry.get_sample_value("hami_alerts_failures_total", {"sink": "away", "why": "away"}) or 0.0

            await wait_until(failed, "a failed try")
            assert metrics.registry.get_sample_value("hami_alerts_waiting", {"sink": "away"}) == 3
            state = await redis_store.group(GROUP, "onlooker").state()
            assert state is not None
            assert state.pending == 3
            async with listening(away):
                await away.told_in_the_end([SICK, FAULT, WELL])
                await nothing_pending(redis_store)
        assert len(here.calls) == 3


async def test_what_a_sink_missed_outlives_the_consumer(redis_store: RedisStore, story: Story) -> None:
    receiver = Receiver(free_url())
    async with an_http() as http:
        sinks = [webhook(http, receiver.url)]
        async with consuming(redis_store, sinks) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick(), fault(), well())
            await caught_up(redis_store, consumer)
        async with listening(receiver), consuming(redis_store, sinks, name="two"):
            await receiver.told_in_the_end([SICK, FAULT, WELL])
            await nothing_pending(redis_store)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_trouble_of_the_receiver_is_waited_out(redis_store: RedisStore, story: Story, status: int) -> None:
    async with a_receiver() as receiver, an_http() as http, consuming(redis_store, [webhook(http, receiver.url)]) as consumer:
        await caught_up(redis_store, consumer)
        receiver.answer = lambda _: 200 if len(receiver.calls) > 8 else status
        await story.tell(sick(), well())
        await receiver.told_in_the_end([SICK, WELL])
        await nothing_pending(redis_store)
        assert list(await dead_letters(redis_store.client)) == []
        assert len(receiver.calls) == 10


def no_to_b(call: Call) -> int:
    return 400 if call.body["labels"]["device"] == "GPU-b" else 200


async def test_what_is_refused_ends_in_the_dead_letters_and_can_be_sent_again(redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as picky, a_receiver() as other, an_http() as http:
        sinks = [webhook(http, picky.url, "picky"), webhook(http, other.url, "other")]
        async with consuming(redis_store, sinks) as consumer:
            await caught_up(redis_store, consumer)
            picky.answer = no_to_b
            await story.tell(fault("GPU-a"), fault("GPU-b"), fault("GPU-c"))
            await other.told_in_the_end([FAULT] * 3)
            await picky.told_in_the_end([FAULT] * 3)
            await nothing_pending(redis_store)
            assert [call.body["labels"]["device"] for call in picky.calls] == ["GPU-a", *["GPU-b"] * 5, "GPU-c"]
            (letter,) = await dead_letters(redis_store.client)
            assert (letter.group, letter.to, letter.node) == (GROUP, "picky", "n1")
            assert letter.why == "HTTP 400: the test says no"
            # Sent again while nothing has changed, it comes back; sent again afterwards, it is taken, and by that sink only.
            await replay(redis_store.client, letter)
            (letter,) = await wait_until(lambda: dead_letters(redis_store.client), "the letter to come back", timeout=30)
            picky.answer = lambda _: 200
            count = len(picky.calls)
            await replay(redis_store.client, letter)
            await wait_until(lambda: len(picky.calls) == count + 1, "the letter to arrive", timeout=30)
            assert picky.calls[-1].body["labels"]["device"] == "GPU-b"

            async def gone() -> bool:
                return not await redis_store.group(GROUP, "onlooker").returned()

            await wait_until(gone, "the letter to be forgotten", timeout=30)
            assert list(await dead_letters(redis_store.client)) == []
            assert len(other.calls) == 3


async def test_a_letter_to_a_sink_that_is_no_more_comes_back_with_the_reason(redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as receiver, an_http() as http:
        receiver.answer = lambda _: 404
        async with consuming(redis_store, [webhook(http, receiver.url, "old")]) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(fault())
            (letter,) = await wait_until(lambda: dead_letters(redis_store.client), "the notice to be given up", timeout=30)
        async with consuming(redis_store, [webhook(http, receiver.url, "new")]):
            await replay(redis_store.client, letter)
            (letter,) = await wait_until(lambda: dead_letters(redis_store.client), "the letter to come back", timeout=30)
    assert letter.why == "there is no sink old: there are new"


# Replicas


async def test_one_replica_sends_and_the_next_takes_over(redis_store: RedisStore, story: Story) -> None:
    async with a_receiver() as receiver, an_http() as http:
        sinks = [webhook(http, receiver.url)]
        async with consuming(redis_store, sinks, name="one") as one:
            await caught_up(redis_store, one)
            async with consuming(redis_store, sinks, name="two") as two:
                await story.tell(sick())
                await receiver.told_in_the_end([SICK])
                assert (one.active, two.active) == (True, False)
                await nothing_pending(redis_store)
        async with consuming(redis_store, sinks, name="two"):
            await story.tell(well())
            await receiver.told_in_the_end([SICK, WELL])
        assert len(receiver.calls) == 2


async def test_entries_that_another_consumer_took_and_left_are_told(redis_store: RedisStore, story: Story) -> None:
    """As after a replica that read on although its turn was over: nobody but the sweep would ever see them."""
    async with a_receiver() as receiver, an_http() as http:
        async with consuming(redis_store, [webhook(http, receiver.url)]) as consumer:
            await caught_up(redis_store, consumer)
            await redis_store.locks.evict(f"job:{GROUP}", "one")
        dead = redis_store.group(GROUP, "dead")
        await story.tell(sick())
        assert len(await dead.new()) == 1
        async with consuming(redis_store, [webhook(http, receiver.url)], name="two") as consumer:
            await receiver.told_in_the_end([SICK])
            await caught_up(redis_store, consumer)
            # Now one is taken from under the nose of a consumer that is already following.
            (taken,) = await stolen(redis_store, fault())
            await receiver.told_in_the_end([SICK, FAULT])
            assert receiver.keys[-1].startswith(f"{taken.envelope.id}:")
            await nothing_pending(redis_store)


async def stolen(store: RedisStore, event: Event) -> Sequence[Record]:
    """Written and handed to another consumer in one step, so that the one that waits for it never sees it."""
    envelope = seal(Draft(event=event, node="n1"), producer="other", epoch=1, seq=1, occurred_ms=EpochMs(0))
    await store.log.incarnation()
    keys, args = store.log.command_of([envelope], [()])
    read = ("XREADGROUP", "GROUP", GROUP, "thief", "STREAMS", store.client.keys.log, ">")
    await store.client.command.pipeline([("MULTI",), ("FCALL", "hami_append", len(keys), *keys, *args), read, ("EXEC",)])
    return [record for record in await store.log.read(START) if record.envelope.id == envelope.id]


# What the receivers get


async def test_alertmanager_is_told_again_what_fires_and_each_fault_counts(redis_store: RedisStore, story: Story) -> None:
    clock = EpochMs(2_000_000_000_000)
    async with a_receiver() as receiver, an_http() as http:
        url = receiver.url + "/"
        times = {"resend_s": 0.1, "once_s": 300.0}
        sink = Alertmanager(http, url, name="alertmanager", labels={"cluster": "east"}, clock=lambda: clock, **times)
        async with consuming(redis_store, [sink]) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick(), fault(), fault())
            await wait_until(lambda: len(receiver.alerts) >= 6, "Alertmanager to be told several times", timeout=30)
            await story.tell(well())
            await nothing_pending(redis_store)
    assert {call.path for call in receiver.calls} == {"/api/v2/alerts"}
    ill = [alert for alert in receiver.alerts if alert["labels"]["alertname"] == "HamiDeviceUnhealthy"]
    labels = {"cluster": "east", "node": "n1", "device": "GPU-a", "alertname": "HamiDeviceUnhealthy", "severity": "critical"}
    assert all(alert["labels"] == labels for alert in ill)
    assert {alert["startsAt"] for alert in ill} == {ill[0]["startsAt"]}
    ends = [alert["endsAt"] for alert in ill]
    assert {*ends[:-1]} == {"2033-05-18T03:33:20.400Z"}
    assert ends[-1] < "2033"
    faults = [alert for alert in receiver.alerts if alert["labels"]["alertname"] == "HamiDeviceFault"]
    assert [alert["labels"]["event"] for alert in faults] == ["test/1/2", "test/1/3"]
    assert {alert["endsAt"] for alert in faults} == {"2033-05-18T03:38:20.000Z"}


async def test_a_webhook_gets_key_token_and_document(redis_store: RedisStore, story: Story, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with a_receiver() as receiver, an_http() as http:
        sink = Webhook(http, receiver.url + "/hook", name="webhook", labels={"cluster": "east"}, token_file=str(token))
        async with consuming(redis_store, [sink]) as consumer:
            await caught_up(redis_store, consumer)
            await story.tell(sick("GPU-ä\n1"))
            await wait_until(lambda: receiver.calls, "the first notice", timeout=30)
            token.write_text("second\n")
            await story.tell(DeviceHealthChanged(device="GPU-b", was=Health.HEALTHY, now=Health.SUSPECT, reason="probe"))
            await wait_until(lambda: len(receiver.calls) == 2, "the second notice", timeout=30)
    first, second = receiver.calls
    assert (first.headers["authorization"], second.headers["authorization"]) == ("Bearer first", "Bearer second")
    assert first.headers["idempotency-key"] == "test/1/1:HamiDeviceUnhealthy:GPU-%C3%A4%0A1"
    assert first.body["labels"] == {"cluster": "east", "node": "n1", "device": "GPU-ä\n1"}
    assert (second.body["alert"], second.body["severity"], second.body["event"]) == ("HamiDeviceSuspect", "warning", "test/1/2")
    assert second.body["ended_at"] is None
