"""Reference pages, written from the lists that the code itself uses.

python -m hami.cli.reference docs/reference           write the pages
python -m hami.cli.reference --check docs/reference   fail, with a summary, when a page is not what would be written
"""

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from hami.cli.exits import Exit
from hami.cli.reference_pages import pages

SHOWN_LINES: Final = 12
"""Changed lines shown for each stale page."""


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when a page is stale, missing or left over.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def reference(check: bool, folder: Path) -> None:
    """Write (or check) the reference pages in FOLDER."""
    wanted = pages()
    if check:
        problems = stale(wanted, folder)
        for line in problems:
            click.echo(line, err=True)
        if problems:
            click.echo(f"run: python -m hami.cli.reference {folder}", err=True)
            sys.exit(Exit.FAILED)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)
    click.echo(f"{len(wanted)} pages in {folder}")


def stale(wanted: Mapping[str, str], folder: Path) -> list[str]:
    """What differs between the pages wanted and the pages there, in lines; empty = fresh."""
    problems: list[str] = []
    present = {path.name: path.read_text() for path in folder.glob("*.md")} if folder.is_dir() else {}
    problems.extend(f"{name}: left over, no list makes it" for name in sorted(set(present) - set(wanted)))
    for name, text in wanted.items():
        if name not in present:
            problems.append(f"{name}: missing")
        elif present[name] != text:
            diff = difflib.unified_diff(present[name].splitlines(), text.splitlines(), "there", "wanted", lineterm="", n=0)
            changed = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
            problems.append(f"{name}: stale, {len(changed)} lines differ")
            problems.extend(f"    {line}" for line in changed[:SHOWN_LINES])
    return problems


if __name__ == "__main__":
    reference()
