"""Named rules about which devices a pod accepts. Each reads the pod's wishes once; none knows a vendor's keys by heart."""

from collections.abc import Mapping
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.vendors.vendor import Vendor

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's wishes about one vendor's devices, parsed. Empty tuples and None mean no constraint."""

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    mode: str | None = None
    numa_bind: bool = False

    def type_fits(self, device: Device) -> bool:
        """By case-insensitive substring of the model; a refusal wins over a wish. A device without a mode has any mode."""
        if self.use_types or self.nouse_types:
            model = device.model.lower()
            if self.nouse_types and any(word in model for word in self.nouse_types):
                return False
            if self.use_types and not any(word in model for word in self.use_types):
                return False
        return self.mode is None or not device.mode or device.mode in self.mode

    def uuid_fits(self, uuid: str) -> bool:
        if self.nouse_uuids and uuid in self.nouse_uuids:
            return False
        return not self.use_uuids or uuid in self.use_uuids

    @property
    def mig_welcome(self) -> bool:
        return self.mode is None or "mig" in self.mode


def wishes_of(annotations: Mapping[str, str], vendor: Vendor) -> Wishes:
    keys = vendor.keys
    return Wishes(
        use_types=_words(annotations, keys.use_type, lower=True),
        nouse_types=_words(annotations, keys.nouse_type, lower=True),
        use_uuids=_words(annotations, keys.use_uuid),
        nouse_uuids=_words(annotations, keys.nouse_uuid),
        mode=annotations.get(keys.mode) if keys.mode else None,
        numa_bind=bool(keys.numa_bind) and annotations.get(keys.numa_bind, "") in _TRUE,
    )


def _words(annotations: Mapping[str, str], key: str, *, lower: bool = False) -> tuple[str, ...]:
    text = annotations.get(key, "") if key else ""
    if not text.strip():
        return ()
    return tuple(word.strip().lower() if lower else word.strip() for word in text.split(","))
