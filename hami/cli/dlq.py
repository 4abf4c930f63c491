"""`hami dlq list|replay`."""

import re
from typing import TYPE_CHECKING

import click

from hami.cli.exits import NotFound
from hami.cli.output import print_json, print_table
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_client
from hami.cli.when import shown
from hami.domain.errors import InvalidInput
from hami.events.codec import decode_envelope

if TYPE_CHECKING:
    from hami.events.redis.dead import DeadLetter


@click.group()
def command() -> None:
    """Look at inbox entries that could not enter the log, and try them again."""


@command.command("list", cls=Verb)
@pass_session
def show(session: Session) -> None:
    """List dead letters, oldest first: which node sent them, what they are, and why they were refused."""
    run_verb(_list, session)


async def _list(session: Session) -> None:
    from hami.events.redis.dead import dead_letters

    async with open_client(session) as client:
        letters = await dead_letters(client)
    if session.json:
        rows = [
            {"id": each.id, "buried_at": shown(each.buried_ms), "node": each.node, "type": _type(each), "why": each.why}
            for each in letters
        ]
        print_json({"dead_letters": rows})
        return
    table = [(each.id, shown(each.buried_ms), each.node, _type(each) or "unreadable", each.why) for each in letters]
    print_table("dead letters", ("ID", "BURIED AT", "NODE", "TYPE", "WHY"), table)


def _type(letter: "DeadLetter") -> str | None:
    try:
        return decode_envelope(letter.raw).type
    except InvalidInput:
        return None


@command.command("replay", cls=Verb)
@click.argument("letter", metavar="ID")
@pass_session
def again(session: Session, letter: str) -> None:
    """Put one dead letter back into its node's inbox, for instance after an upgrade that can read it.

    One that still cannot enter the log comes back here.
    """
    if not re.fullmatch(r"\d+-\d+", letter):
        raise InvalidInput("ID", letter, "use an id from `hami dlq list`")
    run_verb(_replay, session, letter)


async def _replay(session: Session, identity: str) -> None:
    from hami.events.redis.dead import dead_letters, replay

    async with open_client(session) as client:
        found = await dead_letters(client, only=identity)
        if not found:
            known = [each.id for each in await dead_letters(client)]
            raise NotFound(f"no dead letter {identity}; there are: {', '.join(known[-5:]) or 'none'}")
        await replay(client, found[0])
    click.echo(f"{identity} is back in the inbox of {found[0].node}")
