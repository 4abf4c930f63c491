"""`hami explain pod|placement`: why a pod waits or where it went, and how a past decision came about."""

from typing import TYPE_CHECKING

import click

from hami.cli.exits import NotFound
from hami.cli.known import Known, named
from hami.cli.output import print_json, print_table
from hami.cli.places import whole_story
from hami.cli.podstory import PodStory
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, archive_option, pass_session
from hami.cli.store import open_store
from hami.cli.when import shown, shown_span
from hami.domain.allocation import Reservation
from hami.domain.errors import InvalidInput
from hami.events.store import Store
from hami.projections.folds.cluster import snapshot
from hami.projections.timetravel import state_at

if TYPE_CHECKING:
    from hami.cli.explained import Explained
    from hami.scheduler.decide.retrace import Retraced

MOST_NODES = 20
"""Candidates that people see; programs get all of them."""


@click.group()
def command() -> None:
    """Say why: from the log alone, nothing is asked of Kubernetes."""


@command.command("pod", cls=Verb)
@click.argument("name", metavar="NS/NAME|UID")
@archive_option
@pass_session
def pod(session: Session, name: str) -> None:
    """Why a pod is pending, with numbers and what would have to change; or where it went.

    A pending pod is judged anew against the cluster as the log has it now. Of several pods of one name the newest counts.
    """
    run_verb(_pod, session, named("pod", name))


@command.command("placement", cls=Verb)
@click.argument("name", metavar="RESERVATION|NS/NAME|UID")
@archive_option
@pass_session
def placement(session: Session, name: str) -> None:
    """Take a past decision again: every node's score or reason, and whether it would be decided the same.

    The state is rebuilt at the place in the log right before the reservation, under the policy and device configuration that
    it was made with. For a pod its newest reservation counts.
    """
    run_verb(_placement, session, named("reservation", name))


async def _pod(session: Session, name: str) -> None:
    from hami.cli.explained import explained

    async with open_store(session) as (store, incarnation):
        story = await _story(store, "pod", name)
        state = await state_at(store.log, store.checkpoints, incarnation=incarnation)
        found = explained(story, snapshot(state), await store.locks.held())
    if session.json:
        print_json(found.document())
    else:
        _print_pod(found)


async def _story(store: Store, kind: str, name: str) -> PodStory:
    story, known = PodStory(name), Known("pod")
    async for record in whole_story(store.log):
        known.take(record)
        story.take(record)
    if not story.uid:
        raise NotFound(f"the log knows no {kind} {name}; {known.nearby(name)}")
    return story


def _print_pod(found: "Explained") -> None:
    click.echo(f"pod {found.key} ({found.uid}): {found.status}")
    for label, value in (("asks for", found.asked), ("node", found.node), ("refused", found.refused)):
        if value:
            click.echo(f"  {label}: {value}")
    for line in found.notes:
        click.echo(f"  {line}")
    if found.shortages:
        rows = [(each.reason, each.nodes, each.asked, each.best, each.change) for each in found.shortages]
        print_table("why no node fits", ("REASON", "NODES", "ASKED", "BEST THERE IS", "WHAT WOULD HELP"), rows)
    if found.quotas:
        lines = [
            (each.quota, each.what, each.asked, each.used, each.limit, "exceeded" if each.exceeded else "")
            for each in found.quotas
        ]
        print_table("quotas of the namespace", ("QUOTA", "OF", "ASKED", "USED", "LIMIT", ""), lines)
    if found.locks:
        print_table(
            "locks",
            ("LOCK", "HOLDER", "HELD FOR", "THIS POD"),
            [(each.lock, each.holder or "nobody", shown_span(each.age_ms), found.part_in(each)) for each in found.locks],
        )


async def _placement(session: Session, name: str) -> None:
    from hami.scheduler.decide.retrace import asked_then, retrace, rules_of

    async with open_store(session) as (store, incarnation):
        story = await _story(store, "pod or reservation", name)
        made, at = story.reservation, story.reserved_at
        if made is None or at is None:
            raise NotFound(f"{name} never had a reservation; `hami explain pod` tells why")
        if story.requested is None:
            raise InvalidInput("placement", name, "this reservation was adopted: no request of it is in the log")
        settings = story.policies.get(made.policy_version)
        if settings is None:
            raise InvalidInput("policy", made.policy_version, "the log does not hold this policy; an archive may")
        vendors, defaults = rules_of(settings)
        state = await state_at(store.log, store.checkpoints, incarnation=incarnation, g=at.g - 1)
        found = retrace(snapshot(state), vendors, defaults, asked_then(story.requested), made)
    if session.json:
        print_json(_placement_json(made, at.g, int(at.recorded_ms), found))
    else:
        _print_placement(made, at.g, int(at.recorded_ms), found)


def _print_placement(made: Reservation, g: int, recorded_ms: int, found: "Retraced") -> None:
    click.echo(f"reservation {made.id} of {made.owner.namespace}/{made.owner.name}, g:{g}, {shown(recorded_ms)}")
    click.echo(f"  on {made.node}, score {made.score:.4f}, policy {made.policy_version}, by {made.scheduler}")
    click.echo(f"  decided again: {found.verdict}")
    rows = [
        (each.node, "-" if each.score is None else f"{each.score:.4f}", each.reason, "chosen" if each.node == made.node else "")
        for each in found.candidates
    ]
    shown_rows = rows[:MOST_NODES] + [row for row in rows[MOST_NODES:] if row[3]]
    print_table("nodes", ("NODE", "SCORE", "REASON", ""), shown_rows)
    if len(rows) > len(shown_rows):
        click.echo(f"  ... and {len(rows) - len(shown_rows)} more; `-o json` shows all")


def _placement_json(made: Reservation, g: int, recorded_ms: int, found: "Retraced") -> dict[str, object]:
    return {
        "reservation": made.id,
        "pod": {"uid": made.owner.uid, "namespace": made.owner.namespace, "name": made.owner.name},
        "g": g,
        "recorded_at": shown(recorded_ms),
        "node": made.node,
        "score": made.score,
        "policy_version": made.policy_version,
        "scheduler": made.scheduler,
        "same_node": found.same_node,
        "same_cards": found.same_cards,
        "verdict": found.verdict,
        "winner_of_all_nodes": found.winner or None,
        "candidates": [{"node": each.node, "score": each.score, "reason": each.reason or None} for each in found.candidates],
    }
