"""Child processes of the demo: real `hami` commands with a log each, ended with the demo whatever happens to it."""

import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hami.domain.errors import HamiError
from hami.events.redis.embedded import on_a_leash


class ProcessEnded(HamiError):  # noqa: N818 - reads as a sentence where it is raised
    """A process that should be running has ended."""


class HamiProcess:
    """`hami <arguments>` as a process of its own; its output goes to `<folder>/<name>.log`."""

    def __init__(self, name: str, arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._command = [sys.executable, "-m", "hami.cli", *arguments]
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                on_a_leash(self._command),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C is for us, who end it in order; the terminal would send it to both
            )

    def kill(self) -> None:
        """SIGKILL: no chance to say goodbye."""
        self._end(signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Several may end at the same time; `stop` then waits."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def check(self) -> None:
        """Raises ProcessEnded with its last words."""
        if not self.running:
            raise ProcessEnded(f"{self.name} has ended: {self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-800:].strip() if self.log.exists() else "(nothing said)"

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
