"""Background loops: one that fails is logged with its cause, counted and started again; its siblings never notice.

Errors that mean the whole core is built on sand (another store, a fenced producer, a broken view) end it instead.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from hami.domain.errors import Fenced, StoreUnavailable, StoreUnsafe
from hami.projections.view import ViewBroken
from hami.scheduler.metrics import Metrics
from hami.telemetry import get_logger

FATAL: Final = (StoreUnsafe, Fenced, ViewBroken)
_FIRST_S: Final = 0.2
_MOST_S: Final = 10.0
_CALM_S: Final = 30.0
"""A loop that ran this long before it failed starts again at once."""

_log = get_logger("scheduler")


async def supervise(name: str, loop: Callable[[], Awaitable[None]], metrics: Metrics) -> None:
    """Run until cancelled. Raises what is in FATAL."""
    delay = _FIRST_S
    while True:
        started = anyio.current_time()
        try:
            await loop()
            why: Exception = RuntimeError("the loop ended, it should run for ever")
        except Exception as error:
            fatal = find(error, FATAL)
            if fatal is not None:
                raise fatal from error
            why = error
        metrics.crashes.labels(name).inc()
        if anyio.current_time() - started > _CALM_S:
            delay = _FIRST_S
        _tell(name, why, delay)
        await anyio.sleep(delay)
        delay = min(_MOST_S, delay * 2)


def _tell(name: str, why: Exception, delay: float) -> None:
    if isinstance(why, StoreUnavailable):
        _log.warning("loop waits for the store", loop=name, again_in_s=delay, error=str(why))
    else:
        _log.error("loop failed", loop=name, again_in_s=delay, error=str(why), exc_info=why)


def find(error: BaseException, kinds: tuple[type[Exception], ...]) -> Exception | None:
    """The first error of these kinds, inside groups too."""
    if isinstance(error, kinds):
        return error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            found = find(each, kinds)
            if found is not None:
                return found
    return None
