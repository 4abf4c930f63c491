"""Reference pages are as new as the code, and the check that says so can fail."""

from pathlib import Path

from hami.cli.main import VERBS
from hami.cli.reference import stale
from hami.cli.reference_pages import pages
from hami.config import SETTINGS
from hami.domain.reasons import NodeReason, Reason
from hami.events.catalog.union import EVENT_TYPES
from hami.events.redis.keys import Keys

FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"


def test_the_pages_in_the_repository_are_what_the_code_says() -> None:
    assert stale(pages(), FOLDER) == [], "run `make docs`"


def test_every_list_is_on_its_page_in_full() -> None:
    made = pages()
    assert [name for name in VERBS if f"## hami {name}" not in made["commands.md"]] == []
    assert [kind.TYPE for kind in EVENT_TYPES if f"## {kind.TYPE}\n" not in made["events.md"]] == []
    assert [word for word in (*Reason, *NodeReason) if f"`{word.value}`" not in made["reasons.md"]] == []
    assert [key.pattern for key in Keys().table() if f"`{key.pattern}`" not in made["redis-keys.md"]] == []
    fields = [f"`HAMI_{table}_{name}`".upper() for table, kind in SETTINGS for name in kind.__struct_fields__]
    assert [name for name in fields if name not in made["settings.md"]] == []


def test_a_page_that_differs_is_reported_with_what_changed(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one\ntwo\n")
    (tmp_path / "old.md").write_text("")
    problems = stale({"a.md": "one\nthree\n", "b.md": ""}, tmp_path)
    assert problems == [
        "old.md: left over, no list makes it",
        "a.md: stale, 2 lines differ",
        "    -two",
        "    +three",
        "b.md: missing",
    ]
