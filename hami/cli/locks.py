"""`hami locks`."""

from collections.abc import Sequence
from typing import Any

import click

from hami.cli.output import print_json, print_table
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_store
from hami.cli.when import shown_span
from hami.events.lease import LockState


@click.command(cls=Verb)
@pass_session
def command(session: Session) -> None:
    """Show locks that are held or waited for: holder, time left unless renewed, and who waits, first in line first."""
    run_verb(_locks, session)


async def _locks(session: Session) -> None:
    async with open_store(session) as (store, _):
        held = sorted(await store.locks.held(), key=lambda each: each.lock)
    if session.json:
        print_json({"locks": [_as_json(each) for each in held]})
    else:
        print_table("locks", ("LOCK", "HOLDER", "TOKEN", "ENDS IN", "WAITING"), _rows(held))


def _as_json(state: LockState) -> dict[str, Any]:
    return {
        "lock": state.lock,
        "holder": state.holder or None,
        "token": state.token,
        "ttl_ms": state.ttl_ms if state.holder else None,
        "waiters": [*state.waiters],
    }


def _rows(held: Sequence[LockState]) -> list[tuple[object, ...]]:
    return [
        (
            each.lock,
            each.holder or "nobody",
            each.token,
            shown_span(each.ttl_ms) if each.holder else "",
            ", ".join(each.waiters) or "nobody",
        )
        for each in held
    ]
