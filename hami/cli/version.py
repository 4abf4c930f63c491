"""`hami version`."""

import sys
from importlib.metadata import PackageNotFoundError, version

import click

from hami.cli.output import columns, print_json
from hami.cli.session import Session, Verb, pass_session

SHOWN = ("redis", "kubernetes", "grpcio", "msgspec", "numpy")
"""Libraries whose version decides how hami behaves towards others."""


@click.command(cls=Verb)
@pass_session
def command(session: Session) -> None:
    """Show the versions of hami, Python and the libraries that speak to others.

    Read from the installed packages' metadata: nothing is imported and no store is asked.
    """
    found = {"hami": _installed("hami"), "python": sys.version.split()[0], **{name: _installed(name) for name in SHOWN}}
    if session.json:
        print_json(found)
        return
    for line in columns(("PART", "VERSION"), [*found.items()]):
        click.echo(line)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
