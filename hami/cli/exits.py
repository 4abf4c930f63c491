"""Exit codes and the one line that an error becomes.

Every failure of a verb is an exception of `hami.domain.errors` (or `NotFound` below); `explain` turns it into a sentence that
says what is wrong and what to do, and a code that a script can branch on.
"""

from enum import IntEnum
from typing import Final

from hami.domain.errors import Conflict, HamiError, InvalidInput, StoreUnavailable, StoreUnsafe


class Exit(IntEnum):
    """What the process answers to its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    STORE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


MEANING: Final[dict[Exit, str]] = {
    Exit.OK: "Done. Also when the reader of our output closed the pipe early.",
    Exit.FAILED: "The command was understood and failed; the line on standard error says why.",
    Exit.USAGE: "The command line, the configuration file or an environment variable is wrong.",
    Exit.STORE: "The event store cannot be used: unreachable, not initialised, or configured so that events could be lost.",
    Exit.NOT_FOUND: "What was asked for does not exist; the line says what exists nearby.",
    Exit.INTERRUPTED: "Stopped by Ctrl-C.",
}


class NotFound(HamiError):  # noqa: N818 - reads as a sentence where it is raised
    """What was asked for does not exist."""


class Wrong(HamiError):  # noqa: N818 - as above
    """What was checked is not as it should be."""


class NotInitialised(HamiError):  # noqa: N818 - as above
    """The store answers, but `hami init` has never run on it."""


def explain(error: HamiError, *, store: str = "") -> tuple[Exit, str]:
    """The code and the sentence for an error; `store` is the URL that was used, shown where it helps."""
    where = f" at {store}" if store else ""
    match error:
        case NotFound():
            return Exit.NOT_FOUND, str(error)
        case NotInitialised():
            return Exit.STORE, f"the event store{where} is not initialised: run `hami init`"
        case InvalidInput():
            return Exit.USAGE, str(error)
        case StoreUnavailable():
            return Exit.STORE, (
                f"the event store{where} cannot be reached ({_line(error)}): start it, or name another with --redis-url"
            )
        case StoreUnsafe():
            return Exit.STORE, f"the event store{where} must not be used: {_line(error)}"
        case Conflict():
            return Exit.FAILED, f"{_line(error)}: something else changed it at the same moment; run the command again"
        case _:
            return Exit.FAILED, _line(error)


def _line(error: Exception) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split())


def innermost(error: BaseException) -> BaseException:
    """The first real cause inside task-group wrappers: a reader wants one line, not a tree."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        hami = [each for each in error.exceptions if isinstance(innermost(each), HamiError)]
        error = (hami or list(error.exceptions))[0]
    return error
