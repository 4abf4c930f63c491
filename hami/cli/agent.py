"""`hami agent`: all settings of tables `agent` and `redis` are options."""

from functools import partial
from importlib.metadata import version
from typing import Any

import click

from hami.cli.options import flags_of, setting_options
from hami.cli.process import run_process
from hami.cli.session import Session, Verb, pass_session
from hami.config import AgentSettings, RedisSettings


@click.command(cls=Verb)
@setting_options(AgentSettings)
@setting_options(RedisSettings, prefix="redis_", leave_out=("url",))
@pass_session
def command(session: Session, **given: Any) -> None:
    """Run the agent of this node: discover devices, serve the kubelet, watch health, report to the control plane.

    Runs until it is told to stop (SIGTERM or Ctrl-C). Options win over environment variables, those over the file.
    """
    from hami.nodeagent.app import with_hami_variables

    session.env = with_hami_variables(session.env)
    settings, _ = session.settings(AgentSettings, "agent", flags_of(given, among=AgentSettings))
    redis = session.redis(flags_of(given, prefix="redis_", among=RedisSettings))
    from hami.nodeagent.process import run_agent

    run_process(session, partial(run_agent, version=version("hami")), settings, redis)
