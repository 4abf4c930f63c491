"""Quantities carry their unit in their type; converting happens at the door, nowhere else."""

from typing import NewType

MiB = NewType("MiB", int)
"""Device memory in mebibytes (2**20 bytes), the unit of `nvidia.com/gpumem`."""

CorePercent = NewType("CorePercent", int)
"""Compute share of one device in percent of that device; a device usually has 100."""

Slots = NewType("Slots", int)
"""How many containers share a device; one container's share takes one slot."""

EpochMs = NewType("EpochMs", int)
"""Milliseconds since 1970-01-01 UTC, by the store's clock unless a name says otherwise."""
