"""Waiting for a condition instead of for a time."""

import inspect
import time
from collections.abc import Awaitable, Callable

import anyio


async def wait_until(predicate: Callable[[], object | Awaitable[object]], description: str, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - bounds the whole wait; the name is what callers expect
    """Return once `predicate` (plain or async) answers something true; fail after `timeout` seconds with its last answer."""
    deadline = time.monotonic() + timeout
    while True:
        last = predicate()
        if inspect.isawaitable(last):
            last = await last
        if last:
            return
        if time.monotonic() >= deadline:
            raise AssertionError(f"{description}: not within {timeout:g} s; last value {last!r}")
        await anyio.sleep(0.005)
