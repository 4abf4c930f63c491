"""One thread that owns a blocking library: every call runs there, one after another, each with a deadline."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio

from hami.domain.errors import DeviceUnavailable

T = TypeVar("T")


class LibraryThread:
    """A daemon thread, so that a call that never returns cannot keep the process from ending.

    A call past its deadline raises DeviceUnavailable; so does every later call until the stuck one has returned, because
    the thread is still inside the library.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck_in: Future[Any] | None = None

    def start(self) -> None:
        if self._thread is None:
            self._jobs = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._work, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()

    async def call(self, function: Callable[[], T], *, deadline_s: float) -> T:
        if self._thread is None:
            raise DeviceUnavailable(f"{self._name}: not open")
        if self._stuck_in is not None:
            if not self._stuck_in.done():
                raise DeviceUnavailable(f"{self._name}: an earlier call has not returned")
            self._stuck_in = None
        job: Future[T] = Future()
        self._jobs.put((function, job))
        try:
            with anyio.fail_after(deadline_s):
                return await asyncio.shield(asyncio.wrap_future(job))
        except TimeoutError:
            self._stuck_in = job
            raise DeviceUnavailable(f"{self._name}: no answer within {deadline_s:g} s") from None

    def stop(self) -> None:
        """Ends the thread after the job it is at; does not wait for a stuck one."""
        if self._thread is not None:
            self._jobs.put(None)
            if self._stuck_in is None:
                self._thread.join(timeout=1.0)
            self._thread = None

    @staticmethod
    def _work(jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
        while (entry := jobs.get()) is not None:
            function, job = entry
            try:
                job.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits for the job
                job.set_exception(error)
