"""HAMi's handshake: a plugin writes that it is there, the scheduler writes a question over it; silence means that it is gone.

    Reported_..., absent, Deleted_...  --answer-->  Requesting_<time>  --the plugin's next report-->  Reported_...
                                                          '--no report for `compat_silence_s`, and the kubelet has none of the
                                                             resource-->  silent, until it reports or announces itself anew

The times inside the annotation are never read: what counts is when a report arrived here, by the store's clock.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from hami.domain.cluster import NodeState
from hami.kube.errors import ApiError
from hami.scheduler.compat.locks import Writes
from hami.scheduler.core import Core
from hami.scheduler.decide import door
from hami.scheduler.decide.door import NodeSeen
from hami.scheduler.turns import breathe, slices
from hami.telemetry import get_logger

_NEVER: Final = -1
_log = get_logger("scheduler.compat")


class Handshakes:
    """When each plugin (node, vendor) was last heard and last answered."""

    def __init__(self, core: Core, api: Writes) -> None:
        self._core, self._api = core, api
        self._vendors = {each.word: each for each in core.vendors}
        self._heard: dict[tuple[str, str], int] = {}
        self._answered: dict[tuple[str, str], int] = {}
        self._conflicted: dict[tuple[str, str], str] = {}
        self._since = core.clock.now()
        self._blind = False

    def begin(self) -> None:
        """From now on; what happened while nobody could look is nobody's fault."""
        self._since = self._core.clock.now()

    def blind(self) -> None:
        """Nodes cannot be followed for now."""
        self._blind = True

    def saw(self, before: NodeSeen | None, now: NodeSeen, known: NodeState | None) -> None:
        if self._blind:
            self._blind = False
            self.begin()
        for word, seen in now.vendors.items():
            at, earlier = (now.name, word), before.vendors.get(word) if before is not None else None
            if before is None or earlier is None or before.uid != now.uid:
                silent = door.is_silent(known, word) and not door.is_report(seen.handshake)
                self._heard[at] = _NEVER if silent else self._core.clock.now()
                continue
            reported = seen.handshake != earlier.handshake and door.is_report(seen.handshake)
            if reported or seen.devices != earlier.devices:
                self._heard[at] = self._core.clock.now()

    def forget(self, name: str) -> None:
        for kept in (self._heard, self._answered, self._conflicted):
            for at in [each for each in kept if each[0] == name]:
                del kept[at]

    def is_silent(self, seen: NodeSeen, word: str) -> bool | None:
        """None: no telling, as the log has it."""
        vendor, what = self._vendors[word], seen.vendors[word]
        if vendor.alive_by_capacity:
            return what.capacity == 0
        if not vendor.keys.handshake or what.allocatable > 0:
            return False
        if self._blind:
            return None
        heard = self._heard.get((seen.name, word), self._since)
        if heard == _NEVER:
            return True
        return self._core.clock.now() - max(heard, self._since) > self._core.settings.compat_silence_s * 1000

    async def turned(self, nodes: Mapping[str, NodeSeen]) -> Iterable[str]:
        """Nodes with a plugin that fell silent or came back since the log was told."""
        known, found = self._core.view.snapshot().nodes, []
        for part in slices(list(nodes.values())):
            for seen in part:
                node = known.get(seen.name)
                if node is None or node.uid not in {"", seen.uid}:
                    continue
                for word in seen.vendors:
                    silent = self.is_silent(seen, word) if node.is_foreign(word) else None
                    if silent is not None and silent is not door.is_silent(node, word):
                        found.append(seen.name)
            await breathe()
        return found

    async def answer(self, nodes: Mapping[str, NodeSeen]) -> None:
        """Ask back where a plugin wrote something other than our question: once a report, not more often than HAMi looks."""
        now, known = self._core.clock.now(), self._core.view.snapshot().nodes
        least = self._core.settings.compat_answer_s * 1000
        for seen in list(nodes.values()):
            node = known.get(seen.name)
            for word, what in seen.vendors.items():
                key, at = self._vendors[word].keys.handshake, (seen.name, word)
                if not key or not what.announced or not door.wants_answer(what.handshake):
                    continue
                if node is not None and word in node.own:
                    continue
                if now - self._answered.get(at, -least) < least or self._conflicted.get(at) == seen.version:
                    continue
                await self._ask(seen, word, key)

    async def _ask(self, seen: NodeSeen, word: str, key: str) -> None:
        """A node that changed meanwhile is looked at again: its plugin's newer report must not be written over."""
        at, now = (seen.name, word), self._core.clock.now()
        patch = {"metadata": {"resourceVersion": seen.version, "annotations": {key: door.requesting(now)}}}
        try:
            await self._api.patch_node(seen.name, patch)
        except ApiError as error:
            if error.code == 409:
                self._conflicted[at] = seen.version
                return
            _log.warning("handshake not answered", node=seen.name, key=key, error=str(error))
        self._answered[at] = now
