"""`hami device cordon|uncordon|clear UUID`: an operator's word about one device, on record with a name and a reason."""

from typing import TYPE_CHECKING

import click

from hami.cli.exits import NotFound
from hami.cli.known import named
from hami.cli.output import print_json
from hami.cli.past import snapshot_at
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_store
from hami.cli.when import parse_moment
from hami.domain.cluster import ClusterSnapshot
from hami.domain.device import DeviceState
from hami.domain.errors import Fenced, InvalidInput
from hami.events.catalog.device import DeviceClearRequested, DeviceCordoned, DeviceUncordoned
from hami.events.log import Draft, Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from hami.events.envelope import Position

PRODUCER = "operator"
"""All operators write under one name; the event says who it was."""

TRIES = 5
NEARBY = 5

Wish = DeviceCordoned | DeviceUncordoned | DeviceClearRequested


def _common(function: "Callable[..., None]") -> "Callable[..., None]":
    for option in (
        click.option("--node", default="", metavar="NAME", help="Where several nodes know the device: this one."),
        click.option("--actor", envvar="USER", default="operator", show_default="$USER", help="Who says so."),
        click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the log for ever."),
        click.argument("uuid", metavar="UUID"),
    ):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Take a device out of use, give it back, or declare it good after a fault."""


@command.command("cordon", cls=Verb)
@_common
@pass_session
def cordon(session: Session, uuid: str, reason: str, actor: str, node: str) -> None:
    """No new pod on this device; running ones stay. Doing it twice changes nothing."""
    run_verb(_say, session, DeviceCordoned(device=named("device", uuid), actor=_named(actor), reason=_said(reason)), node)


@command.command("uncordon", cls=Verb)
@_common
@pass_session
def uncordon(session: Session, uuid: str, reason: str, actor: str, node: str) -> None:
    """Give a cordoned device back, whoever cordoned it. Its health is another matter: see `clear`."""
    run_verb(_say, session, DeviceUncordoned(device=named("device", uuid), actor=_named(actor), reason=_said(reason)), node)


@command.command("clear", cls=Verb)
@_common
@pass_session
def clear(session: Session, uuid: str, reason: str, actor: str, node: str) -> None:
    """Declare a device good: its agent forgets the faults it holds against it and says so.

    The answer comes from the node; watch it with `hami audit device UUID`. A fault that still holds is found again.
    """
    run_verb(_say, session, DeviceClearRequested(device=named("device", uuid), actor=_named(actor), reason=_said(reason)), node)


async def _say(session: Session, wish: Wish, only: str) -> None:
    """1 which node has it, 2 is there anything to do, 3 write, 4 say where it stands in the log."""
    async with open_store(session) as (store, incarnation):
        moment = parse_moment("now", now=await store.log.now())
        _, snapshot = await snapshot_at(store, incarnation, moment)
        node, state = _whose(snapshot, wish.device, only)
        needed = not isinstance(wish, DeviceCordoned | DeviceUncordoned) or state.cordoned is isinstance(wish, DeviceUncordoned)
        place = await _write(store.log, Draft(event=wish, node=node, subject=wish.device)) if needed else None
    if session.json:
        print_json({"device": wish.device, "node": node, "type": wish.TYPE, "g": place.g if place else None})
    elif place is None:
        click.echo(f"{wish.device} on {node}: already so, nothing written")
    else:
        click.echo(f"{wish.device} on {node}: {wish.TYPE} written as g:{place.g}")


def _whose(snapshot: ClusterSnapshot, uuid: str, only: str) -> tuple[str, DeviceState]:
    found = [
        (node.name, state)
        for node in snapshot.nodes.values()
        for state in node.devices
        if state.device.uuid == uuid and only in {"", node.name}
    ]
    if not found:
        known = sorted(state.device.uuid for node in snapshot.nodes.values() for state in node.devices)
        near = [each for each in known if uuid[:8] in each][:NEARBY] or known[:NEARBY]
        where = f" on {only}" if only else ""
        raise NotFound(f"no device {uuid} is registered{where}; there are: {', '.join(near) or 'none'}")
    if len(found) > 1:
        raise InvalidInput("--node", "", f"several nodes have {uuid}: {', '.join(sorted(name for name, _ in found))}")
    return found[0]


async def _write(log: Log, draft: Draft) -> "Position":
    """Two operators at once fence each other: whoever lost tries again in a newer epoch."""
    from hami.events.writer import EventWriter

    tries = TRIES
    while True:
        writer = EventWriter(log, PRODUCER)
        await writer.start()
        tries -= 1
        try:
            return (await writer.append([draft])).positions[0]
        except Fenced:
            if not tries:
                raise


def _named(actor: str) -> str:
    if not actor.strip():
        raise InvalidInput("--actor", actor, "the log must say who it was")
    return actor.strip()


def _said(reason: str) -> str:
    if not reason.strip():
        raise InvalidInput("--reason", reason, "the log must say why")
    return reason.strip()
