"""Which check a recorded case goes to, and the tally of a file."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance import admissions, codecs, filters, lifecycles, scheduler_cases, vendor_cases
from tests.conformance.outcome import Outcome, Status, not_covered
from tests.conformance.world import Case, cases_in

_CHECKS: dict[str, Callable[[Case], Outcome]] = {
    "filter": filters.check,
    "dry_run": filters.check,
    "codec": codecs.check,
    "admit": admissions.check_admission,
    "requests": admissions.check_requests,
    "lifecycle": lifecycles.check_lifecycle,
    "decode_node": lifecycles.check_node,
}


@dataclass
class Tally:
    """`documented`: passed with our own documented answer, by entry of docs/differences.md."""

    passed: int = 0
    documented: Counter[str] = field(default_factory=Counter)
    not_covered: Counter[str] = field(default_factory=Counter)
    failed: dict[str, list[str]] = field(default_factory=dict)

    def line(self) -> str:
        passed = self.passed + self.documented.total()
        parts = [f"{passed} passed, {len(self.failed)} failed"]
        if self.documented:
            parts.append("of the passed, by a documented difference: " + _counts(self.documented))
        if self.not_covered:
            parts.append(f"{self.not_covered.total()} not covered: " + _counts(self.not_covered))
        return "; ".join(parts)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


def replay(path: Path) -> Tally:
    tally = Tally()
    if ".jsonl" in path.name:
        for case in cases_in(path):
            _count(tally, case["id"], check(case))
        return tally
    kinds = vendor_cases if path.name.startswith("vendor-cases") else scheduler_cases
    for case in kinds.cases_in(path):
        _count(tally, case["id"], kinds.check(case))
    return tally


def check(case: Case) -> Outcome:
    found = _CHECKS.get(case["input"]["op"])
    return not_covered(f"op {case['input']['op']}") if found is None else found(case)


def _count(tally: Tally, case_id: str, outcome: Outcome) -> None:
    match outcome.status:
        case Status.PASSED:
            tally.passed += 1
        case Status.DOCUMENTED:
            tally.documented[outcome.fault] += 1
        case Status.NOT_COVERED:
            tally.not_covered[outcome.fault] += 1
        case Status.FAILED:
            tally.failed[case_id] = outcome.differences
