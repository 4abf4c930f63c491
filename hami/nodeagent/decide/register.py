"""decide for registration: what the library sees, what the settings say -> the device set that the cluster is told. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hami.domain.device import Device, Health, MigProfile
from hami.domain.digest import device_set_digest
from hami.domain.units import CorePercent, MiB, Slots
from hami.nodeagent.decide.mig import Instance
from hami.nodeagent.decide.pieces import CARD, in_pieces

MIG: Final = "mig"
_FROM_GOOD_TO_BAD: Final = (Health.HEALTHY, Health.UNKNOWN, Health.SUSPECT, Health.UNHEALTHY)
_NOT_CUT: Final = {
    "": "mode mig: it cannot be cut",
    "disabled": "mode mig: it is not in MIG mode yet",
    "pending": "mode mig: its MIG mode waits for a reset of the card",
}


class ProfileRule(msgspec.Struct, frozen=True):
    """Profiles that may be made of cards whose model contains one of `models`."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How this node's devices are offered. Excluded cards are offered to nobody, kubelet and cluster alike."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: str = "hami-core"
    preconfigured_memory: MiB = MiB(0)
    exclude_uuids: frozenset[str] = frozenset()
    exclude_indexes: frozenset[int] = frozenset()
    mig_strategy: str = "none"
    mig_profiles: tuple[ProfileRule, ...] = ()
    """Mode `mig` only. The first rule whose model fits counts; no rule at all allows every profile without a `+`."""

    def may_offer(self, card: Device) -> bool:
        return card.uuid not in self.exclude_uuids and card.index not in self.exclude_indexes


class DeviceSet(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered, and why a card is not (`left_out`: uuid -> reason).

    `mixed` are MIG instances by profile, each kind a resource of its own: Kubernetes counts them and the kubelet picks, so the
    cluster is not told of them. `pieces`: the devices are instances.
    """

    devices: tuple[Device, ...]
    mixed: dict[str, tuple[Device, ...]] = msgspec.field(default_factory=dict)
    pieces: bool = False
    left_out: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def digest(self) -> str:
        return device_set_digest(self.devices)


def device_set(
    cards: Sequence[Device], config: NodeConfig, health: Mapping[str, Health], instances: Sequence[Instance] = ()
) -> DeviceSet:
    """Cards as offered: split, scaled, with the health that is remembered of them. In order of index, so that it is stable."""
    left_out: dict[str, str] = {}
    allowed = []
    for card in sorted(cards, key=lambda each: (each.index, each.uuid)):
        if config.may_offer(card):
            allowed.append(card)
        else:
            left_out[card.uuid] = "excluded by the settings"
    found = in_pieces(allowed, instances, "none" if config.mode == MIG else config.mig_strategy)
    left_out |= found.left_out
    offered: list[Device] = []
    for card in found.cards:
        made, why = _offer(card, config, health.get(card.uuid, Health.HEALTHY))
        if made is None:
            left_out[card.uuid] = why
        else:
            offered.append(made)
    return DeviceSet(
        devices=tuple(offered) or _with_health(found.single, health),
        mixed={kind: _with_health(devices, health) for kind, devices in found.mixed.items()},
        pieces=bool(found.single),
        left_out=left_out,
    )


def differs(told: Sequence[Device] | None, now: DeviceSet) -> bool:
    """Whether the cluster must be told. Health alone is no reason: it has events of its own."""
    return told is None or device_set_digest(told) != now.digest


def _offer(card: Device, config: NodeConfig, health: Health) -> tuple[Device | None, str]:
    memory = card.memory or config.preconfigured_memory
    if memory <= 0:
        return None, "the library cannot tell its memory and the settings give none"
    profiles: tuple[MigProfile, ...] = ()
    if config.mode == MIG:
        why = _NOT_CUT.get(card.attributes.get(MIG, ""), "")
        profiles = allowed_profiles(card, config.mig_profiles)
        if why or not profiles:
            return None, why or "mode mig: no profile is allowed on it"
    scaled = memory if config.mode == MIG or config.memory_scaling == 1.0 else int(memory * config.memory_scaling)
    made = msgspec.structs.replace(
        card,
        memory=MiB(scaled),
        cores=CorePercent(100 if config.mode == MIG else int(config.core_scaling * 100)),
        slots=Slots(max((len(each.placements) for each in profiles), default=config.split_count)),
        mode=config.mode,
        health=health,
        mig_profiles=profiles,
    )
    return made, ""


def allowed_profiles(card: Device, rules: Sequence[ProfileRule]) -> tuple[MigProfile, ...]:
    if not rules:
        return tuple(each for each in card.mig_profiles if "+" not in each.name)
    rule = next((each for each in rules if any(model in card.model for model in each.models)), None)
    return tuple(each for each in card.mig_profiles if rule is not None and each.name in rule.profiles)


def _with_health(pieces: Sequence[Device], health: Mapping[str, Health]) -> tuple[Device, ...]:
    """An instance is no better than the card that it is part of, also one that was cut after the card's fault."""

    def worst(piece: Device) -> Health:
        both = (health.get(uuid, Health.HEALTHY) for uuid in (piece.uuid, piece.attributes[CARD]))
        return max(both, key=_FROM_GOOD_TO_BAD.index)

    return tuple(msgspec.structs.replace(each, health=worst(each)) for each in pieces)
