"""Staying registered: a kubelet that comes, goes, refuses, or falls silent without a word."""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from hami.nodeagent.board import Board
from hami.nodeagent.decide.container import ContainerEdits
from hami.nodeagent.kubelet import KubeletLink, LinkTiming
from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.plugin import Answers, DevicePlugin
from hami.sim.kubelet.endpoint import Endpoint
from hami.sim.kubelet.servers import serve_registration
from tests.support.plugins import CARDS, RESOURCE, ScriptedPlugin, socket_folder
from tests.support.waiting import wait_until

QUICK = LinkTiming(poll_s=0.01, register_timeout_s=1.0, back_off_s=0.02, back_off_max_s=0.1, silence_s=0.2)
PATIENT = LinkTiming(poll_s=0.01, register_timeout_s=1.0, back_off_s=0.02, back_off_max_s=0.1, silence_s=60)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


class Door:
    """A kubelet.sock that counts registrations and answers as told."""

    def __init__(self) -> None:
        self.requests: list[pb.RegisterRequest] = []
        self.answer = ""

    async def register(self, request: pb.RegisterRequest) -> str:
        self.requests.append(request)
        return self.answer


@asynccontextmanager
async def linked(folder: Path, timing: LinkTiming) -> AsyncIterator[KubeletLink]:
    link = KubeletLink(ScriptedPlugin(folder / "nvidia-gpu.sock"), folder, RESOURCE, timing=timing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        yield link
        tasks.cancel_scope.cancel()


async def test_it_says_who_it_is(folder: Path) -> None:
    door = Door()
    server = await serve_registration(folder / "kubelet.sock", door.register)
    async with linked(folder, PATIENT) as link:
        await wait_until(lambda: link.registered, "registration")
        [request] = door.requests
        assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "nvidia-gpu.sock", RESOURCE)
    await server.stop(grace=None)


async def test_a_new_kubelet_socket_is_registered_with_even_if_ours_was_left_alone(folder: Path) -> None:
    first, second = Door(), Door()
    server = await serve_registration(folder / "kubelet.sock", first.register)
    async with linked(folder, PATIENT) as link:
        await wait_until(lambda: link.registered, "registration")
        await server.stop(grace=None)
        server = await serve_registration(folder / "kubelet.sock", second.register)
        await wait_until(lambda: second.requests, "registration with the new kubelet")
    await server.stop(grace=None)


async def test_a_refusal_is_tried_again_and_kept_in_words(folder: Path) -> None:
    door = Door()
    door.answer = "not now"
    server = await serve_registration(folder / "kubelet.sock", door.register)
    async with linked(folder, PATIENT) as link:
        await wait_until(lambda: len(door.requests) >= 3, "several tries")
        assert (link.registered, link.trouble) == (False, "UNKNOWN: not now")
        door.answer = ""
        await wait_until(lambda: link.registered, "registration")
    await server.stop(grace=None)


async def test_a_kubelet_that_stopped_listening_is_registered_with_again(folder: Path) -> None:
    door = Door()
    server = await serve_registration(folder / "kubelet.sock", door.register)
    async with linked(folder, QUICK):
        await wait_until(lambda: len(door.requests) >= 2, "a second registration, as nobody listens")
    await server.stop(grace=None)


async def test_a_listening_kubelet_is_left_alone(folder: Path) -> None:
    door, heard = Door(), anyio.Event()
    server = await serve_registration(folder / "kubelet.sock", door.register)
    async with linked(folder, QUICK) as link, anyio.create_task_group() as tasks:
        await wait_until(lambda: link.registered, "registration")
        endpoint = Endpoint(RESOURCE, folder / "nvidia-gpu.sock")
        tasks.start_soon(endpoint.listen, lambda _: heard.set())
        await heard.wait()
        before = len(door.requests)
        with anyio.move_on_after(3 * QUICK.silence_s):
            await wait_until(lambda: len(door.requests) > before, "a needless registration")
        assert len(door.requests) == before
        tasks.cancel_scope.cancel()
    await endpoint.close()
    await server.stop(grace=None)


async def test_a_stop_is_not_held_up_by_an_open_stream(folder: Path) -> None:
    plugin = ScriptedPlugin(folder / "nvidia-gpu.sock")
    lists: list[dict[str, bool]] = []
    await plugin.start()
    endpoint = Endpoint(RESOURCE, plugin.socket)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(endpoint.listen, lists.append)
        await wait_until(lambda: len(lists) == 1, "the first list")
        plugin.board.mark(CARDS[0], healthy=False)
        await wait_until(lambda: len(lists) == 2, "the second list")
        began = anyio.current_time()
        await plugin.stop()
        assert anyio.current_time() - began < 0.5
    assert not plugin.socket.exists()
    assert (sum(lists[0].values()), sum(lists[1].values())) == (10, 5)
    await endpoint.close()


async def test_a_plugin_starts_over_a_stale_socket(folder: Path) -> None:
    stale = folder / "nvidia-gpu.sock"
    stale.touch()
    plugin = ScriptedPlugin(stale)
    await plugin.start()
    endpoint = Endpoint(RESOURCE, stale)
    assert await endpoint.dial(1) == ""
    await endpoint.close()
    await plugin.stop()


async def test_a_folder_of_sockets_that_vanishes_is_waited_for(folder: Path) -> None:
    plugins, door = folder / "device-plugins", Door()
    plugins.mkdir()
    server = await serve_registration(plugins / "kubelet.sock", door.register)
    async with linked_to_real_plugin(plugins) as link:
        await wait_until(lambda: link.registered, "registration")
        await server.stop(grace=None)
        shutil.rmtree(plugins)
        await wait_until(lambda: "cannot serve" in link.trouble, "the link says what is wrong")
        plugins.mkdir()
        server = await serve_registration(plugins / "kubelet.sock", door.register)
        await wait_until(lambda: link.registered, "registration in the new folder")
    await server.stop(grace=None)


@asynccontextmanager
async def linked_to_real_plugin(folder: Path) -> AsyncIterator[KubeletLink]:
    plugin = DevicePlugin(Board(), Answers(lambda _: (ContainerEdits(envs={}), "")), folder / "hami-gpu.sock")
    link = KubeletLink(plugin, folder, RESOURCE, timing=QUICK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        yield link
        tasks.cancel_scope.cancel()
