"""`hami locks`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from hami.cli.output import print_json, print_table
from hami.cli.places import since, until_head
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_store
from hami.cli.when import shown, shown_span
from hami.domain.units import EpochMs
from hami.events.catalog.governance import LockRefused, LockWaitTimedOut
from hami.events.lease import LockState
from hami.events.log import Record
from hami.events.store import Store
from hami.projections.folds.words import words_of

LOOK_BACK_MS: Final = 3_600_000
"""How far back refusals are looked for: a long log is not read as a whole for one column."""


@click.command(cls=Verb)
@pass_session
def command(session: Session) -> None:
    """Show locks that are held, waited for, or were refused within the last hour.

    Holder, since when, time left unless renewed, who waits (first in line first), and the last refusal: a wait that was
    given up, or a write under a lock that was lost.
    """
    run_verb(_locks, session)


async def _locks(session: Session) -> None:
    async with open_store(session) as (store, _):
        refusals = await last_refusals(store)
        held = {each.lock: each for each in await store.locks.held()}
    rows = [held.get(name, LockState(name, "", 0, 0)) for name in sorted({*held, *refusals})]
    if session.json:
        print_json({"locks": [_as_json(each, refusals) for each in rows]})
    else:
        titles = ("LOCK", "HOLDER", "HELD FOR", "TOKEN", "ENDS IN", "WAITING", "LAST REFUSAL")
        print_table("locks", titles, _rows(rows, refusals))


async def last_refusals(store: Store) -> dict[str, Record]:
    """The newest refusal of each lock within the look-back."""
    begin = await since(store.log, EpochMs(await store.log.now() - LOOK_BACK_MS))
    found: dict[str, Record] = {}
    async for record in until_head(store.log, begin):
        if isinstance(record.event, LockWaitTimedOut | LockRefused):
            found[record.event.lock] = record
    return found


def refusal_words(record: Record) -> str:
    return f"{shown(record.position.recorded_ms)} {words_of(record.event)}"


def _as_json(state: LockState, refusals: Mapping[str, Record]) -> dict[str, Any]:
    refused = refusals.get(state.lock)
    return {
        "lock": state.lock,
        "holder": state.holder or None,
        "age_ms": state.age_ms if state.holder else None,
        "token": state.token or None,
        "ttl_ms": state.ttl_ms if state.holder else None,
        "waiters": [*state.waiters],
        "last_refusal": None if refused is None else _refusal(refused),
    }


def _refusal(record: Record) -> dict[str, str]:
    return {"at": shown(record.position.recorded_ms), "why": words_of(record.event)}


def _rows(held: Sequence[LockState], refusals: Mapping[str, Record]) -> list[tuple[object, ...]]:
    return [
        (
            each.lock,
            each.holder or "nobody",
            shown_span(each.age_ms) if each.holder else "",
            each.token or "",
            shown_span(each.ttl_ms) if each.holder else "",
            ", ".join(each.waiters) or "nobody",
            refusal_words(refusals[each.lock]) if each.lock in refusals else "",
        )
        for each in held
    ]
