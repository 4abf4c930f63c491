"""A cluster state kept live by following the log.

    boot:   newest checkpoint that stands -> replay -> tail
    always: apply each batch, tell `on_change` which nodes changed, save a checkpoint now and then
    beside: ask the store for its head, so that `confirmed_at` says how old the view may be, and notice a rewritten log

A gap in the log stops the view for good: `broken` says why, and `confirmed_at` stands still, so that whoever decides from the
view refuses. A log that lost entries and went on (a failover) sends the view back to a checkpoint that stands.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import HamiError, StoreUnavailable, StoreUnsafe
from hami.events.envelope import START, Position
from hami.events.log import Checkpoints, Log, Record
from hami.projections.boot import FOLD, newest_state, stands
from hami.projections.checkpoint import SCHEMA, encode_state
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.projections.folds.errors import LogRewritten
from hami.projections.folds.state import ClusterState

T = TypeVar("T")
OnChange = Callable[[Sequence[str]], None]

CLOSING_S: Final = 2.0
"""How long closing waits for its last checkpoint."""

CONFIRM_WITHIN_S: Final = 5.0
"""How long one confirmation waits for the tail to reach the head it asked for."""

_log = structlog.get_logger(__name__)


class ViewBroken(HamiError):  # noqa: N818 - reads as a sentence where it is raised
    """The view can no longer follow the log."""


def _nobody(_nodes: Sequence[str]) -> None:
    pass


class LiveView:
    """Start with `await task_group.start(view.run)`: it returns once a starting state is there; `caught_up` comes later.

    `on_change` gets the names of the nodes that changed (all of them after boot and after a rollback), right after the batch
    was applied, and is called when `caught_up` changes, with no names if need be; it must not wait. `checkpoint_every` counts
    events; while the view is still catching up none is saved.
    """

    def __init__(
        self,
        log: Log,
        checkpoints: Checkpoints,
        *,
        incarnation: str,
        on_change: OnChange = _nobody,
        checkpoint_every: int = 10_000,
        confirm_every_s: float = 1.0,
        retry_s: float = 0.5,
        fold: str = FOLD,
        rewinds: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._checkpoints, self._clock = log, checkpoints, clock
        self._incarnation, self._fold, self._rewinds = incarnation, fold, rewinds
        self._on_change = on_change
        self._every, self._confirm_every_s, self._retry_s = checkpoint_every, confirm_every_s, retry_s
        self._state = new_cluster()
        self._target: Position | None = None
        self._saved = START
        self._moved = anyio.Event()
        self._told_caught_up = False
        self.broken = ""
        """Why the view stopped following, in words; empty while it follows."""
        self.unreachable = ""
        """Why the store could not be asked the last time; empty when it answered."""
        self.rollbacks = 0
        """How often a rewritten log sent the view back to a checkpoint."""
        self.confirmed_at: float | None = None
        """By `clock`: the view holds everything that the log held at that time. None before the first confirmation."""

    @property
    def state(self) -> ClusterState:
        """Changes in place with every batch: read it without awaiting in between."""
        return self._state

    @property
    def position(self) -> Position:
        return self._state.position

    @property
    def caught_up(self) -> bool:
        """The head recorded when the view (re)started has been reached, and nothing is broken."""
        return not self.broken and self._target is not None and self._state.position.g >= self._target.g

    @property
    def behind_checkpoint(self) -> int:
        """How many events the last checkpoint saved or read does not hold."""
        return self._state.position.g - self._saved.g

    def snapshot(self) -> ClusterSnapshot:
        return snapshot(self._state)

    async def wait_for(self, place: Position | int, *, timeout: float) -> bool:  # noqa: ASYNC109 - a time limit is a plain number to callers
        """True once `place` is applied, False when `timeout` seconds passed first. Raises ViewBroken."""
        g = place if isinstance(place, int) else place.g
        return await self._until(lambda: self._state.position.g >= g, timeout)

    async def wait_caught_up(self, *, timeout: float) -> bool:  # noqa: ASYNC109 - as above
        return await self._until(lambda: self.caught_up, timeout)

    async def _until(self, reached: Callable[[], bool], timeout: float) -> bool:  # noqa: ASYNC109 - as above
        with anyio.move_on_after(timeout):
            while not reached():
                if self.broken:
                    raise ViewBroken(self.broken)
                await self._moved.wait()
        return reached()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the log until cancelled or broken; a last checkpoint is saved on the way out."""
        try:
            await self._boot()
            task_status.started()
            while not self.broken:
                await self._follow()
                if not self.broken:
                    self.rollbacks += 1
                    await self._boot()
        finally:
            with anyio.move_on_after(CLOSING_S, shield=True):
                await self.save()

    async def _boot(self) -> None:
        """Take the newest state that stands; wait for the store as long as it is away."""
        self._target = self.confirmed_at = None
        try:
            state, head = await self._patiently(self._load)
        except HamiError as failure:
            self._break(failure)
            return
        _log.info("view.booted", g=state.position.g, head=head.g, rollbacks=self.rollbacks)
        gone = [name for name in self._state.nodes if name not in state.nodes]
        state.touched.update(dict.fromkeys(gone))
        self._state, self._target, self._saved = state, head, state.position
        self._tell()

    async def _load(self) -> tuple[ClusterState, Position]:
        head = await self._log.head()
        return await newest_state(self._log, self._checkpoints, incarnation=self._incarnation, fold=self._fold), head

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await ask()
            except StoreUnavailable as away:
                self.unreachable = str(away)
                await anyio.sleep(self._retry_s)
            else:
                self.unreachable = ""
                return answer

    async def _follow(self) -> None:
        """Until broken, or until the log turns out to be rewritten."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._stopping, group.cancel_scope, self._tail)
            group.start_soon(self._stopping, group.cancel_scope, self._confirm)

    async def _stopping(self, scope: anyio.CancelScope, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one loop; when it ends, the other one has no business any more."""
        try:
            await self._patiently(loop)
        except StoreUnsafe as unsafe:
            self._break(unsafe)
        except HamiError as failure:
            await self._judge(failure)
        scope.cancel()

    async def _judge(self, failure: HamiError) -> None:
        """Where the log no longer holds our place, a checkpoint may; where it does, what follows is wrong: that is the end.

        With `rewinds=False` both are: who decides by this view must first ask the world what the log forgot.
        """
        position, previous = self._state.position, self._state.previous
        if not self._rewinds or await self._patiently(lambda: stands(self._log, position, previous)):
            self._break(failure)
        else:
            _log.warning("view.log_rewritten", why=str(failure))

    def _break(self, failure: HamiError) -> None:
        self.broken = str(failure)
        _log.error("view.broken", why=self.broken, g=self._state.position.g)
        self._tell()

    async def _tail(self) -> None:
        async with _closing(self._log.tail(self._state.position)) as batches:
            async for batch in batches:
                try:
                    self._apply(batch)
                finally:
                    self._tell()
                if self.caught_up and self._state.position.g - self._saved.g >= self._every:
                    await self.save()

    def _apply(self, batch: Sequence[Record]) -> None:
        state = self._state
        for record in batch:
            apply(state, record)

    async def _confirm(self) -> None:
        while True:
            asked, position, previous = self._clock(), self._state.position, self._state.previous
            head = await self._log.head()
            if head.g < position.g or not await stands(self._log, position, previous):
                raise LogRewritten(position, head)
            self.unreachable = ""
            if await self.wait_for(head, timeout=CONFIRM_WITHIN_S):
                self.confirmed_at = asked
            await anyio.sleep(self._confirm_every_s)

    def _tell(self) -> None:
        """After every change: wake who waits, hand out the journals."""
        self._moved.set()
        self._moved = anyio.Event()
        for oddity in self._state.drain_oddities():
            say = _log.warning if self.caught_up else _log.debug
            say("view.not_applied", kind=oddity.kind, text=oddity.text, entry=oddity.position.entry)
        touched, caught_up = self._state.drain_touched(), self.caught_up
        if touched or caught_up is not self._told_caught_up:
            self._on_change(touched)
        self._told_caught_up = caught_up

    async def save(self) -> None:
        """A checkpoint, if events were applied since the last one. It may fail: the next boot then reads more of the log."""
        position = self._state.position
        if position.g <= self._saved.g:
            return
        try:
            await self._checkpoints.save(self._fold, position, self._incarnation, SCHEMA, encode_state(self._state))
        except HamiError as failure:
            _log.warning("view.checkpoint_not_saved", why=str(failure))
        else:
            self._saved = position


@asynccontextmanager
async def _closing(batches: AsyncIterator[Sequence[Record]]) -> AsyncIterator[AsyncIterator[Sequence[Record]]]:
    """An iterator that is a generator is closed when reading stops half-way, not whenever it is collected."""
    try:
        yield batches
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
