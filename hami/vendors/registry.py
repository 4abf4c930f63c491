"""Every vendor hami knows, in one explicit tuple: adding a vendor is adding a page and a line here."""

from collections.abc import Callable, Sequence
from typing import Final

from hami.vendors import nvidia
from hami.vendors.config import DeviceConfig
from hami.vendors.vendor import Vendor

VENDORS: Final[tuple[Callable[[DeviceConfig], Vendor], ...]] = (lambda config: nvidia.vendor(config.nvidia),)


def vendors_of(config: DeviceConfig) -> tuple[Vendor, ...]:
    """The vendors under this configuration, in registry order; one without a count resource sells nothing and is left out."""
    return tuple(each for each in (page(config) for page in VENDORS) if each.resources.count)


def by_word(vendors: Sequence[Vendor], word: str) -> Vendor | None:
    return next((each for each in vendors if each.word == word), None)
