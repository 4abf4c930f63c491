"""Two ways to show the demo: rich on a terminal, plain lines everywhere else (pipes, CI, logs)."""

import sys
from typing import TextIO

from rich.console import Console
from rich.table import Table

from hami.sim.demo.claims import Claim, Screen


class PlainScreen:
    """One line for one fact; tables as aligned columns."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    def chapter(self, title: str) -> None:
        self._line(f"\n== {title}")

    def say(self, text: str) -> None:
        self._line(f"   {text}")

    def table(self, columns: list[str], rows: list[list[str]]) -> None:
        widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
        for row in [columns, *rows]:
            self._line("   " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def claim(self, claim: Claim) -> None:
        took = f" ({claim.seconds:.2f} s)" if claim.seconds >= 0.01 else ""
        self._line(f"   [{'ok' if claim.held else 'FAILED'}] {claim.text}{took}: {claim.seen}")

    def working(self, text: str) -> None:
        """Plain output shows results only."""

    def close(self) -> None:
        """Nothing to put back."""


class RichScreen:
    """The same story with colour and a spinner for what is being waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._status.start()

    def chapter(self, title: str) -> None:
        self._console.print()
        self._console.rule(f"[bold]{title}", align="left")

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", style="dim", highlight=False, markup=False)

    def table(self, columns: list[str], rows: list[list[str]]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in columns:
            table.add_column(column, style="cyan" if column == columns[0] else None, overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def claim(self, claim: Claim) -> None:
        mark = "[bold green]✓[/]" if claim.held else "[bold red]✗[/]"
        took = f" [dim]{claim.seconds:.2f} s[/]" if claim.seconds >= 0.01 else ""
        self._console.print(f"  {mark} {claim.text}{took}", highlight=False)
        self._console.print(f"      {claim.seen}", style="dim", highlight=False, markup=False)
        self._status.update(" ")  # an empty text would leave the old one standing

    def working(self, text: str) -> None:
        self._status.update(f"[dim]{text} ...")

    def close(self) -> None:
        """The spinner hid the cursor."""
        self._status.stop()


def screen_for(out: TextIO = sys.stdout) -> Screen:
    """Rich where a person looks at a terminal, plain elsewhere."""
    return RichScreen(Console(file=out)) if out.isatty() else PlainScreen(out)
