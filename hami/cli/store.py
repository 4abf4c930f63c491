"""The event store as verbs open it: settings in, a store that may be used out.

The Redis client is imported here, at the moment of opening, so that `hami VERB --help` does not pay for it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hami.cli.exits import NotInitialised
from hami.cli.session import Session
from hami.config import ArchiveSettings, RedisSettings
from hami.domain.errors import InvalidInput
from hami.events.store import Store

if TYPE_CHECKING:
    from hami.events.redis.client import Client


def client_for(settings: RedisSettings) -> "Client":
    """A client with the time limits of the settings. Nothing is connected yet."""
    from hami.events.redis.client import Client

    return Client(
        settings.url,
        partition=settings.partition,
        command_timeout_s=settings.command_timeout_s,
        block_s=settings.block_s,
        connect_timeout_s=settings.connect_timeout_s,
    )


@asynccontextmanager
async def open_client(session: Session) -> AsyncIterator["Client"]:
    """The bare connection, for `hami init` and for what the Store protocol does not offer."""
    async with client_for(session.redis()) as client:
        yield client


@asynccontextmanager
async def open_store(session: Session) -> AsyncIterator[tuple[Store, str]]:
    """The store and its incarnation, for reading; its log begins in the archive where one is given.

    Raises StoreUnavailable, NotInitialised, ArchiveBroken.
    """
    from hami.events.archive.history import with_history
    from hami.events.redis.meta import read_meta
    from hami.events.redis.store import RedisStore

    async with open_client(session) as client:
        meta = await read_meta(client)
        if meta is None:
            raise NotInitialised
        store: Store = RedisStore(client, incarnation=meta.incarnation)
        folder = archive_folder(session)
        if folder is not None:
            store = await with_history(store, folder, incarnation=meta.incarnation)
        yield store, meta.incarnation


def archive_folder(session: Session) -> Path | None:
    """The one named on the command line must exist; that of the settings may be another machine's."""
    settings, _ = session.settings(ArchiveSettings, "archive")
    if not settings.dir:
        return None
    folder = Path(settings.dir)
    if folder.is_dir():
        return folder
    if session.archive:
        raise InvalidInput("--archive", session.archive, "is no folder")
    return None
