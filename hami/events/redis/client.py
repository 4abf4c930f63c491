"""Connections to one store: three pools with the time limits that their use needs, no hidden retries, our own errors.

redis-py's defaults hide an outage for a minute and send a write twice when its answer was lost. Here every command is sent
once; whoever may repeat a write (because it is idempotent) does so knowingly.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import anyio
from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from hami.config import without_password
from hami.domain.errors import InvalidInput, StoreRefuses, StoreUnavailable, StoreUnsafe
from hami.events.redis.keys import Keys

Arg = str | bytes | int | float

MARGIN_S: Final = 1.0
"""How much later than the server's own BLOCK a blocking read gives up: the server answers in time or is stuck."""

_BROKEN: Final = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)

_UNSAFE_PREFIXES: Final = ("WRONGTYPE", "ERR Function not found", "Function not found", "NOPERM")


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """redis-py's errors become ours: the outcome is unknown or the store is away, or the store must not be used."""
    try:
        yield
    except redis_errors.NoPermissionError as error:
        raise StoreUnsafe(f"{doing}: this Redis user may not do that: {error}") from error
    except _BROKEN as error:
        raise StoreUnavailable(f"{doing}: {error}") from error
    except redis_errors.ResponseError as error:
        text = str(error)
        if "Function not found" in text:
            raise StoreUnsafe(f"{doing}: the store lacks our functions: run `hami init`") from error
        if text.startswith(_UNSAFE_PREFIXES):
            raise StoreUnsafe(f"{doing}: {text}") from error
        raise StoreRefuses(f"{doing}: {text}") from error
    except redis_errors.RedisError as error:
        raise StoreUnavailable(f"{doing}: {error}") from error


class Wire:
    """One pool. Commands go out as given and come back as the server said it, in bytes: replay is twice as fast that way."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def call(self, *command: Arg) -> Any:
        """One command, sent once. Raises StoreUnavailable, StoreUnsafe."""
        with translated(str(command[0])):
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]  # a decorator there is untyped
            try:
                await connection.send_packed_command(_packed(command), check_health=False)
                return await connection.read_response(disable_decoding=True)
            except _BROKEN:
                await self._forget_idle()
                raise
            finally:
                await self._pool.release(connection)

    async def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Many commands in one round trip, not atomic. The first error is raised after all answers were read."""
        if not commands:
            return []
        with translated(f"{commands[0][0]!s} x {len(commands)}"):
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]  # a decorator there is untyped
            try:
                packed = b"".join([_packed(command) for command in commands])
                await connection.send_packed_command(packed, check_health=False)
                answers: list[Any] = []
                failed: redis_errors.ResponseError | None = None
                for _ in commands:
                    try:
                        answers.append(await connection.read_response(disable_decoding=True))
                    except redis_errors.ResponseError as error:
                        failed = failed or error
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, _BROKEN):
                    await self._forget_idle()
                raise
            finally:
                await self._pool.release(connection)
            if failed is not None:
                raise failed
            return answers

    async def _forget_idle(self) -> None:
        """A server that went away took the idle connections with it: the next command must not find out by failing."""
        await self._pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        with anyio.move_on_after(2, shield=True):
            await self._pool.disconnect(inuse_connections=True)


class Client:
    """The three ways to speak to one store.

    `command`: short calls. `blocking`: reads that wait on the server, one connection each. `bulk`: replay and large values,
    which may take longer than a command should.
    """

    def __init__(
        self,
        url: str,
        *,
        partition: str = "p0",
        command_timeout_s: float = 2.0,
        block_s: float = 2.0,
        connect_timeout_s: float = 2.0,
        setting: str = "redis.url",
    ) -> None:
        """`setting` names where the URL came from. Raises InvalidInput when it is none."""
        self.url, self.block_s = url, block_s
        self.keys = Keys(partition)
        try:
            self.command = Wire(_pool(url, connect_timeout_s, command_timeout_s, limit=64))
            self.blocking = Wire(_pool(url, connect_timeout_s, block_s + MARGIN_S))
            self.bulk = Wire(_pool(url, connect_timeout_s, max(30.0, command_timeout_s)))
        except ValueError as error:
            raise InvalidInput(setting, without_password(url), str(error)) from error

    async def fcall(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        return await self.command.call("FCALL", function, len(keys), *keys, *args)

    async def close(self) -> None:
        for wire in (self.command, self.blocking, self.bulk):
            await wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _packed(command: tuple[Arg, ...]) -> bytes:
    """In C: redis-py's own packing of a pipeline costs more than the server's work on it."""
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub asks for a tuple of one
    return packed


def _pool(url: str, connect_timeout_s: float, timeout_s: float, limit: int | None = None) -> ConnectionPool:
    settings: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
        "driver_info": None,
        "client_name": "hami",
    }
    if limit is None:
        return ConnectionPool.from_url(url, **settings)
    return BlockingConnectionPool.from_url(url, max_connections=limit, timeout=timeout_s, **settings)


def text(value: bytes | str | int | None) -> str:
    """A reply as text; the empty string for nil."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return "" if value is None else str(value)
