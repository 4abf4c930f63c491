"""Waiting for a condition instead of sleeping for a time."""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

import anyio

T = TypeVar("T")


@overload
async def wait_until(
    predicate: Callable[[], Awaitable[T]], description: str, *, timeout: float = 10.0, every: float = 0.01
) -> T: ...


@overload
async def wait_until(predicate: Callable[[], T], description: str, *, timeout: float = 10.0, every: float = 0.01) -> T: ...


async def wait_until(
    predicate: Callable[[], T | Awaitable[T]], description: str, *, timeout: float = 10.0, every: float = 0.01
) -> T:
    """Return the predicate's first true value; raise AssertionError with the description and the last value seen."""
    last: object = None
    with anyio.move_on_after(timeout):
        while True:
            found = predicate()
            value = cast("T", await found if inspect.isawaitable(found) else found)
            if value:
                return value
            last = value
            await anyio.sleep(every)
    raise AssertionError(f"waited {timeout} s for: {description}; last value: {last!r}")
