"""`hami init`."""

import time

import click

from hami.cli.output import print_json
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_client


@click.command(cls=Verb)
@click.option("--replace-functions", is_flag=True, help="Replace server functions of our name that hold other code (upgrade).")
@pass_session
def command(session: Session, replace_functions: bool) -> None:
    """Prepare the event store: load the server functions, write its identity, check that it may be used.

    Safe to run again, and by several at once. A store that already has an identity keeps it.
    """
    run_verb(_init, session, replace_functions)


async def _init(session: Session, replace_functions: bool) -> None:
    from hami.events.redis.meta import initialise, startup_check

    async with open_client(session) as client:
        meta = await initialise(client, replace_functions=replace_functions)
        checked = await startup_check(client, local_ms=time.time_ns() // 1_000_000)
    if session.json:
        print_json(
            {
                "store": meta.store,
                "incarnation": meta.incarnation,
                "created": meta.created,
                "schema": meta.schema,
                "partitions": meta.partitions,
                "server": checked.server,
                "waitaof": checked.waitaof,
                "warnings": [*checked.warnings],
            }
        )
        return
    click.echo(f"store {meta.store} at {session.store_shown} ({checked.server})")
    click.echo("functions loaded, " + ("identity written" if meta.created else "identity kept") + f": {meta.incarnation}")
    for warning in checked.warnings:
        click.echo(f"warning: {warning}")
