"""A clock that nobody sets: the wall as it was when this boot was first looked at, and the machine's own time since.

A recovery hold is a length of time on one clock. A wall that is set forward would end it early, one that is set back would
draw it out; the machine's time since its boot does neither, and goes on over restarts of the agent.
"""

import time
from collections.abc import Callable

import msgspec

from hami.domain.units import EpochMs
from hami.nodeagent.state import Anchor, StateFile


def since_boot() -> int:
    """Milliseconds since the machine was started, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def steady_clock(
    memory: StateFile, boot_id: str, wall: Callable[[], EpochMs], uptime: Callable[[], int] = since_boot
) -> Callable[[], EpochMs]:
    """The clock of this boot. In a boot that is seen for the first time, or cannot be told from others, each hold starts anew:
    how long the machine was away is known by the wall alone.
    """
    state = memory.state
    if state.anchor is None or not boot_id or state.anchor.boot_id != boot_id:
        state.anchor = Anchor(boot_id, wall() - uptime())
        for uuid, card in state.cards.items():
            state.cards[uuid] = msgspec.structs.replace(card, clean_since_ms=EpochMs(0))
    offset = state.anchor.offset_ms
    return lambda: EpochMs(offset + uptime())
