"""`hami agent`: all settings of tables `agent` and `redis` are options; HAMi's own flags and variables are understood."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import click

from hami.cli.options import flags_of, setting_options
from hami.cli.process import run_process
from hami.cli.session import Session, Verb, pass_session
from hami.config import AgentSettings, RedisSettings
from hami.nodeagent.hamivars import HAMI

HAMI_PREFIX: Final = "of_hami_"


def hami_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """HAMi's flags that are not ours as well, out of sight; switches take a value or none."""
    ours = {field.replace("_", "-") for field in AgentSettings.__struct_fields__}
    for each in HAMI:
        for flag in each.flags:
            if flag not in ours:
                name = f"{HAMI_PREFIX}{flag}".replace("-", "_")
                option = click.option(
                    f"--{flag}" if len(flag) > 1 else f"-{flag}", name, is_flag=False, flag_value="true", hidden=True
                )
                function = option(function)
    return function


@click.command(cls=Verb)
@setting_options(AgentSettings)
@setting_options(RedisSettings, prefix="redis_", leave_out=("url",))
@hami_options
@pass_session
def command(session: Session, **given: Any) -> None:
    """Run the agent of this node: discover devices, serve the kubelet, watch health, report to the control plane.

    Runs until it is told to stop (SIGTERM or Ctrl-C). Options win over environment variables, those over the file, that over
    HAMi's configuration files. HAMi's own flags and variables are understood; those without effect are named in a warning.
    """
    settings, warnings = agent_settings(session, given)
    redis = session.redis(flags_of(given, prefix="redis_", among=RedisSettings))
    from hami.nodeagent.process import run_agent

    run_process(session, partial(run_agent, version=version("hami"), warnings=warnings), settings, redis)


def agent_settings(session: Session, given: dict[str, Any]) -> tuple[AgentSettings, tuple[str, ...]]:
    """Settings from everywhere, and what was said without effect. Raises InvalidInput."""
    from hami.nodeagent.hamifiles import with_hami_files
    from hami.nodeagent.hamivars import from_flags, with_hami_variables

    session.env, warnings = with_hami_variables(session.env)
    hami = from_flags({name[len(HAMI_PREFIX) :].replace("_", "-"): value for name, value in given.items()})
    flags = {
        **hami.values,
        **{name: value for name, value in flags_of(given, among=AgentSettings).items() if value is not None},
    }
    settings, sources = session.settings(AgentSettings, "agent", flags)
    return with_hami_files(settings, sources), (*warnings, *hami.warnings)
