"""Whether the kubelet still takes this plugin for the one that serves its resource.

A second plugin that registers the same resource replaces the first, whose stream stays open and is no longer listened to:
nothing on our socket shows it. The kubelet's checkpoint does: it holds the healthy device ids of whoever registered last.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio

from hami.domain.errors import InvalidInput
from hami.events.catalog.device import FaultKind, FaultObserved
from hami.nodeagent.board import Board
from hami.nodeagent.podresources import CHECKPOINT, registered_ids
from hami.nodeagent.ports import Publisher
from hami.telemetry import get_logger

log = get_logger("rivals")

NAMED: Final = 3


class RivalWatch:
    """Looks on a timer. A difference counts when the next look finds it again: the kubelet needs a moment to write its file.

    `trouble` says what was found; empty = the kubelet has our devices, or nothing can be said.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        resource: str,
        board: Board,
        publisher: Publisher,
        *,
        listened_to: Callable[[], bool],
        every_s: float = 10.0,
    ) -> None:
        self._checkpoint, self._resource, self._board, self._publisher = kubelet_dir / CHECKPOINT, resource, board, publisher
        self._listened_to, self._every_s = listened_to, every_s
        self._last = ""
        self.trouble = ""
        self.found = 0
        """How often another plugin was found in our place."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await anyio.sleep(self._every_s)
            self.look()

    def look(self) -> None:
        now = self._difference()
        lasting = now if now == self._last else ""
        self._last = now
        if lasting and not self.trouble:
            self.found += 1
            log.warning("another device plugin serves our resource", resource=self._resource, why=lasting)
            self._publisher.publish(FaultObserved(device="", kind=FaultKind.PROBE, detail=lasting))
        if self.trouble and not now:
            log.warning("the kubelet has our devices again", resource=self._resource)
        self.trouble = lasting or (self.trouble if now else "")

    def _difference(self) -> str:
        """Fixed text as long as the same stands there."""
        if not self._listened_to():
            return ""
        try:
            held = registered_ids(self._checkpoint, self._resource)
        except InvalidInput:
            return ""
        if held is None:
            return ""
        offers = self._board.offers
        strange = sorted(held - {name for offer in offers for name in offer.ids})
        if strange:
            names = ", ".join(strange[:NAMED]) + (", ..." if len(strange) > NAMED else "")
            return f"the kubelet has {len(strange)} devices of {self._resource} that are not ours ({names}): " + _TAKEN
        ours = {name for offer in offers if offer.healthy for name in offer.ids}
        if held != ours:
            return f"the kubelet has {len(held)} healthy devices of {self._resource} where we told of {len(ours)}: " + _TAKEN
        return ""


_TAKEN: Final = "another device plugin has registered that resource; remove it from this node"
