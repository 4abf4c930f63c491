"""A short name for a device set: agent and control plane compute it alike, so a difference shows without sending the set."""

import hashlib
from collections.abc import Iterable

import msgspec

from hami.domain.device import Device, Health


def device_set_digest(devices: Iterable[Device]) -> str:
    """128 bits over what was registered, in order of vendor and uuid. Health is left out: it has events of its own."""
    rows = sorted(devices, key=lambda device: (device.vendor, device.uuid))
    plain = [msgspec.structs.replace(device, health=Health.HEALTHY) for device in rows]
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()[:32]
