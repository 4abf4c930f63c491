"""The verified fake of Retention, over the log in memory. Groups are what the test says they are."""

from collections.abc import Mapping, Sequence

from hami.events.memory import MemoryCheckpoints, MemoryLog
from hami.events.retention import AT_ONCE, GroupProgress, Kept, RawEntry


class MemoryRetention:
    """Implements hami.events.retention.Retention."""

    def __init__(self, log: MemoryLog, checkpoints: MemoryCheckpoints) -> None:
        self._log, self._checkpoints = log, checkpoints
        self._notes: dict[str, str] = {}
        self.registered: dict[str, GroupProgress] = {}

    async def entries(self, after: str, *, limit: int = AT_ONCE) -> Sequence[RawEntry]:
        return [RawEntry(*each) for each in self._log.entries(after, limit)]

    async def groups(self) -> Sequence[GroupProgress]:
        return tuple(self.registered.values())

    async def checkpoints(self) -> Sequence[Kept]:
        return [
            Kept(fold=fold, position=position, incarnation=incarnation)
            for fold in self._checkpoints.folds()
            for position, incarnation, *_ in await self._checkpoints.load(fold)
        ]

    async def trim(self, before: str, *, most: int = AT_ONCE) -> int:
        return self._log.trim(before, most)

    async def forget(self, versions: Mapping[str, int]) -> int:
        return sum(self._log.forget(entity, version) for entity, version in versions.items() if entity.startswith("pod/"))

    async def notes(self) -> Mapping[str, str]:
        return dict(self._notes)

    async def note(self, changes: Mapping[str, str]) -> None:
        self._notes = {name: text for name, text in {**self._notes, **changes}.items() if text}
