"""The page that says which test holds the scheduler to which promise names tests, files and families that exist."""

import re
from pathlib import Path
from typing import Final

from tests.conformance.test_recorded import FILES
from tests.conformance.world import cases_in

TESTS: Final = Path(__file__).parent.parent
PAGE: Final = (TESTS.parent / "docs/scheduler-promises.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`([a-z_/]+\.py)(?:::(test_\w+))?`", PAGE)
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (TESTS / file).is_file() or (name and f"def {name}(" not in (TESTS / file).read_text())
    ]
    assert missing == []


def test_every_family_that_the_page_names_is_recorded() -> None:
    families = {case["family"] for path in FILES if ".jsonl" in path.name for case in cases_in(path)}
    named = set(re.findall(r"`recorded:(\w+)`", PAGE))
    assert named
    assert named <= families
