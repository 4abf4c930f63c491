"""What became of one recorded case."""

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    PASSED = "passed"
    DOCUMENTED = "documented"
    """Differs from the recording exactly as docs/differences.md says."""
    FAILED = "failed"
    NOT_COVERED = "not covered"


@dataclass
class Outcome:
    status: Status
    fault: str = ""
    """Entry of docs/differences.md, for DOCUMENTED."""
    differences: list[str] = field(default_factory=list)
    """`field: ours != recorded`, for FAILED."""


PASSED = Outcome(Status.PASSED)


def not_covered(why: str) -> Outcome:
    return Outcome(Status.NOT_COVERED, fault=why)


def failed(*differences: str) -> Outcome:
    return Outcome(Status.FAILED, differences=list(differences))


def documented(fault: str) -> Outcome:
    return Outcome(Status.DOCUMENTED, fault=fault)


def difference(name: str, ours: object, recorded: object) -> str:
    return f"{name}: {str(ours)[:400]} != {str(recorded)[:400]}"
