"""The `hami` command in tests: inside this process for speed, as a process of its own where that is the point."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hami.cli.exits import Exit
from hami.cli.main import run

ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    code: Exit
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Hami:
    """Calls verbs against one store and hands back what they answered. For tests without an event loop of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str) -> None:
        self._capsys, self._url = capsys, url

    def __call__(self, *arguments: str) -> Ran:
        self._capsys.readouterr()
        code = run(["--redis-url", self._url, *arguments])
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)


def start_hami(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """`hami` as a process, pipes open. The caller waits for it or kills it."""
    return subprocess.Popen(
        [sys.executable, "-m", "hami.cli.main", *arguments],
        cwd=ROOT,
        env=env and dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
