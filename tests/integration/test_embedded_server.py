"""Our own launcher: which binary it takes, what it promises about data, and that it leaves nothing running."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hami.domain.errors import InvalidInput, StoreUnavailable
from hami.events.redis.client import Client, text
from hami.events.redis.embedded import EmbeddedServer, embedded_server, find_binary, version_of, wheel_binary
from hami.events.redis.meta import initialise
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


def fake(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    path.chmod(0o755)
    return path


def test_a_new_enough_server_on_path_is_taken_before_the_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(folder, "redis-server", "7.2.1")
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    assert find_binary() == path
    assert find_binary(prefer_wheel=True) == wheel_binary()


def test_an_old_server_on_path_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(folder, "redis-server", "6.2.14")
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    assert find_binary() == wheel_binary()


def test_the_version_is_read_from_the_binary_itself(folder: Path) -> None:
    assert version_of(fake(folder, "redis-server", "7.0.15")) == (7, 0)
    with pytest.raises(InvalidInput):
        version_of(folder / "missing")


async def test_data_survives_its_end_and_only_the_socket_listens(folder: Path) -> None:
    binary = wheel_binary()
    for expected in (None, b"kept"):
        async with embedded_server(folder, binary) as server, Client(server.url) as client:
            assert await client.command.call("GET", "key") == expected
            assert text((await client.command.call("CONFIG", "GET", "appendonly"))[1]) == "yes"
            assert text((await client.command.call("CONFIG", "GET", "maxmemory-policy"))[1]) == "noeviction"
            assert text((await client.command.call("CONFIG", "GET", "port"))[1]) == "0"
            await client.command.call("SET", "key", "kept")
            process = server.pid or 0
            assert process
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_two_servers_over_one_folder_are_refused(folder: Path) -> None:
    async with embedded_server(folder, wheel_binary()):
        with pytest.raises(StoreUnavailable, match="another embedded server"):
            async with embedded_server(folder, wheel_binary()):
                pass


async def test_tcp_is_loopback_and_only_when_asked(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with embedded_server(folder, wheel_binary(), tcp_port=port) as server, Client(server.tcp_url) as client:
        assert text((await client.command.call("CONFIG", "GET", "bind"))[1]) == "127.0.0.1"
        assert (await initialise(client)).created
    with pytest.raises(InvalidInput):
        EmbeddedServer(folder, Path("x")).tcp_url  # noqa: B018 - the property refuses


def test_a_folder_whose_socket_path_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="100 bytes"):
        EmbeddedServer(Path("/tmp") / ("x" * 120), Path("x"))


async def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    with pytest.raises(StoreUnavailable, match="ended"):
        async with embedded_server(folder, wheel_binary(), options=("--no-such-option", "1")):
            pass


async def test_it_ends_with_its_parent_however_that_one_ended(folder: Path) -> None:
    code = (
        "import anyio, pathlib, sys\n"
        "from hami.events.redis.embedded import *\n"
        "async def main():\n"
        "    async with embedded_server(pathlib.Path(sys.argv[1]), wheel_binary()) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    parent = subprocess.Popen(  # noqa: ASYNC220 - the test needs its death, not its answers
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    def gone() -> bool:
        status = Path(f"/proc/{child}/stat")
        return not status.exists() or status.read_text().split()[2] == "Z"

    await wait_until(gone, "the server to end")
