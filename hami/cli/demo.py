"""`hami demo`: the whole system on this machine, every claim checked."""

import os
import signal
from functools import partial
from typing import Final

import click

from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, pass_session

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Each of them takes down what the demo started, its folder included: a closed terminal must not leave a store behind."""


@click.command(cls=Verb)
@click.option("--serve", is_flag=True, help="Stay up afterwards, so that you can look around.")
@pass_session
def command(_session: Session, *, serve: bool) -> None:
    """Run the whole system on this machine and check what it promises.

    Real parts: the event store (Valkey), one agent for each of three nodes, schedulers. Simulated: GPUs and Kubernetes. Ends
    by itself in under a minute; the exit status is 0 only when every claim held.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before gRPC loads: it would comment on every child process
    from hami.sim.demo.claims import Claims
    from hami.sim.demo.screen import screen_for
    from hami.sim.demo.story import tell
    from hami.telemetry import configure_logging

    configure_logging(level="critical")
    screen = screen_for()
    claims = Claims(screen)
    try:
        run_verb(partial(tell, claims, serve=serve), stopping=ENDING)
        held = sum(claim.held for claim in claims.made)
        screen.chapter(f"{held} of {len(claims.made)} claims held")
    finally:
        screen.close()
    if not claims.all_held:
        raise SystemExit(1)
