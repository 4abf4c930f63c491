"""Every vendor hami knows, in one explicit tuple: adding a vendor is adding a page and a line here."""

from collections.abc import Callable, Sequence
from typing import Final

from hami.vendors import (
    amd,
    ascend,
    biren,
    cambricon,
    enflame,
    gcu,
    hygon,
    iluvatar,
    kunlun,
    metax,
    metax_shared,
    mthreads,
    neuron,
    nvidia,
    vastai,
    xpu,
)
from hami.vendors.config import DeviceConfig
from hami.vendors.vendor import Vendor

VENDORS: Final[tuple[Callable[[DeviceConfig], tuple[Vendor, ...]], ...]] = (
    lambda config: (nvidia.vendor(config.nvidia),),
    lambda config: (cambricon.vendor(config.cambricon),),
    lambda config: (hygon.vendor(config.hygon),),
    lambda config: (gcu.vendor(config.enflame), enflame.vendor(config.enflame)),
    lambda config: (mthreads.vendor(config.mthreads),),
    lambda config: (metax.vendor(config.metax), metax_shared.vendor(config.metax)),
    lambda config: (kunlun.vendor(config.kunlun), xpu.vendor(config.kunlun)),
    lambda config: (neuron.vendor(config.awsneuron),),
    lambda config: (amd.vendor(config.amd),),
    lambda config: (vastai.vendor(config.vastai),),
    lambda config: (biren.vendor(config.biren),),
    lambda config: tuple(iluvatar.vendor(chip) for chip in config.iluvatars),
    lambda config: ascend.vendors(config.vnpus),
)


def vendors_of(config: DeviceConfig) -> tuple[Vendor, ...]:
    """The vendors under this configuration, in registry order; one without a count resource sells nothing and is left out."""
    return tuple(each for page in VENDORS for each in page(config) if each.resources.count)


def by_word(vendors: Sequence[Vendor], word: str) -> Vendor | None:
    return next((each for each in vendors if each.word == word), None)
