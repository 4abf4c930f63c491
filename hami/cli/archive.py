"""`hami archive`: all settings of tables `archive` and `redis` are options."""

from typing import Any

import click

from hami.cli.options import flags_of, setting_options
from hami.cli.process import run_process
from hami.cli.session import Session, Verb, pass_session
from hami.config import ArchiveSettings, RedisSettings


@click.command(cls=Verb)
@click.option("--once", is_flag=True, help="Seal and trim what is due now, then end.")
@setting_options(ArchiveSettings)
@setting_options(RedisSettings, prefix="redis_", leave_out=("url",))
@pass_session
def command(session: Session, once: bool, **given: Any) -> None:
    """Seal the log in segments on disk, and trim from the store what is sealed, old enough and needed by nobody.

    Runs until it is told to stop (SIGTERM or Ctrl-C). Of several replicas one is active. They must share the folder.
    """
    settings, _ = session.settings(ArchiveSettings, "archive", flags_of(given, among=ArchiveSettings))
    redis = session.redis(flags_of(given, prefix="redis_", among=RedisSettings))
    from hami.archive.app import run_archive

    async def main() -> None:
        await run_archive(settings, redis, once=once)

    run_process(session, main)
