"""HAMi's register annotation on the Node object, for programs that read it there: written on change, never on a timer.

Every write to a Node wakes every pending pod of kube-scheduler, so what stands there already is not written again, also not
after a restart. hami itself never reads these annotations back.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from hami.domain.device import Device, Health
from hami.domain.pod import Node
from hami.events.backoff import Backoff
from hami.kube.errors import ApiError
from hami.nodeagent.board import Board
from hami.telemetry import get_logger
from hami.vendors.nvidia import KEYS
from hami.vendors.registers import encode_pair_scores, encode_register

log = get_logger("announce")

RETRY_MOST_S: Final = 60.0


class NodeObject(Protocol):
    """The API as far as it is needed here; hami.kube.client.KubeClient is one. Both raise ApiError."""

    async def get_node(self, name: str) -> Node | None: ...

    async def patch_node(self, name: str, patch: dict[str, Any]) -> Node:
        """A merge patch."""
        ...


class Announcer:
    """Follows the board. `devices` is the set as it was told to the cluster."""

    def __init__(
        self, node: str, api: NodeObject, board: Board, devices: Callable[[], Sequence[Device]], *, pair_scores: bool = False
    ) -> None:
        self._node, self._api, self._board, self._devices, self._pair_scores = node, api, board, devices, pair_scores
        self._written: Mapping[str, str] | None = None
        self.writes = 0

    async def run(self) -> None:
        """For ever."""
        watch = self._board.watch()
        try:
            async for _ in watch.listings():
                await self._until_written()
        finally:
            self._board.forget(watch)

    async def _until_written(self) -> None:
        """The newest text, however long the API is away. Written means acknowledged."""
        backoff = Backoff(most_s=RETRY_MOST_S)
        while (wanted := self._wanted()) and wanted != self._written:
            try:
                self._written = await self._write(wanted)
            except ApiError as error:
                log.warning("register annotation not written", error=str(error))
                await backoff.wait()

    async def _write(self, wanted: Mapping[str, str]) -> Mapping[str, str]:
        if self._written is None:
            node = await self._api.get_node(self._node)
            stands = {} if node is None else node.metadata.notes
            if all(stands.get(key) == text for key, text in wanted.items()):
                return wanted
        await self._api.patch_node(self._node, {"metadata": {"annotations": dict(wanted)}})
        self.writes += 1
        log.info("register annotation written", devices=len(self._devices()))
        return wanted

    def _wanted(self) -> Mapping[str, str]:
        """Nothing before the first look at the cards. HAMi knows healthy and not; a NUMA node that is not known is 0 there."""
        offered = {offer.uuid: offer.healthy for offer in self._board.offers}
        shown = [
            msgspec.structs.replace(
                each,
                health=Health.HEALTHY if offered.get(each.uuid, False) else Health.UNHEALTHY,
                numa=max(each.numa, 0),
            )
            for each in self._devices()
        ]
        found = {KEYS.register: encode_register(shown)} if shown else {}
        if self._pair_scores and found:
            found[KEYS.pair_scores] = encode_pair_scores(shown)
        return found
