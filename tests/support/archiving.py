"""An archive in tests: small segments, time that passes when the test says so, a disk that dies."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from hami.archive.app import Core
from hami.archive.forgetter import Forgetter
from hami.archive.metrics import Metrics
from hami.archive.sealer import Bounds, Sealer
from hami.archive.trimmer import Trimmer
from hami.config import ArchiveSettings
from hami.domain.units import EpochMs
from hami.events.archive.disk import Disk, RealDisk
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.verify import Checked, Checker, check_all, check_folder
from hami.events.envelope import Position
from hami.events.log import Draft
from hami.events.memory import MemoryStore
from hami.events.memory_retention import MemoryRetention
from hami.events.redis.client import text
from hami.events.redis.retention import RedisRetention
from hami.events.redis.store import RedisStore
from hami.events.retention import Retention
from hami.events.store import Store
from hami.events.writer import EventWriter
from hami.projections.boot import FOLD

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


async def incarnation_of(store: Store) -> str:
    if isinstance(store, RedisStore):
        return text(await store.client.command.call("HGET", store.client.keys.heads, "incarnation"))
    return "memory"


async def retention_of(store: Store) -> Retention:
    if isinstance(store, RedisStore):
        return RedisRetention(store.client, incarnation=await incarnation_of(store))
    assert isinstance(store, MemoryStore)
    return MemoryRetention(store)


async def write(store: Store, drafts: Sequence[Draft], *, producer: str = "scheduler-1") -> list[Position]:
    writer = EventWriter(store.log, producer)
    await writer.start()
    return [(await writer.append([draft])).positions[-1] for draft in drafts]


class Archiving:
    """The parts of `hami archive` over one store, with segments of a few events. `later_ms` is added to the store's clock."""

    def __init__(
        self, store: Store, retention: Retention, path: Path, incarnation: str, *, events: int = 4, disk: Disk | None = None
    ) -> None:
        self.store, self.retention, self.incarnation, self.events = store, retention, incarnation, events
        self.folder = ArchiveFolder(path, disk)
        self.metrics = Metrics()
        self.later_ms = 0
        self.writer = EventWriter(store.log, "archive-1")
        self.keep_ms = 0
        self.turns = 1_000_000

    async def now(self) -> EpochMs:
        return EpochMs(await self.store.log.now() + self.later_ms)

    async def mine(self) -> bool:
        self.turns -= 1
        return self.turns >= 0

    def sealer(self, *, age_ms: int = 0, settle_ms: int = 0) -> Sealer:
        bounds = Bounds(events=self.events, age_ms=age_ms, settle_ms=settle_ms)
        return Sealer(
            self.store.log,
            self.retention,
            self.folder,
            self.writer,
            bounds,
            self.metrics,
            incarnation=self.incarnation,
            now=self.now,
        )

    async def seal(self) -> Position:
        """A whole life of an archiver: begin, seal what is there."""
        await self.writer.start()
        sealer = self.sealer()
        await sealer.begin()
        await sealer.once()
        return sealer.archived

    async def trim(self, archived: Position) -> int:
        if not self.writer.epoch:
            await self.writer.start()
        trimmer = Trimmer(
            self.store.log,
            self.retention,
            self.folder,
            self.writer,
            self.metrics,
            incarnation=self.incarnation,
            keep_ms=self.keep_ms,
            needed=FOLD,
            now=self.now,
            mine=self.mine,
        )
        return await trimmer.once(archived)

    async def forget(self) -> int:
        return await Forgetter(self.retention, self.folder, self.metrics).once(await self.now())

    async def checkpoint(self, position: Position, fold: str = FOLD) -> None:
        await self.store.checkpoints.save(fold, position, self.incarnation, "schema", b"state")

    async def verify(self) -> Checked:
        checker = Checker()
        wrong, manifests = check_folder(self.folder, checker)
        if not wrong:
            log, incarnation = self.store.log, self.incarnation
            wrong = await check_all(log, self.retention, checker, self.folder, manifests, incarnation=incarnation)
        return checker.result(wrong, segments=len(manifests))


async def archiving(store: Store, path: Path, *, events: int = 4, disk: Disk | None = None) -> Archiving:
    return Archiving(store, await retention_of(store), path, await incarnation_of(store), events=events, disk=disk)


class Killed(BaseException):
    """The process is no more."""


def _half(path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])


class DyingDisk:
    """Implements Disk: does `steps` steps; in the next one the process dies, half-way through where a step has a middle."""

    def __init__(self, steps: int) -> None:
        self._real, self._left = RealDisk(), steps
        self.done: list[str] = []

    def _step(self, name: str, half: Callable[[], None] = lambda: None) -> None:
        if self._left == 0:
            half()
            raise Killed(name)
        self._left -= 1
        self.done.append(name)

    def write(self, path: Path, data: bytes) -> None:
        self._step("write", lambda: _half(path, data))
        self._real.write(path, data)

    def replace(self, temporary: Path, final: Path) -> None:
        self._step("replace")
        self._real.replace(temporary, final)

    def claim(self, temporary: Path, final: Path) -> None:
        self._step("claim")
        self._real.claim(temporary, final)

    def remove(self, path: Path) -> None:
        self._step("remove")
        self._real.remove(path)


async def killed_in(life: Callable[[], Awaitable[object]]) -> bool:
    """Whether it died."""
    try:
        await life()
    except Killed:
        return True
    return False


def core_of(store: Store, retention: Retention, path: Path, incarnation: str, name: str) -> Core:
    settings = ArchiveSettings(id=name, segment_s=0, settle_s=0, keep_hours=0, segment_events=4, trim_s=0.001)
    return Core(store, retention, ArchiveFolder(path), settings, Metrics(), incarnation=incarnation)
