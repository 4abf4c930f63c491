"""`hami audit pod|device|node NAME` and `hami audit verify`."""

from typing import TYPE_CHECKING

import anyio.to_thread
import click

from hami.cli.exits import NotFound, NotInitialised, Wrong
from hami.cli.known import Known, named
from hami.cli.output import print_json
from hami.cli.places import whole_story
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, archive_option, pass_session
from hami.cli.store import archive_folder, open_client, open_store
from hami.cli.words import as_json, for_people
from hami.domain.errors import InvalidInput
from hami.events.archive.history import first_of
from hami.events.log import Record
from hami.projections.folds.audit import About, Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from hami.events.archive.verify import Checked


@click.group()
def command() -> None:
    """Tell the story of a pod, a device or a node from the log, or check that the log is as it was written."""


@command.command("pod", cls=Verb)
@click.argument("name", metavar="NS/NAME|UID")
@archive_option
@pass_session
def pod(session: Session, name: str) -> None:
    """From admission to release: refusals, reservation, binding, delivery, locks.

    A name that several pods had over time tells of all of them.
    """
    run_verb(_audit, session, "pod", name, About(pod=named("pod", name)))


@command.command("device", cls=Verb)
@click.argument("uuid", metavar="UUID")
@archive_option
@pass_session
def device(session: Session, uuid: str) -> None:
    """Where it came from, faults, health and cordons with their evidence, and every reservation it was part of."""
    run_verb(_audit, session, "device", uuid, About(device=named("device", uuid)))


@command.command("node", cls=Verb)
@click.argument("name", metavar="NAME")
@archive_option
@pass_session
def node(session: Session, name: str) -> None:
    """Everything recorded of a node and of its lock."""
    run_verb(_audit, session, "node", name, About(node=named("node", name)))


async def _audit(session: Session, kind: str, name: str, about: About) -> None:
    story, known, begins = await _told(session, about, Known(kind))
    if not story:
        raise NotFound(f"the log knows no {kind} {name}; {known.nearby(name)}")
    if session.json:
        events = [as_json(record) for record in story]
        print_json({"kind": kind, "name": name, "history_begins_g": begins, "events": events})
        return
    click.echo(f"{kind} {name}: {len(story)} events")
    for record in story:
        click.echo(for_people(record))


async def _told(session: Session, about: About, known: Known) -> tuple[list[Record], Known, int]:
    timeline, story = Timeline(about), []
    async with open_store(session) as (store, _):
        begins = max(1, (await first_of(store.log)).g)
        async for record in whole_story(store.log):
            known.take(record)
            if timeline.take(record) is not None:
                story.append(record)
    return story, known, begins


@command.command("verify", cls=Verb)
@click.option("--offline", is_flag=True, help="Look at the archive only; no store is needed.")
@archive_option
@pass_session
def verify(session: Session, offline: bool) -> None:
    """Check archive and log: the counter without gaps, every producer's numbers and hash chain, the segments' hashes and order.

    Names the first thing that is wrong and ends with exit code 1; 0 says that nothing is.
    """
    run_verb(_verify, session, offline)


async def _verify(session: Session, offline: bool) -> None:
    folder = archive_folder(session)
    if offline and folder is None:
        raise InvalidInput("--archive", session.archive or "", "must name the folder to check when there is no store to ask")
    checked = await _checked(session, folder, offline=offline)
    if session.json:
        print_json(checked)
    if checked.wrong:
        raise Wrong(checked.wrong)
    if not session.json:
        found = f"{checked.entries} events of {checked.producers} producers, {checked.segments} segments"
        since = "" if checked.first_g <= 1 else f"; history begins at g:{checked.first_g}"
        click.echo(f"g:{checked.first_g} to g:{checked.last_g} is as it was written: {found}{since}")


async def _checked(session: Session, folder: "Path | None", *, offline: bool) -> "Checked":
    from hami.events.archive.folder import ArchiveFolder
    from hami.events.archive.verify import Checker, check_all, check_folder

    checker = Checker()
    archive = None if folder is None else ArchiveFolder(folder)
    # 1. The archive by itself.
    wrong, manifests = ("", []) if archive is None else await anyio.to_thread.run_sync(check_folder, archive, checker)
    if wrong or offline:
        return checker.result(wrong, segments=len(manifests))
    # 2. The log, and whether it is the archive's.
    from hami.events.redis.meta import read_meta
    from hami.events.redis.retention import RedisRetention
    from hami.events.redis.store import RedisStore

    async with open_client(session) as client:
        meta = await read_meta(client)
        if meta is None:
            raise NotInitialised
        log = RedisStore(client, incarnation=meta.incarnation).log
        retention = RedisRetention(client, incarnation=meta.incarnation)
        wrong = await check_all(log, retention, checker, archive, manifests, incarnation=meta.incarnation)
    return checker.result(wrong, segments=len(manifests))
