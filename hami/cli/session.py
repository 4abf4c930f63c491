"""What every verb knows: the options that stand before or after its name, and the settings that follow from them."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    import msgspec

    from hami.config import RedisSettings

S = TypeVar("S", bound="msgspec.Struct")

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class Session:
    """One invocation of `hami`. Mutable only while click parses: an option may stand before or after the verb."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)
        self.config: str | None = env.get("HAMI_CONFIG")
        self.redis_url: str | None = None
        self.archive: str | None = None
        self.output = "table"
        self.log_level = "info"
        self.store_shown = ""

    @property
    def json(self) -> bool:
        return self.output == "json"

    def settings(self, kind: type[S], table: str, flags: Mapping[str, object] | None = None) -> tuple[S, Mapping[str, str]]:
        """One table of settings and the source of every field. Raises InvalidInput."""
        from hami.config import load

        given = dict(flags or {})
        if table == "redis":
            given = {"url": self.redis_url, **given}
        if table == "archive":
            given = {"dir": self.archive, **given}
        env = dict(self.env)
        if table == "agent" and "NODE_NAME" in env:
            env.setdefault("HAMI_AGENT_NODE_NAME", env["NODE_NAME"])
        prefix = "redis-" if table == "redis" else ""
        return load(kind, table, file=self.config, env=env, flags=given, flag_prefix=prefix)

    def redis(self, flags: Mapping[str, object] | None = None) -> "RedisSettings":
        """Settings of the store, and a note of its URL (without password) for error messages."""
        from hami.config import RedisSettings, without_password

        settings, _ = self.settings(RedisSettings, "redis", flags)
        self.store_shown = without_password(settings.url)
        return settings


def session_of(context: click.Context) -> Session:
    """The session of this invocation, made on first use by whichever option is parsed first."""
    root = context.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session(os.environ)
    return root.obj


pass_session: Callable[[Callable[..., Any]], Callable[..., Any]] = click.make_pass_decorator(Session)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        session = session_of(context)
        if value is not None:
            setattr(session, name, value)

    return keep


def common_options() -> list[click.Parameter]:
    """The options of every verb. A verb's own value wins over one before the verb."""
    return [
        click.Option(
            ["--config"], metavar="FILE", callback=_keep("config"), expose_value=False, help="TOML file with settings."
        ),
        click.Option(
            ["--redis-url"], metavar="URL", callback=_keep("redis_url"), expose_value=False, help="Where the event store is."
        ),
        click.Option(
            ["--output", "-o"],
            type=click.Choice(["table", "json"]),
            callback=_keep("output"),
            expose_value=False,
            help="For people (table) or for programs (json).",
        ),
        click.Option(
            ["--log-level"],
            type=click.Choice(LOG_LEVELS),
            callback=_keep("log_level"),
            expose_value=False,
            help="Least level that is logged to standard error.",
        ),
    ]


def archive_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for verbs that read the past: `open_store` then reads the folder before the log."""
    return click.option(
        "--archive",
        metavar="DIR",
        callback=_keep("archive"),
        expose_value=False,
        help="Read this archive before the log. Default: setting archive.dir, where that folder exists.",
    )(function)


class Verb(click.Command):
    """A command that also takes the common options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {option for param in self.params for option in param.opts}
        self.params.extend(each for each in common_options() if not taken.intersection(each.opts))


class VerbGroup(click.Group):
    """A group that is a verb itself when no further word follows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {option for param in self.params for option in param.opts}
        self.params.extend(each for each in common_options() if not taken.intersection(each.opts))
