"""When Python looks for garbage, and what it looks at.

A cluster's state is hundreds of thousands of objects that stay. A full collection walks all of them, tens of milliseconds in
which nothing is answered; it happens when the allocator's counters say so, mostly in the middle of a decision. So: what was
there at start is taken out of the collector's sight, and full collections run when nobody asks for anything.
"""

import ctypes
import gc
from collections.abc import Callable
from typing import Final

import anyio

IDLE_S: Final = 0.2
EVERY_S: Final = 60.0
AT_LATEST: Final = 10
"""After so many minutes without an idle moment a collection is due all the same."""

_AT_START: Final = (50_000, 50, 1_000)
_RUNNING: Final = (700, 10, 1_000_000)
"""Python's own for young objects; never a full collection by itself."""


def begin() -> None:
    """At start a replay makes hundreds of thousands of objects that stay: look for garbage among them seldom.

    Not never: a scheduler may wait for its store for hours.
    """
    gc.set_threshold(*_AT_START)


def settle() -> None:
    """After start: forget what is garbage, freeze the rest, hand unused memory back to the system."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_RUNNING)
    _trim()


def _trim() -> None:
    """The C library keeps what was freed; after a start that read whole lists this is a quarter of the process."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


async def collect_when_idle(idle_s: Callable[[], float]) -> None:
    """For ever. `idle_s` says for how long nothing has been asked."""
    waited = 0.0
    while True:
        await anyio.sleep(EVERY_S if not waited else IDLE_S)
        if idle_s() >= IDLE_S or waited > AT_LATEST * EVERY_S:
            gc.collect()
            waited = 0.0
        else:
            waited += IDLE_S
