"""The vendor pages as Markdown: what HAMi's chart sells, and by which rules it is given out."""

from collections.abc import Iterable, Iterator

from hami.cli.markdown import table_of
from hami.cli.vendor_sheet import examples, keys_of, resources_of, rules_of
from hami.vendors.vendor import Score, Vendor


def vendor_lines() -> Iterator[str]:
    yield "Names are those of HAMi's chart; `device-config.yaml` may give others. MR-V100 stands for every Iluvatar chip there."
    yield "Ascend910B3 stands for every Ascend chip but 310P and 910C."
    yield "Differences are explained in [differences](../differences.md)."
    yield ""
    for vendor in examples():
        yield from _vendor(vendor)


def _vendor(vendor: Vendor) -> Iterator[str]:
    yield f"## {vendor.word}"
    yield ""
    yield vendor.about.strip()
    yield ""
    yield from table_of(("resource", "name"), _quoted(resources_of(vendor)))
    yield from table_of(("annotation", "key"), _quoted(keys_of(vendor)))
    yield "A card is asked, in this order:"
    yield ""
    for rule, word in rules_of(vendor):
        yield f"1. {rule} (`{word}`)"
    yield ""
    yield f"A share is {vendor.size.value}. Taken are {vendor.select.value}."
    if vendor.score is not Score.NONE:
        yield f"The node's score grows by {vendor.score.value}."
    yield ""
    if vendor.differs:
        yield "Differs from HAMi: " + ", ".join(f"`{each}`" for each in vendor.differs) + "."
        yield ""


def _quoted(rows: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [(what, f"`{name}`") for what, name in rows]
