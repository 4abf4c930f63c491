"""Which MIG profile serves a memory size, and where it lies on the card."""

from collections.abc import Sequence
from typing import Final

from hami.domain.device import MigPlacement, MigProfile, MigSlice

_FROM_ABOVE: Final = ("1g.", "3g.")


def plan(profiles: Sequence[MigProfile], memory: int, occupied: Sequence[MigSlice]) -> tuple[MigProfile, MigSlice] | None:
    """The smallest profile with enough memory that still has a free place; None when there is none.

    Small profiles and `3g.` fill the card from its end, the others from its start: the larger ones keep room.
    """
    for profile in sorted(profiles, key=lambda each: (each.memory, each.slices)):
        if profile.memory < memory:
            continue
        for at in sorted(profile.placements, key=lambda each: each.start, reverse=profile.name.startswith(_FROM_ABOVE)):
            if not any(_overlap(at, each.placement) for each in occupied):
                return profile, MigSlice(profile.name, at)
    return None


def _overlap(a: MigPlacement, b: MigPlacement) -> bool:
    return a.start < b.start + b.size and b.start < a.start + a.size
