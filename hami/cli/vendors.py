"""`hami vendors list|show`: what may be asked for, and by which rules it is given out."""

from typing import TYPE_CHECKING, Any

import click

from hami.cli.exits import NotFound
from hami.cli.output import print_json, print_table
from hami.cli.session import Session, Verb, pass_session
from hami.config import SchedulerSettings

if TYPE_CHECKING:
    from hami.vendors.vendor import Vendor


@click.group()
def command() -> None:
    """Show the vendors that are served: resources, units, annotations and rules.

    As the scheduler's `device_config` names them; without one, by HAMi's chart defaults and an example of each family whose
    chips a file must name.
    """


@command.command("list", cls=Verb)
@pass_session
def every(session: Session) -> None:
    """List the vendors: the word that stands for each in annotations and reasons, and the resources that ask for it."""
    from hami.cli.vendor_sheet import resources_of

    vendors = _vendors(session)
    if session.json:
        print_json({"vendors": [{"name": each.word, "about": _about(each), **_resources(each)} for each in vendors]})
        return
    rows = [(each.word, ", ".join(name for _, name in resources_of(each)), _about(each)) for each in vendors]
    print_table("vendors", ("NAME", "RESOURCES", "WHAT IT IS"), rows)


@command.command("show", cls=Verb)
@click.argument("name", metavar="NAME")
@pass_session
def show(session: Session, name: str) -> None:
    """Everything about one vendor. NAME is its word, in any case, or one of its resources."""
    from hami.cli.vendor_sheet import keys_of, resources_of, rules_of

    vendor = _named(_vendors(session), name)
    if session.json:
        print_json(_document(vendor))
        return
    click.echo(f"{vendor.word}: {_about(vendor)}")
    print_table("resources", ("WHAT", "NAME"), list(resources_of(vendor)))
    print_table("annotations", ("WHAT", "KEY"), list(keys_of(vendor)))
    print_table("a card is asked, in this order", ("RULE", "REFUSED WITH"), list(rules_of(vendor)))
    click.echo(f"a share is {vendor.size.value}; taken are {vendor.select.value}")
    if vendor.differs:
        click.echo(f"differs from HAMi (docs/differences.md): {', '.join(vendor.differs)}")


def _vendors(session: Session) -> "tuple[Vendor, ...]":
    from hami.cli.vendor_sheet import examples
    from hami.scheduler.deviceconfig import read_device_config
    from hami.vendors.registry import vendors_of

    path = session.settings(SchedulerSettings, "scheduler")[0].device_config
    return vendors_of(read_device_config(path)) if path else examples()


def _named(vendors: "tuple[Vendor, ...]", name: str) -> "Vendor":
    from hami.cli.vendor_sheet import resources_of

    for each in vendors:
        if name.lower() == each.word.lower() or name in {resource for _, resource in resources_of(each)}:
            return each
    raise NotFound(f"no vendor is called {name!r}; there are {', '.join(each.word for each in vendors)}")


def _about(vendor: "Vendor") -> str:
    """The first sentence of the vendor's page."""
    return " ".join(vendor.about.split()).split(". ")[0].rstrip(".")


def _resources(vendor: "Vendor") -> dict[str, Any]:
    from hami.cli.vendor_sheet import resources_of

    return {"resources": [{"what": what, "name": name} for what, name in resources_of(vendor)]}


def _document(vendor: "Vendor") -> dict[str, Any]:
    from hami.cli.vendor_sheet import keys_of, rules_of

    return {
        "name": vendor.word,
        "about": " ".join(vendor.about.split()),
        **_resources(vendor),
        "annotations": [{"what": what, "key": key} for what, key in keys_of(vendor)],
        "rules": [{"rule": rule, "refused_with": word} for rule, word in rules_of(vendor)],
        "share": vendor.size.value,
        "taken": vendor.select.value,
        "differs": list(vendor.differs),
    }
