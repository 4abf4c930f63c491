"""`hami alerts check`, and the dead letters of alerts in `hami dlq`."""

import anyio
import pytest

from hami.alerts.decide.notice import Alert, Notice, Status
from hami.alerts.decide.wire import encode_notice
from hami.cli.exits import Exit
from hami.domain.units import EpochMs
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from tests.support.alerting import FAULT, GROUP, SICK, WELL, Story, fault, sick, well
from tests.support.cli import Hami

NOTICE = Notice(alert=Alert.DEVICE_FAULT, status=Status.ONCE, event="t/1/1", started_ms=EpochMs(1), device="GPU-a")


async def prepare(url: str) -> None:
    async with Client(url) as client:
        await client.command.call("FLUSHALL")
        await initialise(client)
        await Story(RedisStore(client)).tell(sick(), fault(), well())


async def bury(url: str) -> None:
    async with Client(url) as client:
        group = RedisStore(client).group(GROUP, "one")
        await group.bury("1-0", node="n1", to="webhook", raw=encode_notice(NOTICE), why="HTTP 422")


async def sent_round(url: str) -> list[tuple[str, bytes]]:
    async with Client(url) as client:
        return [(letter.to, letter.raw) for letter in await RedisStore(client).group(GROUP, "one").returned()]


async def has_group(url: str) -> bool:
    async with Client(url) as client:
        return await RedisStore(client).group(GROUP, "one").state() is not None


@pytest.fixture
def url(valkey_server: EmbeddedServer) -> str:
    anyio.run(prepare, valkey_server.url)
    return valkey_server.url


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str], url: str) -> Hami:
    return Hami(capsys, url)


def test_check_prints_what_would_be_told_and_tells_nobody(hami: Hami, url: str) -> None:
    whole = hami("alerts", "check", "-o", "json")
    assert [(line["alert"], line["status"]) for line in whole.lines] == [SICK, FAULT, WELL]
    part = hami("alerts", "check", "--from", "g:3", "--to", "g:3")
    assert "HamiDeviceFault" in part.out
    assert "node=n1 device=GPU-a  GPU-a: saw xid 79" in part.out
    assert part.out.endswith("1 notices from 1 events; none was sent\n")
    assert not anyio.run(has_group, url)


def test_check_knows_what_fired_before_its_part_begins(hami: Hami) -> None:
    late = hami("alerts", "check", "--from", "g:4", "-o", "json")
    assert [(line["alert"], line["status"]) for line in late.lines] == [WELL]
    early = hami("alerts", "check", "--to", "g:2", "-o", "json")
    assert [(line["alert"], line["status"]) for line in early.lines] == [SICK]
    assert hami("alerts", "check", "--from", "yesterday").code == Exit.USAGE


def test_a_refused_notice_is_listed_and_sent_round_again(hami: Hami, url: str) -> None:
    anyio.run(bury, url)
    (letter,) = hami("dlq", "list", "-o", "json").json["dead_letters"]
    assert (letter["group"], letter["to"], letter["type"], letter["why"]) == (GROUP, "webhook", "HamiDeviceFault", "HTTP 422")
    assert "HamiDeviceFault" in hami("dlq", "list").out
    assert hami("dlq", "replay", letter["id"], "--group", "ingest").code == Exit.NOT_FOUND
    assert hami("dlq", "replay", letter["id"]).out == f"{letter['id']} is back on its way to webhook\n"
    assert anyio.run(sent_round, url) == [("webhook", encode_notice(NOTICE))]
    assert "dead letters: none" in hami("dlq", "list").out


def test_settings_are_shown_with_their_source(hami: Hami) -> None:
    rows = hami("config", "show", "--table", "alerts", "-o", "json").json["alerts"]
    assert rows["lease_ttl_s"] == {"value": 10.0, "source": "default"}


def test_passwords_of_several_urls_are_not_shown(hami: Hami, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMI_ALERTS_ALERTMANAGER_URL", "http://u:one@a:9093 http://u:two@b:9093")
    row = hami("config", "show", "--table", "alerts", "-o", "json").json["alerts"]["alertmanager_url"]
    assert row == {"value": "http://u:***@a:9093 http://u:***@b:9093", "source": "HAMI_ALERTS_ALERTMANAGER_URL"}
