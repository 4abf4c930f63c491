"""The resources of this node beside its main one: each kind of MIG instance gets a device plugin of its own."""

from collections.abc import Callable
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from hami.nodeagent.board import Board
from hami.nodeagent.kubelet import KubeletLink, LinkTiming
from hami.nodeagent.plugin import Answers, DevicePlugin


class KindPlugins:
    """A plugin for each further resource on the board, from the moment that it is first there. `links` by resource.

    A kind that has gone from the node stays registered with nothing to offer: the kubelet then says so of the node.
    """

    def __init__(self, board: Board, answers: Callable[[], Answers], folder: Path, *, timing: LinkTiming) -> None:
        self._board, self._answers, self._folder, self._timing = board, answers, folder, timing
        self.links: dict[str, KubeletLink] = {}
        self.plugins: dict[str, DevicePlugin] = {}

    async def run(self) -> None:
        watch = self._board.watch()
        try:
            async with anyio.create_task_group() as tasks:
                async for offers in watch.listings():
                    for resource in dict.fromkeys(offer.resource for offer in offers if offer.resource):
                        if resource not in self.links:
                            self._start(resource, tasks)
        finally:
            self._board.forget(watch)

    def _start(self, resource: str, tasks: TaskGroup) -> None:
        socket = self._folder / f"hami-{resource.rpartition('/')[2]}.sock"
        plugin = self.plugins[resource] = DevicePlugin(self._board, self._answers(), socket, resource=resource)
        link = self.links[resource] = KubeletLink(plugin, self._folder, resource, timing=self._timing)
        tasks.start_soon(link.run)
