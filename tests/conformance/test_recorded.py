"""HAMi's recorded answers, replayed: every covered case agrees, or differs as docs/differences.md says."""

from functools import cache
from pathlib import Path

import pytest

from tests.conformance.replay import Tally
from tests.conformance.replay import replay as replay_once
from tests.conformance.world import DATA

FILES = (
    *sorted(DATA.glob("*.jsonl.gz")),
    DATA.parent / "scheduler-cases.json.gz",
    DATA.parent / "vendor-cases.json.gz",
)


@cache
def replay(path: Path) -> Tally:
    return replay_once(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recorded_answers_hold(path: Path) -> None:
    tally = replay(path)
    assert tally.failed == {}


def test_every_documented_difference_has_its_entry() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "differences.md").read_text(encoding="utf-8")
    used = {fault for path in FILES for fault in replay(path).documented}
    assert used <= {line.split("`")[1] for line in text.splitlines() if line.startswith("## `")}


def test_the_nvidia_families_are_covered_in_full() -> None:
    tally = replay(DATA / "nvidia_filter.jsonl.gz")
    assert tally.passed + tally.documented.total() == 1323
    assert not tally.not_covered


def test_every_case_is_covered() -> None:
    """Except where HAMi's own answer depends on the order in which nodes register."""
    for path in sorted(DATA.glob("*.jsonl.gz")):
        assert set(replay(path).not_covered) <= {"registration order decides"}, path.name
