"""decide for registration: what the library sees, what the settings say -> the device set that the cluster is told. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from hami.domain.device import Device, Health
from hami.domain.digest import device_set_digest
from hami.domain.units import CorePercent, MiB, Slots


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How this node's devices are offered. Excluded cards are offered to nobody, kubelet and cluster alike."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: str = "hami-core"
    preconfigured_memory: MiB = MiB(0)
    exclude_uuids: frozenset[str] = frozenset()
    exclude_indexes: frozenset[int] = frozenset()


class DeviceSet(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered, and why a card is not (`left_out`: uuid -> reason)."""

    devices: tuple[Device, ...]
    left_out: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def digest(self) -> str:
        return device_set_digest(self.devices)


def device_set(cards: Sequence[Device], config: NodeConfig, health: Mapping[str, Health]) -> DeviceSet:
    """Cards as offered: split, scaled, with the health that is remembered of them. In order of index, so that it is stable."""
    offered: list[Device] = []
    left_out: dict[str, str] = {}
    for card in sorted(cards, key=lambda each: (each.index, each.uuid)):
        if card.uuid in config.exclude_uuids or card.index in config.exclude_indexes:
            left_out[card.uuid] = "excluded by the settings"
            continue
        memory = card.memory or config.preconfigured_memory
        if memory <= 0:
            left_out[card.uuid] = "the library cannot tell its memory and the settings give none"
            continue
        offered.append(_offer(card, memory, config, health.get(card.uuid, Health.HEALTHY)))
    return DeviceSet(devices=tuple(offered), left_out=left_out)


def differs(told: Sequence[Device] | None, now: DeviceSet) -> bool:
    """Whether the cluster must be told. Health alone is no reason: it has events of its own."""
    return told is None or device_set_digest(told) != now.digest


def _offer(card: Device, memory: int, config: NodeConfig, health: Health) -> Device:
    mig = config.mode == "mig"
    slots = max((len(profile.placements) for profile in card.mig_profiles), default=1) if mig else config.split_count
    scaled = memory if mig or config.memory_scaling == 1.0 else int(memory * config.memory_scaling)
    return msgspec.structs.replace(
        card,
        memory=MiB(scaled),
        cores=CorePercent(100 if mig else int(config.core_scaling * 100)),
        slots=Slots(slots),
        mode=config.mode,
        health=health,
    )
