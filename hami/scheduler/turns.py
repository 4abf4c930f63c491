"""Long work in short pieces: a loop that looks at everything must not make a filter wait for it."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import anyio

T = TypeVar("T")

SLICE: Final = 200
"""Items between two pauses: about a millisecond of work."""

_PAUSE_S: Final = 0.002


def slices(items: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def breathe() -> None:
    """Let whoever waits go first. A pause of nothing would only let those run that wait already."""
    await anyio.sleep(_PAUSE_S)
