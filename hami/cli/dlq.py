"""`hami dlq list|replay`: what the ingester or a consumer gave up."""

import re
from typing import TYPE_CHECKING

import click

from hami.alerts.decide.wire import decode_notice
from hami.cli.exits import NotFound
from hami.cli.output import print_json, print_table
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_client
from hami.cli.when import shown
from hami.domain.errors import InvalidInput
from hami.events.codec import decode_envelope

if TYPE_CHECKING:
    from hami.events.group import DeadLetter


@click.group()
def command() -> None:
    """Look at inbox entries that could not enter the log and notices that nobody would take, and try them again."""


@command.command("list", cls=Verb)
@pass_session
def show(session: Session) -> None:
    """List dead letters, oldest first: whose they are, what they are about, and why they were refused.

    Group `ingest` holds what agents sent; other groups hold what a consumer could not deliver, and TO says to whom.
    """
    run_verb(_list, session)


async def _list(session: Session) -> None:
    from hami.events.redis.dead import dead_letters

    async with open_client(session) as client:
        letters = await dead_letters(client)
    if session.json:
        rows = [
            {
                "id": each.id,
                "buried_at": shown(each.buried_ms),
                "group": each.group,
                "node": each.node,
                "type": _type(each),
                "to": each.to,
                "why": each.why,
            }
            for each in letters
        ]
        print_json({"dead_letters": rows})
        return
    table = [
        (each.id, shown(each.buried_ms), each.group, each.node, _type(each) or "unreadable", each.to, each.why)
        for each in letters
    ]
    print_table("dead letters", ("ID", "BURIED AT", "GROUP", "NODE", "TYPE", "TO", "WHY"), table)


def _type(letter: "DeadLetter") -> str | None:
    """What an agent sent, or the alert that was to be delivered."""
    try:
        return decode_envelope(letter.raw).type if not letter.to else decode_notice(letter.raw).alert.value
    except InvalidInput:
        return None


@command.command("replay", cls=Verb)
@click.argument("letter", metavar="ID")
@click.option("--group", default="", metavar="NAME", help="Whose dead letter it is, should two have the same id.")
@pass_session
def again(session: Session, letter: str, group: str) -> None:
    """Have one dead letter tried again, for instance after an upgrade that can read it.

    What an agent sent goes back into its node's inbox, a notice to the sink that refused it. One that is refused again comes
    back here.
    """
    if not re.fullmatch(r"\d+-\d+", letter):
        raise InvalidInput("ID", letter, "use an id from `hami dlq list`")
    run_verb(_replay, session, letter, group)


async def _replay(session: Session, identity: str, group: str) -> None:
    from hami.events.redis.dead import dead_letters, replay

    async with open_client(session) as client:
        found = await dead_letters(client, only=identity, group=group)
        if not found:
            known = [each.id for each in await dead_letters(client)]
            raise NotFound(f"no dead letter {identity}; there are: {', '.join(known[-5:]) or 'none'}")
        if len(found) > 1:
            raise InvalidInput("ID", identity, f"name one with --group: {', '.join(each.group for each in found)}")
        where = await replay(client, found[0])
    click.echo(f"{identity} is back {where}")
