"""The verified fake of Retention, over the store in memory."""

from collections.abc import Mapping, Sequence

from hami.events.memory import MemoryStore
from hami.events.retention import AT_ONCE, GroupProgress, Kept, RawEntry


class MemoryRetention:
    """Implements hami.events.retention.Retention."""

    def __init__(self, store: MemoryStore) -> None:
        self._log, self._checkpoints, self._groups = store.log, store.checkpoints, store.groups
        self._notes: dict[str, str] = {}

    async def entries(self, after: str, *, limit: int = AT_ONCE) -> Sequence[RawEntry]:
        return [RawEntry(*each) for each in self._log.entries(after, limit)]

    async def groups(self) -> Sequence[GroupProgress]:
        return [
            GroupProgress(name=name, last=books.last.entry, pending=books.oldest_pending)
            for name, books in self._groups.items()
            if books.last is not None
        ]

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
