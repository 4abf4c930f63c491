"""decide for static MIG: instances that an operator cut -> devices of their own, by the node's strategy. Pure.

none     a card in MIG mode is listed as the whole card that it is not any more
single   every instance is a device of the node's one resource: all of one kind, on cards that are all cut
mixed    every kind of instance is a resource of its own (`nvidia.com/mig-1g.10gb`), whole cards stay what they were
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.domain.units import CorePercent, Slots
from hami.nodeagent.decide.mig import Instance

ENABLED: Final = "enabled"
SINGLE: Final = "single"
MIXED: Final = "mixed"
CARD: Final = "card"
"""Attribute of an instance's device: the card that it was cut from."""

CAPS: Final = "caps"
"""Attribute of an instance's device: further device nodes, separated by commas."""


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """`cards` are those that stay whole, `single` the instances that take their place, `mixed` those of further resources."""

    cards: tuple[Device, ...]
    single: tuple[Device, ...] = ()
    mixed: dict[str, tuple[Device, ...]] = msgspec.field(default_factory=dict)
    left_out: dict[str, str] = msgspec.field(default_factory=dict)


def in_pieces(cards: Sequence[Device], instances: Sequence[Instance], strategy: str) -> Pieces:
    """Without a card in MIG mode every strategy is `none`."""
    cut = {card.uuid: card for card in cards if card.attributes.get("mig") == ENABLED}
    if strategy not in {SINGLE, MIXED} or not cut:
        return Pieces(cards=tuple(cards))
    whole = tuple(card for card in cards if card.uuid not in cut)
    usable = [each for each in instances if each.card in cut and each.uuid and each.whole]
    odd = {each.uuid: "shares its GPU instance with others" for each in instances if each.uuid and not each.whole}
    empty = {uuid: "nothing is cut out of it" for uuid in cut if not any(each.card == uuid for each in usable)}
    if strategy == MIXED:
        kinds = sorted({each.profile for each in usable})
        mixed = {kind: tuple(as_device(cut[each.card], each) for each in usable if each.profile == kind) for kind in kinds}
        return Pieces(cards=whole, mixed=mixed, left_out={**odd, **empty})
    why = _not_single(whole, empty, usable)
    if why:
        return Pieces(cards=(), left_out={**odd, **{card.uuid: why for card in cards}})
    return Pieces(cards=(), single=tuple(as_device(cut[each.card], each) for each in usable), left_out=odd)


def resource_of(profile: str, resource: str) -> str:
    """The resource of a kind of instance, beside the node's own."""
    return f"{resource.rpartition('/')[0]}/mig-{profile.replace('+', '.')}"


def as_device(card: Device, instance: Instance) -> Device:
    """What a container sees of it. Nobody shares it: it is the smallest thing that the hardware keeps apart."""
    facts = {CARD: card.uuid, "minor": card.attributes.get("minor", ""), CAPS: ",".join(instance.caps)}
    return Device(
        uuid=instance.uuid,
        vendor=card.vendor,
        model=f"{card.model} MIG {instance.profile}",
        memory=instance.memory,
        cores=CorePercent(100),
        slots=Slots(1),
        index=card.index,
        numa=card.numa,
        mode="hami-core",
        attributes={key: value for key, value in facts.items() if value},
    )


def _not_single(whole: Sequence[Device], empty: dict[str, str], usable: Sequence[Instance]) -> str:
    """One resource cannot mean two things: then nothing is offered, rather than one for the other."""
    if whole:
        return "mig_strategy single: the node has cards that are not in MIG mode"
    if empty:
        return "mig_strategy single: the node has cards that nothing is cut out of"
    if len({(each.profile, each.memory) for each in usable}) > 1:
        return "mig_strategy single: the node has instances of several kinds"
    return ""
