"""`hami alerts` and `hami alerts check`."""

from typing import TYPE_CHECKING, Any

import click

from hami.cli.options import flags_of, setting_options
from hami.cli.output import print_line
from hami.cli.places import position_of, records_until, start_for
from hami.cli.process import run_process, run_verb
from hami.cli.session import Session, Verb, VerbGroup, archive_option, pass_session
from hami.cli.store import open_store
from hami.cli.when import parse_moment, shown
from hami.config import AlertsSettings, RedisSettings
from hami.events.envelope import START

if TYPE_CHECKING:
    from hami.alerts.decide.notice import Notice


@click.group(cls=VerbGroup, invoke_without_command=True)
@setting_options(AlertsSettings)
@setting_options(RedisSettings, prefix="redis_", leave_out=("url",))
@pass_session
@click.pass_context
def command(context: click.Context, /, session: Session, **given: Any) -> None:
    """Follow the log and tell Alertmanager, a webhook or standard output what is wrong, and when it is over.

    Runs until it is told to stop (SIGTERM or Ctrl-C). Any number of replicas may run: one sends, the others stand by. What was
    told is remembered in the store; after a loss of that memory only what is wrong at that moment is told.
    """
    if context.invoked_subcommand is not None:
        return
    settings, _ = session.settings(AlertsSettings, "alerts", flags_of(given, among=AlertsSettings))
    redis = session.redis(flags_of(given, prefix="redis_", among=RedisSettings))
    from hami.alerts.app import run_alerts

    run_process(session, run_alerts, settings, redis)


@command.command("check", cls=Verb)
@click.option("--from", "since", default="g:1", show_default=True, metavar="TIME", help="Where to begin: RFC 3339, -5m, g:123.")
@click.option("--to", "until", default="now", show_default=True, metavar="TIME", help="Where to stop.")
@archive_option
@pass_session
def check(session: Session, since: str, until: str) -> None:
    """Print what the rules would have told over a part of the log; nothing is sent, and no group is touched.

    With --output json one object a line.
    """
    run_verb(_check, session, since, until)


async def _check(session: Session, since: str, until: str) -> None:
    from hami.alerts.decide.rules import watch
    from hami.alerts.decide.state import AlertState

    state, told, looked_at = AlertState(), 0, 0
    async with open_store(session) as (store, _):
        now = await store.log.now()
        first = await start_for(store.log, parse_moment(since, now=now, field="--from"))
        last = await position_of(store.log, parse_moment(until, now=now, field="--to"))
        async for record in records_until(store.log, START, last):
            notices = watch(state, record)
            if record.position <= first:
                continue
            looked_at += 1
            told += len(notices)
            for notice in notices:
                _print(session, notice)
    if not session.json:
        click.echo(f"{told} notices from {looked_at} events; none was sent")


def _print(session: Session, notice: "Notice") -> None:
    if session.json:
        from hami.alerts.decide.wire import document

        print_line(document(notice, {}))
        return
    when = shown(notice.ended_ms or notice.started_ms)
    about = " ".join(f"{name}={value}" for name, value in notice.labels.items())
    words = " ".join(notice.description.split())
    head = f"{when}  {notice.alert.severity:<8}  {notice.status:<8}  {notice.alert.value:<20}"
    click.echo(f"{head}  {about or '-'}  {words}".rstrip())
