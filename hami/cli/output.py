"""Printing: columns for people, JSON for programs.

JSON is a contract: one document (or one line for each record when following), keys in snake case, units in the key's name,
absent never printed as zero. Columns may change from release to release.
"""

import sys
from collections.abc import Sequence
from typing import Any

import click


def print_json(document: Any) -> None:
    """One document, indented: stable key order comes from whoever built it."""
    click.echo(_encoded(document, indent=2))


def print_line(document: Any) -> None:
    """One record on one line, flushed, so that a following reader sees it at once."""
    click.echo(_encoded(document, indent=0))
    sys.stdout.flush()


def _encoded(document: Any, *, indent: int) -> str:
    import msgspec

    raw = msgspec.json.encode(document)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()


def columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Aligned text lines; the last column is not padded. Values are kept to one line."""
    cells = [[*header], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    return text or "-"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "none") -> None:
    """A titled table; an empty one says so instead of vanishing."""
    click.echo(f"{title} ({len(rows)})" if rows else f"{title}: {empty}")
    if rows:
        for line in columns(header, rows):
            click.echo(f"  {line}")
