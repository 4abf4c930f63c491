"""`hami node show|doctor`: for a shell on the node itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hami.cli.agent import agent_settings
from hami.cli.exits import Exit, NotFound, NotInitialised
from hami.cli.output import print_json, print_table
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session
from hami.cli.store import open_store
from hami.domain.errors import HamiError

if TYPE_CHECKING:
    from hami.config import AgentSettings
    from hami.nodeagent.doctor import Finding
    from hami.nodeagent.state import AgentState


@click.group()
def command() -> None:
    """Look at this node: what its agent remembers, and what it lacks. Settings are read as `hami agent` reads them."""


@command.command("show", cls=Verb)
@pass_session
def show(session: Session) -> None:
    """Show what the agent of this node remembers: cards and their health, open faults, containers it has served."""
    from hami.nodeagent.state import read_state

    settings, _ = agent_settings(session, {})
    state = read_state(Path(settings.state_dir))
    if state is None:
        raise NotFound(f"no state in {settings.state_dir}: the agent has not run here, or its state_dir is another")
    if session.json:
        print_json(_as_json(state))
        return
    if state.lost:
        click.echo(f"{state.lost}; the cards are unknown until the control plane or an operator has told", err=True)
    rows = [
        (each.index, each.uuid, each.model, each.memory, each.slots, _health(state, each.uuid), _reason(state, each.uuid))
        for each in state.told
    ]
    print_table("cards", ("IDX", "DEVICE", "MODEL", "MEMORY MiB", "SLOTS", "HEALTH", "WHY"), rows)
    faults = [
        (card.uuid, fault.reason, fault.severity.name.lower(), fault.scope, fault.count, fault.boot_id)
        for card in state.cards.values()
        for fault in card.faults
    ]
    print_table("faults", ("DEVICE", "FAULT", "SEVERITY", "SCOPE", "COUNT", "BOOT"), faults)
    served = [(each.pod_uid, each.container, each.reservation, each.cache_dir) for each in state.served.values()]
    print_table("containers", ("POD UID", "CONTAINER", "RESERVATION", "CACHE"), served)


@command.command("doctor", cls=Verb)
@pass_session
@click.pass_context
def doctor(context: click.Context, session: Session) -> None:
    """Check what this node needs: devices, kubelet, library files, container toolkit, state and store.

    Changes nothing. Fails when something is missing without which pods get no devices or no limits.
    """
    settings, _ = agent_settings(session, {})
    findings: list[Finding] = []
    run_verb(_examine, session, settings, findings)
    if session.json:
        print_json({"node": settings.node_name or None, "findings": findings})
    else:
        rows = [(each.verdict, each.check, each.found, each.todo) for each in findings]
        print_table(f"node {settings.node_name or '(no name set)'}", ("", "CHECK", "FOUND", "TO DO"), rows)
    from hami.nodeagent.doctor import Verdict, worst

    if worst(findings) is Verdict.FAIL:
        context.exit(Exit.FAILED)


async def _examine(session: Session, settings: "AgentSettings", findings: "list[Finding]") -> None:
    from hami.nodeagent.doctor import Doctor
    from hami.nodeagent.process import backend_of

    backend = backend_of(settings)
    try:
        async with open_store(session) as (store, _):
            findings += await Doctor(settings, backend, store).examine()
    except HamiError as error:
        if findings:
            raise
        why = "not initialised" if isinstance(error, NotInitialised) else str(error)
        findings += await Doctor(settings, backend, None, no_store=f"{session.store_shown}: {why}").examine()


def _health(state: "AgentState", uuid: str) -> str:
    card = state.cards.get(uuid)
    return "healthy" if card is None else str(card.health)


def _reason(state: "AgentState", uuid: str) -> str:
    card = state.cards.get(uuid)
    return "" if card is None else card.reason


def _as_json(state: "AgentState") -> dict[str, Any]:
    return {
        "devices": [
            {
                "uuid": each.uuid,
                "index": each.index,
                "model": each.model,
                "memory_mib": each.memory,
                "slots": each.slots,
                "health": _health(state, each.uuid),
                "health_reason": _reason(state, each.uuid) or None,
            }
            for each in state.told
        ],
        "lost": state.lost or None,
        "cards": [card for card in state.cards.values() if card.faults or card.unreachable],
        "served": [*state.served.values()],
    }
