"""The demo in the hands of somebody who has seen enough: nothing of it stays behind."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.cli.exits import Exit
from tests.support.cli import start_hami
from tests.support.waiting import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="hami-") as path:
        yield Path(path)


def processes_of(folder: Path) -> list[str]:
    """Command lines and environments of the demo's children name its folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder / "hami-demo-") in said:
            found.append(process.name)
    return found


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_demo_that_is_told_to_stop_leaves_nothing(folder: Path, how: signal.Signals) -> None:
    demo = start_hami(["demo"], {**os.environ, "TMPDIR": str(folder)})
    try:
        await wait_until(lambda: len(processes_of(folder)) >= 5, "a store, three agents and a scheduler", timeout=60)
        demo.send_signal(how)
        _, err = demo.communicate(timeout=40)
    finally:
        demo.kill()
        demo.communicate()
    assert (demo.returncode, err) == (Exit.INTERRUPTED, "")
    assert left_in(folder) == []
    await wait_until(lambda: not processes_of(folder), "the demo's processes ended")
