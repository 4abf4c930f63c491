"""`hami scheduler`: all settings of tables `scheduler` and `redis` are options."""

from typing import Any

import click

from hami.cli.hamiflags import SPELLINGS, flags_without_effect
from hami.cli.options import flags_of, setting_options
from hami.cli.process import run_process
from hami.cli.session import Session, Verb, pass_session
from hami.config import RedisSettings, SchedulerSettings


@click.command(cls=Verb)
@setting_options(SchedulerSettings, spellings=SPELLINGS)
@setting_options(RedisSettings, prefix="redis_", leave_out=("url",))
@flags_without_effect
@pass_session
def command(session: Session, **given: Any) -> None:
    """Run the scheduler: extender, webhook, ingester, inventory watch, reconciler and reaper.

    Runs until it is told to stop (SIGTERM or Ctrl-C). Options win over environment variables, those over the file.
    Any number of replicas may run at once. HAMi's flags are understood; those that mean nothing here say so.
    """
    settings, _ = session.settings(SchedulerSettings, "scheduler", flags_of(given, among=SchedulerSettings))
    redis = session.redis(flags_of(given, prefix="redis_", among=RedisSettings))
    from hami.scheduler.app import run_scheduler

    run_process(session, run_scheduler, settings, redis, uvloop=True)
