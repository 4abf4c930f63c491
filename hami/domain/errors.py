"""Broken promises. A refusal is a value; an exception means that we, or a program we rely on, did not keep a promise.

HamiError
├── InvalidInput          something from outside is malformed: names the field and the value
├── IllegalTransition     our own bug: an allocation was moved along an edge that does not exist
├── Conflict              expected versions did not hold (the store refused an append)
├── Fenced / GapFound     our producer's epoch or sequence is not what the store has
├── HistoryChanged        the entry a reader stood on is gone, or the log jumps after it
│   └── HistoryTrimmed    the log begins later than that: older entries are in its archive, if there is one
├── ArchiveBroken         the archive is not what was written, or not of this log
├── StoreUnavailable      Redis cannot be reached
│   └── StoreRefuses      Redis answers, and will not do this for now (full, a replica)
├── StoreUnsafe           Redis is reachable, but must not be used (eviction, replica, foreign functions, wrong incarnation)
└── DeviceUnavailable     a device library call failed
"""


class HamiError(Exception):
    """hami failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class InvalidInput(HamiError):  # noqa: N818 - reads as a sentence where it is raised
    """Input from outside is malformed."""

    def __init__(self, field: str, value: object, why: str) -> None:
        shown = repr(value)
        self.field, self.value, self.why = field, value, why
        super().__init__(f"{field}: {shown if len(shown) <= 200 else shown[:200] + '...'}: {why}")


class IllegalTransition(HamiError):  # noqa: N818 - as above
    """An allocation cannot move along this edge."""


class Conflict(HamiError):  # noqa: N818 - as above
    """Another writer was first: an expected version did not hold."""

    def __init__(self, actual: dict[str, int]) -> None:
        self.actual = actual
        known = ", ".join(f"{e} is at {v}" for e, v in sorted(actual.items()))
        super().__init__(f"version conflict: {known or 'the store lost events, no version can be trusted'}")


class StaleFence(HamiError):  # noqa: N818 - as above
    """The lock named in an append is no longer held by its owner."""


class Fenced(HamiError):  # noqa: N818 - as above
    """A newer epoch of this producer has written: this one must stop."""


class GapFound(HamiError):  # noqa: N818 - as above
    """Events are missing before this one."""

    def __init__(self, producer: str, last_epoch: int, last_seq: int, position: str = "") -> None:
        self.producer, self.last_epoch, self.last_seq, self.position = producer, last_epoch, last_seq, position
        super().__init__(f"{producer}: the log has seen epoch {last_epoch} up to seq {last_seq}")


class HistoryChanged(HamiError):  # noqa: N818 - as above
    """The log no longer continues where a reader stood: go back to a checkpoint that it still holds."""


class HistoryTrimmed(HistoryChanged):
    """The log begins at entry `g`, which is not the first it ever had."""

    def __init__(self, g: int, entry: str) -> None:
        self.g, self.entry = g, entry
        super().__init__(
            f"history begins at g:{g} ({entry}): what came before was trimmed; an archive may hold it (archive.dir)"
        )


class ArchiveBroken(HamiError):  # noqa: N818 - as above
    """The archive is not what was written, or is not of this log."""


class StoreUnavailable(HamiError):  # noqa: N818 - as above
    """The event store cannot be reached or refuses writes for now."""


class StoreRefuses(StoreUnavailable):
    """The event store answers and refuses: it is full, or a replica, or lacks replicas of its own."""


class StoreUnsafe(HamiError):  # noqa: N818 - as above
    """The event store is reachable, but must not be used."""


class DeviceUnavailable(HamiError):  # noqa: N818 - as above
    """A device library call failed."""
