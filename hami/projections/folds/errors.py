"""What a fold must not pass over: the log itself is not what it promised to be."""

from hami.domain.errors import HamiError
from hami.events.envelope import Position


class LogGap(HamiError):  # noqa: N818 - reads as a sentence where it is raised
    """Entries of the log are missing before this one."""

    def __init__(self, last: Position, found: Position) -> None:
        self.last, self.found = last, found
        super().__init__(f"log gap: g={last.g} ({last.entry}) is followed by g={found.g} ({found.entry})")


class LogRewritten(HamiError):  # noqa: N818 - as above
    """The log holds another entry at a place already read (entries were lost and others written there)."""

    def __init__(self, known: Position, found: Position) -> None:
        self.known, self.found = known, found
        super().__init__(f"log rewritten: g={known.g} was {known.entry}, is now g={found.g} ({found.entry})")
