"""`hami audit pod|device|node NAME`."""

import click

from hami.cli.exits import NotFound
from hami.cli.known import Known, named
from hami.cli.output import print_json
from hami.cli.places import until_head
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_store
from hami.cli.words import as_json, for_people
from hami.events.envelope import START
from hami.events.log import Record
from hami.projections.folds.audit import About, Timeline


@click.group()
def command() -> None:
    """Tell the story of a pod, a device or a node from the log."""


@command.command("pod", cls=Verb)
@click.argument("name", metavar="NS/NAME|UID")
@pass_session
def pod(session: Session, name: str) -> None:
    """From admission to release: refusals, reservation, binding, delivery, locks.

    A name that several pods had over time tells of all of them.
    """
    run_verb(_audit, session, "pod", name, About(pod=named("pod", name)))


@command.command("device", cls=Verb)
@click.argument("uuid", metavar="UUID")
@pass_session
def device(session: Session, uuid: str) -> None:
    """Where it came from, faults, health and cordons with their evidence, and every reservation it was part of."""
    run_verb(_audit, session, "device", uuid, About(device=named("device", uuid)))


@command.command("node", cls=Verb)
@click.argument("name", metavar="NAME")
@pass_session
def node(session: Session, name: str) -> None:
    """Everything recorded of a node and of its lock."""
    run_verb(_audit, session, "node", name, About(node=named("node", name)))


async def _audit(session: Session, kind: str, name: str, about: About) -> None:
    story, known = await _told(session, about, Known(kind))
    if not story:
        raise NotFound(f"the log knows no {kind} {name}; {known.nearby(name)}")
    if session.json:
        print_json({"kind": kind, "name": name, "events": [as_json(record) for record in story]})
        return
    click.echo(f"{kind} {name}: {len(story)} events")
    for record in story:
        click.echo(for_people(record))


async def _told(session: Session, about: About, known: Known) -> tuple[list[Record], Known]:
    timeline, story = Timeline(about), []
    async with open_store(session) as (store, _):
        async for record in until_head(store.log, START):
            known.take(record)
            if timeline.take(record) is not None:
                story.append(record)
    return story, known
