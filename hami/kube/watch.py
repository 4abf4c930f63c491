"""A reflector: everything there is, then every change, for as long as it runs, whatever the connection does."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Never, Protocol, TypeVar

import anyio

from hami.domain.errors import HamiError, InvalidInput
from hami.kube.errors import ApiError
from hami.kube.kinds import HasMetadata, Kind
from hami.kube.results import Added, Bookmark, Deleted, Gone, Modified, Page, Skipped, WatchEvent

T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """The whole state at one version; whatever is not in it is gone."""

    items: tuple[T, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The API cannot be followed for now; the state known so far grows stale until the next other event."""

    why: str


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A part of the whole state, to be followed by more and then `Complete`. `first`: forget the parts before."""

    items: tuple[T, ...]
    first: bool


@dataclass(frozen=True, slots=True)
class Complete:
    """The parts since the first one are the whole state at one version; whatever was in none of them is gone."""

    resource_version: str


Reflected = Replaced[T] | Listed[T] | Complete | Added[T] | Modified[T] | Deleted[T] | Bookmark | Skipped | Interrupted
Emit = Callable[[Reflected[T]], Awaitable[None]]


class Source(Protocol):
    """The two calls a reflector needs; KubeClient offers them."""

    def list_pages(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[Page[T]]: ...

    def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        seconds: int = 290,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter between nothing and a bound that doubles, so that many clients do not come back at once."""

    first: float = 0.5
    most: float = 30.0

    def delay(self, failures: int, draw: float) -> float:
        """`draw` is uniform in [0, 1)."""
        return min(self.most, self.first * 2.0 ** min(failures, 16)) * draw


class Reflector(Generic[T]):
    """Lists, then watches from there; lists again when its version is too old. Emits in order, one event at a time.

    A slow `emit` slows the reading: nothing is queued here. With `in_pages` a list comes as Listed and Complete instead of one
    Replaced, so that a receiver that keeps little of each object never has all of them in memory.
    """

    def __init__(
        self,
        source: Source,
        kind: Kind[T],
        emit: Emit[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page: int = 500,
        watch_seconds: int = 290,
        backoff: Backoff | None = None,
        seed: int | None = None,
        in_pages: bool = False,
    ) -> None:
        self._source, self._kind, self._emit = source, kind, emit
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._page, self._watch_seconds = page, watch_seconds
        self._backoff = backoff or Backoff()
        self._random = random.Random(seed)  # noqa: S311 - spreads clients in time, guards nothing
        self._in_pages = in_pages
        self._version = ""
        self._failures = 0

    async def run(self) -> Never:
        """Runs until it is cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (ApiError, InvalidInput) as error:
                await self._wait_after(error)

    async def _list(self) -> None:
        items: list[T] = []
        skipped: list[Skipped] = []
        version = ""
        pages = self._source.list_pages(
            self._kind, namespace=self._namespace, labels=self._labels, fields=self._fields, limit=self._page
        )
        async for page in pages:
            if page.first:
                items, skipped = [], []
            if self._in_pages:
                await self._tell(Listed(page.items, page.first))
            else:
                items += page.items
            skipped += [Skipped(each.name, each.why) for each in page.bad]
            version = page.resource_version
        for each in skipped:
            await self._tell(each)
        await self._tell(Complete(version) if self._in_pages else Replaced(tuple(items), version))
        self._version, self._failures = version, 0

    async def _watch(self) -> None:
        """One watch, until the server ends it. An end without a single event is a failure in disguise: it is paced."""
        # Not every replica asks for the same duration, or they would all come back at the same moment.
        seconds = max(1, round(self._watch_seconds * (0.8 + 0.2 * self._random.random())))
        heard = False
        opened = self._source.watch(
            self._kind, self._version, namespace=self._namespace, labels=self._labels, fields=self._fields, seconds=seconds
        )
        try:
            async with opened as events:
                async for event in events:
                    if isinstance(event, Gone):
                        self._version = ""
                        return
                    heard = True
                    await self._took(event)
        except ApiError as error:
            if error.code != 410:
                raise
            self._version = ""
            return
        if not heard:
            await self._pause()

    async def _took(self, event: Added[T] | Modified[T] | Deleted[T] | Bookmark | Skipped) -> None:
        await self._tell(event)
        version = (
            event.object.metadata.resource_version if isinstance(event, Added | Modified | Deleted) else event.resource_version
        )
        self._version = version or self._version
        self._failures = 0

    async def _tell(self, event: Reflected[T]) -> None:
        """A receiver that fails ends the reflector: its errors must not be taken for the API's."""
        try:
            await self._emit(event)
        except (ApiError, InvalidInput) as error:
            raise HamiError(f"the receiver of {self._kind.plural} failed: {error}") from error

    async def _wait_after(self, error: ApiError | InvalidInput) -> None:
        await self._tell(Interrupted(str(error)))
        least = error.retry_after if isinstance(error, ApiError) else 0.0
        await self._pause(least)

    async def _pause(self, least: float = 0.0) -> None:
        delay = self._backoff.delay(self._failures, self._random.random())
        self._failures += 1
        await anyio.sleep(max(least, delay))
