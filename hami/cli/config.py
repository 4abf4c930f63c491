"""`hami config show`."""

from typing import Any, Final

import click
import msgspec

from hami.cli.output import print_json, print_table
from hami.cli.session import Session, Verb, pass_session
from hami.config import SETTINGS, SchedulerSettings, without_password

DEVICE_CONFIG: Final = "device_config"


@click.group()
def command() -> None:
    """Show settings and where each value came from."""


@command.command("show", cls=Verb)
@click.option("--table", "only", type=click.Choice([*(name for name, _ in SETTINGS), DEVICE_CONFIG]), help="Only this table.")
@pass_session
def show(session: Session, only: str | None) -> None:
    """Print every setting as this machine would use it, and its source: default, file, environment variable or flag.

    `device_config` is HAMi's device-config.yaml as the scheduler reads it. Passwords in URLs are not shown.
    """
    tables = {name: _table(session, name, kind) for name, kind in SETTINGS if only in {None, name}}
    if only in {None, DEVICE_CONFIG}:
        tables[DEVICE_CONFIG] = _device_config(session)
    if session.json:
        print_json(tables)
        return
    for name, rows in tables.items():
        print_table(name, ("SETTING", "VALUE", "SOURCE"), [(field, row["value"], row["source"]) for field, row in rows.items()])


def _table(session: Session, name: str, kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    settings, sources = session.settings(kind, name)
    values = msgspec.structs.asdict(settings)
    return {field: {"value": _safe(value), "source": sources[field]} for field, value in values.items()}


def _device_config(session: Session) -> dict[str, dict[str, Any]]:
    from hami.scheduler.deviceconfig import read_device_config, read_document
    from hami.vendors.config import effective

    path = session.settings(SchedulerSettings, "scheduler")[0].device_config
    rows = effective(read_device_config(path), read_document(path))
    return {key: {"value": msgspec.to_builtins(value), "source": path if given else "default"} for key, value, given in rows}


def _safe(value: Any) -> Any:
    """A setting may hold several URLs with spaces between."""
    if not isinstance(value, str) or "://" not in value:
        return value
    return " ".join(without_password(each) for each in value.split(" "))
