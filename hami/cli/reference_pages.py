"""One function a page: from a list in the code to Markdown."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import click

from hami.alerts.decide.notice import Alert
from hami.cli.exits import MEANING
from hami.cli.main import cli
from hami.cli.markdown import page_of, table_of
from hami.cli.options import described, shown_default
from hami.cli.reference_events import event_lines
from hami.cli.reference_vendors import vendor_lines
from hami.config import SETTINGS
from hami.domain.reasons import NodeReason, Reason
from hami.events.redis.keys import Keys


def pages() -> dict[str, str]:
    """File name -> text of every reference page."""
    made = {
        "commands.md": page_of("Commands", _commands()),
        "settings.md": page_of("Settings", _settings()),
        "events.md": page_of("Events", event_lines()),
        "reasons.md": page_of("Reasons", _reasons()),
        "alerts.md": page_of("Alerts", _alerts()),
        "metrics.md": page_of("Metrics", _metrics()),
        "redis-keys.md": page_of("Redis keys", _keys()),
        "vendors.md": page_of("Vendors", vendor_lines()),
        "exit-codes.md": page_of("Exit codes", _exit_codes()),
    }
    titles = [f"- [{text.splitlines()[2].removeprefix('# ')}]({name})" for name, text in made.items()]
    return {
        "README.md": page_of("Reference", iter(["Generated from the code; always as new as the code.", "", *titles])),
        **made,
    }


# Commands


def _commands() -> Iterator[str]:
    yield "Options in this first table may stand before or after any verb."
    yield ""
    root = click.Context(cli, info_name="hami")
    yield from _options(cli)
    for path, command, context in _walk(root):
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        arguments = "".join(f" {param.make_metavar(context)}" for param in command.params if isinstance(param, click.Argument))
        yield f"## {path}{arguments}"
        yield ""
        yield inspect.cleandoc(command.help or "")
        yield ""
        yield from _options(command)


def _walk(context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    group = context.command
    assert isinstance(group, click.Group), "only groups are walked"
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, "a listed verb exists"
        inner = click.Context(command, info_name=name, parent=context)
        yield inner.command_path, command, inner
        if isinstance(command, click.Group):
            yield from _walk(inner)


def _options(command: click.Command) -> Iterator[str]:
    common = {option for param in cli.params for option in param.opts} if command is not cli else set()
    options = [param for param in command.params if isinstance(param, click.Option) and not common.intersection(param.opts)]
    if options:
        yield from table_of(("Option", "Meaning"), [(_spelling(option), option.help or "") for option in options])


def _spelling(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    value = (
        "|".join(option.type.choices) if isinstance(option.type, click.Choice) else option.metavar or option.type.name.upper()
    )
    return f"{names} {value}"


# Settings


def _settings() -> Iterator[str]:
    yield "A value comes from, later wins: the default, the TOML file (`--config`, one table for each heading), the environment"
    yield "variable, the command line option. `hami config show` prints the value in force and its source."
    yield ""
    for table, kind in SETTINGS:
        yield f"## {table}"
        yield ""
        yield inspect.getdoc(kind) or ""
        yield ""
        rows = [
            (f"`{name}`", f"`HAMI_{table}_{name}`".upper(), word, shown_default(default), meaning, rule)
            for name, word, default, meaning, rule in described(kind)
        ]
        yield from table_of(("Field", "Environment", "Type", "Default", "Meaning", "Rule"), rows)


# Reasons, metrics, keys, exit codes


def _reasons() -> Iterator[str]:
    yield "Words that `kubectl describe pod` and `placement.refused` events show. They never carry ages, counters or names."
    yield ""
    for kind in (Reason, NodeReason):
        yield f"## {'Why a card was passed over' if kind is Reason else 'Why a whole node was passed over'}"
        yield ""
        yield " ".join(inspect.cleandoc(kind.__doc__ or "").split())
        yield ""
        yield from table_of(("Word", "Name in code"), [(f"`{each.value}`", f"`{each.name}`") for each in kind])


def _alerts() -> Iterator[str]:
    yield "What `hami alerts` tells. An alert that lasts fires and is resolved; one that happens once is told each time."
    yield "Labels, where they say something: `node`, `device`, `pod` (namespace/name)."
    yield ""
    rows = [
        (f"`{each.value}`", each.severity.value, "lasts" if each.lasting else "happens once", each.summary) for each in Alert
    ]
    yield from table_of(("Alert", "Severity", "Kind", "Summary"), rows)


def _metrics() -> Iterator[str]:
    yield "Names, units and labels of device, pod and quota metrics are HAMi's, so that its dashboards go on working."
    yield "Every `_seconds` metric is in seconds, every `_bytes` metric in bytes."
    yield ""
    for room in ("scheduler", "nodeagent", "alerts", "archive"):
        families = _families(room)
        if families:
            yield f"## {room}"
            yield ""
            yield from table_of(("Metric", "Type", "Meaning"), sorted(families))


def _families(room: str) -> list[tuple[str, str, str]]:
    """What a process exports, as its own registry says; by convention the room's module `metrics` has a class Metrics."""
    package = import_module(f"hami.{room}")
    if "metrics" not in {module.name for module in iter_modules(package.__path__)}:
        return []
    kind = import_module(f"hami.{room}.metrics").Metrics
    registry = kind(()).registry if room == "scheduler" else kind().registry
    return [
        (f"`{family.name}{'_total' if family.type == 'counter' else ''}`", family.type, family.documentation)
        for family in registry.collect()
    ]


def _keys() -> Iterator[str]:
    yield "All keys of one partition share the hash tag (`p0` unless set otherwise), so that one append stays in one slot of a"
    yield "Redis Cluster. No other key is ever written; keys marked *expires* always carry a time to live."
    yield ""
    rows = [
        (f"`{kind.pattern}`", kind.type, "expires" if kind.ttl else "stays", kind.owner, kind.purpose)
        for kind in Keys().table()
    ]
    yield from table_of(("Key", "Type", "Life", "Written by", "For"), rows)


def _exit_codes() -> Iterator[str]:
    yield from table_of(("Code", "Meaning"), [(f"{int(code)}", meaning) for code, meaning in MEANING.items()])
