"""The `hami` command: the table of verbs, and what happens when one of them fails.

A new verb is a module with a click command named `command`, and one line in VERBS.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from hami.cli.exits import Exit, explain, innermost
from hami.cli.lazy import Entry, LazyGroup
from hami.cli.session import Session, common_options, session_of
from hami.domain.errors import HamiError

VERBS: Final[dict[str, Entry]] = {
    "init": Entry("hami.cli.init", "Prepare the event store: server functions and identity."),
    "scheduler": Entry("hami.cli.scheduler", "Run the scheduler: extender, webhook and the loops beside them."),
    "agent": Entry("hami.cli.agent", "Run the agent of one node: device plugin, health, registration."),
    "alerts": Entry("hami.cli.alerts", "Tell Alertmanager, a webhook or a log what is wrong."),
    "archive": Entry("hami.cli.archive", "Seal the log on disk and trim what nobody needs in the store."),
    "state": Entry("hami.cli.state", "Show nodes, devices, allocations and quotas, now or in the past."),
    "device": Entry("hami.cli.device", "Cordon or uncordon a device, or declare it good after a fault."),
    "node": Entry("hami.cli.node", "Look at this node: what its agent remembers, and what it lacks."),
    "audit": Entry("hami.cli.audit", "Tell the story of a pod, a device or a node; check the log."),
    "explain": Entry("hami.cli.explain", "Say why a pod waits, or decide a placement again."),
    "events": Entry("hami.cli.events", "Follow the log, or show one event."),
    "locks": Entry("hami.cli.locks", "Show who holds which lock and who waits."),
    "dlq": Entry("hami.cli.dlq", "List what the ingester or a sink would not take; try again."),
    "demo": Entry("hami.cli.demo", "Run the whole system on this machine and check what it promises."),
    "sim": Entry("hami.cli.sim", "Run parts of a simulated Kubernetes."),
    "vendors": Entry("hami.cli.vendors", "Show each vendor's resources, annotations and rules."),
    "config": Entry("hami.cli.config", "Show settings and where each value came from."),
    "completion": Entry("hami.cli.completion", "Print shell completion for bash, zsh or fish."),
    "version": Entry("hami.cli.version", "Show versions."),
}

EPILOG: Final = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 event store cannot be used, 4 not found."


@click.group(
    cls=LazyGroup,
    table=VERBS,
    params=common_options(),
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Share accelerators between Kubernetes pods; every fact is an event in a Redis stream."""
    session_of(context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs one verb and leaves with its exit code."""
    sys.exit(int(run(arguments)))


def run(arguments: Sequence[str] | None = None) -> Exit:
    """Run one verb; every failure ends in one line on standard error."""
    session = Session(os.environ)
    try:
        _invoke(sys.argv[1:] if arguments is None else list(arguments), session)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return Exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return Exit.USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "hami"
        said = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"hami: {said}: see `{path} --help`", err=True)
        return Exit.USAGE
    except click.ClickException as error:
        click.echo(f"hami: {error.format_message()}", err=True)
        return Exit.FAILED
    except BaseException as error:  # noqa: BLE001 - the last handler of the process; unknown errors are raised again
        return _ended_by(error, session)
    return Exit.OK


def _invoke(arguments: list[str], session: Session) -> None:
    if "_HAMI_COMPLETE" in os.environ:
        cli.main(args=arguments, prog_name="hami")  # answers the shell and exits
    # Not cli.main: it turns Ctrl-C into a blank line and a closed pipe into a failure.
    with cli.make_context("hami", arguments, obj=session) as context:
        cli.invoke(context)


def _ended_by(error: BaseException, session: Session) -> Exit:
    cause = innermost(error)
    if isinstance(cause, (KeyboardInterrupt, click.Abort)):
        return Exit.INTERRUPTED
    if isinstance(cause, BrokenPipeError):
        # The interpreter flushes standard output once more at exit; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    if isinstance(cause, HamiError):
        code, line = explain(cause, store=session.store_shown)
        click.echo(f"hami: {line}", err=True)
        return code
    raise error


if __name__ == "__main__":
    main()
