"""Named rules about which devices a pod accepts. Each reads the pod's wishes once; none knows a vendor's keys by heart."""

from collections.abc import Mapping
from typing import Final

import msgspec

from hami.vendors.vendor import Vendor

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's wishes about one vendor's devices, parsed. None means no constraint; an empty tuple is met by nothing."""

    use_types: tuple[str, ...] | None = None
    nouse_types: tuple[str, ...] | None = None
    use_uuids: tuple[str, ...] | None = None
    nouse_uuids: tuple[str, ...] | None = None
    mode: str | None = None
    numa_bind: bool = False
    notes: tuple[tuple[str, str], ...] = ()
    """Further annotations that the vendor's checks read, those of them that the pod has."""

    def note(self, key: str) -> str:
        """Such an annotation, empty where the pod has none."""
        return next((value for name, value in self.notes if name == key), "")

    def type_fits(self, model: str, mode: str) -> bool:
        """By case-insensitive substring of the model; a refusal wins over a wish. A device without a mode has any mode."""
        if self.use_types is not None or self.nouse_types is not None:
            model = model.lower()
            if self.nouse_types is not None and any(word in model for word in self.nouse_types):
                return False
            if self.use_types is not None and not any(word in model for word in self.use_types):
                return False
        return self.mode is None or not mode or mode in self.mode

    def uuid_fits(self, uuid: str) -> bool:
        if self.nouse_uuids is not None and uuid in self.nouse_uuids:
            return False
        return self.use_uuids is None or uuid in self.use_uuids

    @property
    def about_types(self) -> bool:
        return self.use_types is not None or self.nouse_types is not None or self.mode is not None

    @property
    def about_uuids(self) -> bool:
        return self.use_uuids is not None or self.nouse_uuids is not None

    @property
    def mig_welcome(self) -> bool:
        return self.mode is None or "mig" in self.mode


def wishes_of(annotations: Mapping[str, str], vendor: Vendor) -> Wishes:
    keys = vendor.keys
    use = _words(annotations, keys.use_uuid)
    nouse = _words(annotations, keys.nouse_uuid)
    for use_key, nouse_key in keys.more_uuids:
        use = _both(use, _words(annotations, use_key))
        further = _words(annotations, nouse_key)
        nouse = further if nouse is None else (*nouse, *(further or ()))
    return Wishes(
        use_types=_words(annotations, keys.use_type, lower=True),
        nouse_types=_words(annotations, keys.nouse_type, lower=True),
        use_uuids=use,
        nouse_uuids=nouse,
        mode=annotations.get(keys.mode) if keys.mode else None,
        numa_bind=wants_numa(annotations, vendor),
        notes=tuple((key, annotations[key]) for key in vendor.pod_keys if key in annotations),
    )


def wants_numa(annotations: Mapping[str, str], vendor: Vendor) -> bool:
    return bool(vendor.keys.numa_bind) and annotations.get(vendor.keys.numa_bind, "") in _TRUE


def _both(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """A card has to be in both lists."""
    if one is None or other is None:
        return one if other is None else other
    return tuple(word for word in one if word in other)


def _words(annotations: Mapping[str, str], key: str, *, lower: bool = False) -> tuple[str, ...] | None:
    """A comma list without its blanks; a blank annotation is no constraint, a list of nothing but commas is an empty one."""
    text = annotations.get(key, "") if key else ""
    if not text.strip():
        return None
    words = (word.strip().lower() if lower else word.strip() for word in text.split(","))
    return tuple(word for word in words if word)
