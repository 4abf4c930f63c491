"""`hami audit pod|device|node NAME`."""

from collections.abc import Iterable
from difflib import get_close_matches

import anyio
import click

from hami.cli.exits import NotFound
from hami.cli.output import print_json
from hami.cli.places import until_head
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_store
from hami.cli.story import DeviceStory, Line, NodeStory, PodStory, Teller
from hami.cli.words import as_json, for_people
from hami.events.envelope import START


@click.group()
def command() -> None:
    """Tell the story of a pod, a device or a node from the log."""


@command.command("pod", cls=Verb)
@click.argument("name", metavar="NS/NAME|UID")
@pass_session
def pod(session: Session, name: str) -> None:
    """From admission to release: refusals, reservation, binding, delivery, and what befell its devices meanwhile.

    A bare name stands for the namespace `default`. A name that several pods had over time tells of all of them.
    """
    anyio.run(_audit_pod, session, name)


@command.command("device", cls=Verb)
@click.argument("uuid", metavar="UUID")
@pass_session
def device(session: Session, uuid: str) -> None:
    """Registrations that said something new, faults, health and cordons with their evidence, and every tenant."""
    anyio.run(_audit, session, "device", uuid, DeviceStory(uuid))


@command.command("node", cls=Verb)
@click.argument("name", metavar="NAME")
@pass_session
def node(session: Session, name: str) -> None:
    """Everything recorded of a node and of its lock."""
    anyio.run(_audit, session, "node", name, NodeStory(name))


async def _audit_pod(session: Session, name: str) -> None:
    story = PodStory(name)
    lines = await _told(session, story)
    if not lines and f"default/{name}" in story.known:
        lines = await _told(session, PodStory(f"default/{name}"))
    _print(session, "pod", name, lines, story.known)


async def _audit(session: Session, kind: str, name: str, story: Teller) -> None:
    _print(session, kind, name, await _told(session, story), story.known)


async def _told(session: Session, story: Teller) -> list[Line]:
    async with open_store(session) as (store, _):
        return [line async for record in until_head(store.log, START) if (line := story.take(record))]


def _print(session: Session, kind: str, name: str, lines: list[Line], known: Iterable[str]) -> None:
    if not lines:
        raise NotFound(f"the log knows no {kind} {name}; {_nearby(name, list(known))}")
    if session.json:
        events = [{**as_json(line.record), "pod": line.who or None} for line in lines]
        print_json({"kind": kind, "name": name, "events": events})
        return
    click.echo(f"{kind} {name}: {len(lines)} events")
    for line in lines:
        click.echo(for_people(line.record, line.who))


def _nearby(name: str, known: list[str]) -> str:
    """What exists: names like the one asked for, else the newest few."""
    if not known:
        return "it knows none at all"
    alike = get_close_matches(name, known, n=5, cutoff=0.5) or [each for each in known if name in each][:5]
    return "similar: " + ", ".join(alike) if alike else "among others: " + ", ".join(known[-5:])
