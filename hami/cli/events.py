"""`hami events tail` and `hami events show`."""

from collections.abc import AsyncIterator

import click

from hami.cli.filters import EventFilter
from hami.cli.output import print_json, print_line
from hami.cli.places import find_record, start_for, until_head
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, archive_option, pass_session
from hami.cli.store import open_store
from hami.cli.when import parse_moment
from hami.cli.words import as_json, for_people
from hami.events.envelope import Position
from hami.events.log import Log, Record


@click.group()
def command() -> None:
    """Follow the log, or show one event."""


@command.command("tail", cls=Verb)
@click.option("--node", default="", metavar="NAME", help="Only events of this node.")
@click.option("--type", "types", multiple=True, metavar="PATTERN", help="Only these types, e.g. allocation.* (repeatable).")
@click.option("--subject", default="", metavar="ID", help="Only events about this pod uid or device uuid.")
@click.option("--pod", default="", metavar="NS/NAME|UID", help="Only events about this pod.")
@click.option("--since", default="now", show_default=True, metavar="TIME", help="Start here: RFC 3339, unix, -5m, g:123.")
@click.option("--follow/--no-follow", default=True, help="Wait for new events, or stop at the head of the log.")
@archive_option
@pass_session
def tail(session: Session, node: str, types: tuple[str, ...], subject: str, pod: str, since: str, follow: bool) -> None:
    """Print events as they are recorded, oldest first; with --output json one object a line."""
    wanted = EventFilter(node=node, types=types, subject=subject, pod=pod)
    run_verb(_tail, session, wanted, since, follow)


async def _tail(session: Session, wanted: EventFilter, since: str, follow: bool) -> None:
    async with open_store(session) as (store, _):
        after = await start_for(store.log, parse_moment(since, now=await store.log.now(), field="--since"))
        async for record in _forever(store.log, after) if follow else until_head(store.log, after):
            if wanted.wants(record):
                _print(session, record)


async def _forever(log: Log, after: Position) -> AsyncIterator[Record]:
    async for batch in log.tail(after):
        for record in batch:
            yield record


def _print(session: Session, record: Record) -> None:
    if session.json:
        print_line(as_json(record))
        return
    click.echo(for_people(record))


@command.command("show", cls=Verb)
@click.argument("event", metavar="ID")
@archive_option
@pass_session
def show(session: Session, event: str) -> None:
    """Print one event whole: its place in the log, its envelope and its data.

    ID is g:123, an event id (producer/epoch/seq), or a stream entry id (1700000000000-0).
    """
    run_verb(_show, session, event)


async def _show(session: Session, event: str) -> None:
    async with open_store(session) as (store, _):
        print_json(as_json(await find_record(store.log, event)))
