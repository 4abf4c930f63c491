"""What a store is: its incarnation and id, our function library, and whether it may be used at all."""

import hashlib
import os
import time
from collections.abc import Mapping
from importlib import resources
from typing import Final

import msgspec

from hami.domain.errors import StoreUnsafe
from hami.events.catalog.journal import IncarnationStarted
from hami.events.codec import seal
from hami.events.log import Draft
from hami.events.redis.client import Client, text
from hami.events.redis.keys import LIBRARY, META
from hami.events.redis.log import RedisLog

SCHEMA: Final = "1"
PRODUCER: Final = "hami-init"
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_OLDEST: Final = (7, 0)
_FULL: Final = 0.7
_SKEW_MS: Final = 2000


class StoreMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What `hami init` wrote. `created` is true for the call that did it."""

    incarnation: str
    store: str
    partitions: int = 1
    schema: str = SCHEMA
    created: bool = False


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """A store that may be used, and what its owner should know about it."""

    meta: StoreMeta
    server: str
    waitaof: bool
    warnings: tuple[str, ...] = ()


def ulid() -> str:
    """Sortable by time, unique without asking anybody."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))


def library_code() -> str:
    return resources.files("hami.events.redis").joinpath("functions", f"{LIBRARY}.lua").read_text("utf-8")


def library_digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


async def initialise(client: Client, *, replace_functions: bool = False) -> StoreMeta:
    """Make an empty store ours: functions, incarnation, first event. Safe to run again, and by several at once.

    Raises StoreUnsafe when a library of our name with other code is there, unless `replace_functions`.
    """
    await _load_functions(client, replace=replace_functions)
    wire, keys = client.command, client.keys
    created = bool(int(await wire.call("HSETNX", META, "incarnation", ulid())))
    await wire.pipeline(
        [
            ("HSETNX", META, "store", ulid()),
            ("HSETNX", META, "partitions", "1"),
            ("HSETNX", META, "schema", SCHEMA),
        ]
    )
    meta = await read_meta(client)
    if meta is None:
        raise StoreUnsafe("the store lost its incarnation while it was initialised")
    await wire.call("HSET", keys.heads, "incarnation", meta.incarnation)
    await _first_event(client, meta)
    return msgspec.structs.replace(meta, created=created)


async def start_incarnation(client: Client) -> StoreMeta:
    """Recovery: a new life begins in this store; every process that knew the old one must stop and look again."""
    before = await read_meta(client)
    await client.command.call("HSET", META, "incarnation", ulid())
    meta = await read_meta(client)
    if meta is None:
        raise StoreUnsafe("the store lost its incarnation while it was recovered")
    await client.command.call("HSET", client.keys.heads, "incarnation", meta.incarnation)
    epoch, _, _ = await RedisLog(client).last_of(PRODUCER)
    await _announce(client, meta, epoch=epoch + 1, previous=before.incarnation if before else "")
    return msgspec.structs.replace(meta, created=True)


async def read_meta(client: Client) -> StoreMeta | None:
    flat = await client.command.call("HGETALL", META)
    found = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
    if "incarnation" not in found:
        return None
    return StoreMeta(
        incarnation=found["incarnation"],
        store=found.get("store", ""),
        partitions=int(found.get("partitions", "1")),
        schema=found.get("schema", SCHEMA),
    )


async def _first_event(client: Client, meta: StoreMeta) -> None:
    """In epoch 1 always: whoever initialises at the same moment writes a duplicate."""
    if (await RedisLog(client).head()).g == 0:
        await _announce(client, meta, epoch=1)


async def _announce(client: Client, meta: StoreMeta, *, epoch: int, previous: str = "") -> None:
    log = RedisLog(client, incarnation=meta.incarnation)
    event = IncarnationStarted(incarnation=meta.incarnation, store=meta.store, previous=previous)
    envelope = seal(Draft(event=event), producer=PRODUCER, epoch=epoch, seq=1, occurred_ms=await log.now())
    await log.append([envelope], [()])


async def _load_functions(client: Client, *, replace: bool) -> None:
    code = library_code()
    present = await _present_library(client)
    if present == code:
        return
    if present is not None and not replace:
        raise StoreUnsafe(f"the store holds another library named {LIBRARY}: {_digests(present, code)}")
    await client.command.call("FUNCTION", "LOAD", *(("REPLACE",) if replace else ()), code)


def _digests(present: str, ours: str) -> str:
    return f"its code has sha256 {library_digest(present)[:12]}, ours {library_digest(ours)[:12]}"


async def _present_library(client: Client) -> str | None:
    reply = await client.command.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
    for library in reply:
        row = {text(library[i]): library[i + 1] for i in range(0, len(library), 2)}
        if text(row.get("library_name")) == LIBRARY:
            return text(row.get("library_code"))
    return None


async def startup_check(client: Client, *, local_ms: int) -> Startup:
    """Whether this store may be used. Raises StoreUnsafe with what to do; what is merely unwise comes back as warnings.

    `local_ms` is the caller's clock.
    """
    info = await _info(client)
    check_server(info)
    present = await _present_library(client)
    meta = await read_meta(client)
    if meta is None:
        raise StoreUnsafe("the store holds no incarnation (never initialised, or flushed): run `hami init`")
    if present is None:
        raise StoreUnsafe("the store lacks our functions: run `hami init`")
    if present != library_code():
        raise StoreUnsafe(f"the store holds another library named {LIBRARY}: {_digests(present, library_code())}")
    now = await RedisLog(client, incarnation=meta.incarnation).now()
    return Startup(
        meta=meta,
        server=f"{info.get('server_name', 'redis')} {_version(info)}",
        waitaof=_at_least(info.get("redis_version", "0.0"), (7, 2)),
        warnings=tuple(_warnings(info, abs(now - local_ms))),
    )


def check_server(info: Mapping[str, str]) -> None:
    """Whether a server that says this of itself (INFO) can be the store. Raises StoreUnsafe."""
    if not _at_least(_version(info), _OLDEST):
        raise StoreUnsafe(f"server {_version(info)} is too old: functions and ACLs need 7.0")
    if info.get("role", "master") not in {"master", "primary"}:
        raise StoreUnsafe(f"this is a replica of {info.get('master_host', '?')}: name the primary")
    policy = info.get("maxmemory_policy", "unknown")
    if policy != "noeviction":
        raise StoreUnsafe(f"maxmemory-policy is {policy}: eviction would drop whole streams; set it to noeviction")


def _version(info: Mapping[str, str]) -> str:
    return info.get("valkey_version") or info.get("redis_version", "0.0")


def _warnings(info: dict[str, str], skew_ms: int) -> list[str]:
    found = []
    if info.get("aof_enabled") != "1":
        found.append("the append-only file is off: a crash loses every event since the last snapshot")
    limit, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
    if limit and used > _FULL * limit:
        found.append(f"memory is {100 * used // limit} % full: appends will fail at 100 %")
    if skew_ms > _SKEW_MS:
        found.append(f"this machine's clock and the store's are {skew_ms} ms apart")
    return found


async def _info(client: Client) -> dict[str, str]:
    lines = text(await client.command.call("INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    major, minor, *_ = [*version.split("."), "0"]
    return (int(major), int(minor)) >= wanted
