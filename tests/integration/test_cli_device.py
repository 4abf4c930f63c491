"""An operator's word about a device: on record, with a name and a reason."""

import anyio
import pytest

from hami.cli.exits import Exit
from hami.events.catalog.device import DeviceClearRequested, DeviceCordoned, DeviceUncordoned
from hami.events.catalog.union import Event
from hami.events.envelope import START
from hami.events.log import Draft, Record
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore
from hami.events.writer import EventWriter
from tests.support.builders import a_device, a_node_registered
from tests.support.cli import Hami

WHY = ("--reason", "fan replaced", "--actor", "kim")


async def prepare(url: str) -> None:
    async with Client(url) as client:
        await client.command.call("FLUSHALL")
        await initialise(client)
        writer = EventWriter(RedisStore(client).log, "test")
        await writer.start()
        for node, uuids in (("n1", ("GPU-a", "GPU-moved")), ("n2", ("GPU-b", "GPU-moved"))):
            await writer.append([Draft(event=a_node_registered(*map(a_device, uuids)), node=node)])


async def records(url: str) -> list[Record]:
    async with Client(url) as client:
        return list(await RedisStore(client).log.read(START, limit=100))


def said(url: str, kind: type[Event]) -> list[Record]:
    return [each for each in anyio.run(records, url) if isinstance(each.event, kind)]


@pytest.fixture
def url(valkey_server: EmbeddedServer) -> str:
    anyio.run(prepare, valkey_server.url)
    return valkey_server.url


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str], url: str) -> Hami:
    return Hami(capsys, url)


def cordoned(hami: Hami, node: str, uuid: str) -> bool:
    [found] = hami("state", "-o", "json", "--node", node).json["nodes"]
    return bool(next(each["cordoned"] for each in found["devices"] if each["uuid"] == uuid))


def test_a_cordon_is_written_once_and_lifted(hami: Hami, url: str) -> None:
    assert "written as g:" in hami("device", "cordon", "GPU-a", *WHY).out
    assert "already so" in hami("device", "cordon", "GPU-a", *WHY).out
    assert cordoned(hami, "n1", "GPU-a")
    [record] = said(url, DeviceCordoned)
    assert (record.event, record.envelope.node) == (DeviceCordoned(device="GPU-a", actor="kim", reason="fan replaced"), "n1")
    assert hami("device", "uncordon", "GPU-a", *WHY, "-o", "json").json["type"] == "hami.device.uncordoned"
    assert not cordoned(hami, "n1", "GPU-a")
    assert len(said(url, DeviceUncordoned)) == 1
    assert "kim" not in hami("device", "uncordon", "GPU-a", *WHY).out


def test_a_clear_is_a_request_that_goes_to_the_node(hami: Hami, url: str) -> None:
    assert hami("device", "clear", "GPU-b", *WHY).code == Exit.OK
    [record] = said(url, DeviceClearRequested)
    assert (record.envelope.node, record.envelope.subject) == ("n2", "GPU-b")
    story = hami("audit", "device", "GPU-b").out
    assert "declared good: fan replaced" in story


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("cordon", "GPU-x", *WHY), Exit.NOT_FOUND, "no device GPU-x is registered; there are: GPU-a"),
        (("cordon", "GPU-a", "--node", "n2", *WHY), Exit.NOT_FOUND, "registered on n2"),
        (("cordon", "GPU-moved", *WHY), Exit.USAGE, "several nodes have GPU-moved: n1, n2"),
        (("clear", "GPU-a", "--reason", " ", "--actor", "kim"), Exit.USAGE, "--reason"),
        (("clear", "GPU-a", "--reason", "x", "--actor", " "), Exit.USAGE, "--actor"),
        (("clear", "GPU-a"), Exit.USAGE, "--reason"),
    ],
)
def test_what_cannot_be_done_is_said(hami: Hami, arguments: tuple[str, ...], code: Exit, words: str) -> None:
    ran = hami("device", *arguments)
    assert (ran.code, words in ran.err) == (code, True), ran.err


def test_several_nodes_with_one_device_are_told_apart_by_name(hami: Hami) -> None:
    assert hami("device", "cordon", "GPU-moved", "--node", "n2", *WHY).code == Exit.OK
    assert cordoned(hami, "n2", "GPU-moved")
    assert not cordoned(hami, "n1", "GPU-moved")
