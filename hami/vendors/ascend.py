"""Huawei Ascend: one vendor per chip of the configuration.

A card is cut by the chip's templates: memory is rounded up to the next one at admission, and what is larger than all of them is
the whole card. Pods annotated `huawei.com/vnpu-mode: hami-core` share cards by memory and cores instead (soft split), on nodes
that can do so: the node annotation `hami-vnpu-core` says it, else `vnpus.hamiVnpuCore`. Several cards come from one network
where they can; of a super pod, cards are taken in pairs.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from hami.domain.device import Device
from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, EnvVar, Node, Pod, Quantity, Resources
from hami.vendors import quantities
from hami.vendors.config import AscendChip, AscendConfig, AscendTemplate
from hami.vendors.registers import listed
from hami.vendors.vendor import AnnotationKeys, Changes, Check, Refused, ResourceNames, Score, Select, Vendor, Writing

MODE: Final = "huawei.com/vnpu-mode"
SOFT: Final = "hami-core"
NETWORK: Final = "NetworkID"
"""What a card says of itself: the network it is on."""
SOFT_SPLIT: Final = "hami-vnpu-core"
"""The node annotation, and the card's attribute made of it: `true` where cards can be shared softly."""

_TIME: Final = "predicate-time"
_VISIBLE_ENV: Final = "ASCEND_VISIBLE_DEVICES"
_NETWORKED: Final = "Ascend910"
_PAIRED: Final = "Ascend910C"
_CHECKS: Final = (
    Check.HEALTH,
    Check.CORDON,
    Check.TYPE,
    Check.UUID,
    Check.SLOTS,
    Check.MUTEX,
    Check.MEMORY,
    Check.SPLIT_CORES,
    Check.SPLIT_EXCLUSIVE,
    Check.SPLIT_EXHAUSTED,
)


class _Given(msgspec.Struct, omit_defaults=True, rename={"uuid": "UUID", "template": "temp"}):
    """One share as the device plugin reads it."""

    uuid: str
    template: str = ""
    memory: int = 0
    core: int = 0


def vendors(config: AscendConfig) -> tuple[Vendor, ...]:
    counts = tuple(each.count for each in config.configs)
    blinder = next((each.word for each in config.configs if each.overwrite_env), "")
    return tuple(
        _vendor(chip, soft_split=config.soft_split, blinds=counts if chip.word == blinder else ()) for chip in config.configs
    )


def _vendor(chip: AscendChip, *, soft_split: bool, blinds: tuple[str, ...]) -> Vendor:
    word = chip.word
    networked = word.startswith(_NETWORKED)
    return Vendor(
        word=word,
        about=__doc__ or "",
        resources=ResourceNames(count=chip.count, memory=chip.memory, cores=chip.cores),
        keys=AnnotationKeys(
            allocated=f"hami.io/{word}-devices-allocated",
            to_allocate=f"hami.io/{word}-devices-to-allocate",
            register=f"hami.io/node-register-{word}",
            handshake=f"hami.io/node-handshake-{word}",
            lock="hami.io/mutex.lock",
            use_uuid=f"hami.io/use-{word}-uuid",
            nouse_uuid=f"hami.io/no-use-{word}-uuid",
        ),
        memory_factor=max(chip.memory_factor, 1),
        percent_beside_memory=0,
        runtime_class=chip.runtime_class,
        checks=_CHECKS,
        select=Select.CARD_PAIRS if word == _PAIRED else Select.NETWORK_GROUPS if networked else Select.SPLIT,
        score=Score.SAME_NETWORK if networked else Score.NONE,
        pod_keys=(MODE,),
        soft_split=soft_split,
        admit=partial(admit, chip, blinds),
        discover=discover,
        annotate=partial(annotate, chip),
        differs=("B7", "V20.2", *(("V20.7", "sort") if word == _PAIRED else ()), "ascend-env", "null-card"),
    )


def template_for(chip: AscendChip, memory: int) -> AscendTemplate | None:
    """The smallest one with this much memory; None where only the whole card has it."""
    fitting = [each for each in chip.templates if each.memory >= memory]
    return min(fitting, key=lambda each: each.memory, default=None)


def admit(chip: AscendChip, blinds: tuple[str, ...], container: Container, pod: Pod, vendor: Vendor) -> Changes | Refused:
    """Limits decide: they name the cards, and memory, rounded, is written beside them. `blinds`: see `_blind`."""
    names = vendor.resources
    given = container.resources or Resources()
    limits = given.limits or {}
    if names.count not in limits:
        return Changes(env=_blind(limits, blinds))
    count = quantities.as_integer(limits[names.count]) or 0
    pair = count == 1 and _in_pairs(chip)
    if count % 2 and _in_pairs(chip) and not pair:
        return Refused(f"{chip.word} device request must be 1 or 2*n, got {count}")
    soft = pod.metadata.notes.get(MODE) == SOFT
    if not soft and (quantities.as_integer(limits.get(names.cores, 0)) or 0) > 0:
        return Refused(f"{names.cores} is only supported in {SOFT} (soft split) mode")
    size = _size(chip, limits.get(names.memory), vendor, soft=soft)
    if isinstance(size, Refused):
        return size
    if size.sliced and count > 1:
        return Refused("vNPU not supported for multiple devices")
    if size.sliced and pair:
        return Refused(f"{names.count} 1 means a pair of devices in a super pod, and vNPU not supported for multiple devices")
    added = {names.count: "2"} if pair else {}
    memory = {names.memory: size.written} if names.memory else {}
    both = added if names.count in (given.requests or {}) else {}
    return Changes(claims=True, limits={**added, **memory}, requests={**both, **memory})


def _in_pairs(chip: AscendChip) -> bool:
    return chip.super_pod and chip.word == _PAIRED


def _blind(limits: Mapping[str, Quantity], family: tuple[str, ...]) -> tuple[EnvVar, ...]:
    """A container that asks for none of the family's cards sees none, where that is configured; one chip says it for all."""
    if not family or any(name in limits for name in family):
        return ()
    return (EnvVar(name=_VISIBLE_ENV, value=""),)


class _Size(msgspec.Struct, frozen=True):
    """Memory as admission writes it. `sliced`: it is part of a card, cut by a template."""

    written: Quantity
    sliced: bool = False


def _size(chip: AscendChip, asked: Quantity | None, vendor: Vendor, *, soft: bool) -> _Size | Refused:
    """Numbers are held against the templates as they are written, whatever the memory factor, as in HAMi; bytes as MiB.

    What cannot be read stays as it is: `requests.malformed` refuses it.
    """
    if asked is None:
        return _Size(str(chip.allocatable))
    number, in_bytes = _number(vendor.resources.memory, asked)
    if soft or number is None:
        return _Size(asked)
    unit = "Mi" if in_bytes and vendor.memory_factor > 1 else ""
    template = template_for(chip, number)
    if template is not None:
        return _Size(f"{template.memory}{unit}", sliced=True)
    if number <= chip.capacity:
        return _Size(f"{chip.allocatable}{unit}")
    return Refused(f"{vendor.resources.memory} {asked} is invalid")


def _number(field: str, asked: Quantity) -> tuple[int | None, bool]:
    """A size, and whether it was written in bytes. None where it cannot be read."""
    try:
        number, in_bytes = quantities.exact(field, asked)
    except InvalidInput:
        return None, False
    if in_bytes:
        number /= 2**20
    return (int(number) if number >= 0 and number.denominator == 1 else None), in_bytes


def discover(node: Node, vendor: Vendor) -> tuple[Device, ...]:
    """What the node says of soft split goes with every card, so that a decision needs no more than the cards."""
    found = listed(node, vendor)
    said = node.metadata.notes.get(SOFT_SPLIT)
    if said is None:
        return found
    return tuple(msgspec.structs.replace(each, attributes={**each.attributes, SOFT_SPLIT: said}) for each in found)


def annotate(chip: AscendChip, writing: Writing, vendor: Vendor) -> Mapping[str, str]:
    """The plugin looks a container's cut up by the card: one list for the whole pod."""
    soft = writing.request.annotations.get(MODE) == SOFT
    given = [
        _Given(
            uuid=share.uuid,
            template="" if soft or (template := template_for(chip, share.memory)) is None else template.name,
            memory=share.memory,
            core=share.cores,
        )
        for container in writing.containers
        for share in container.shares
    ]
    return {f"huawei.com/{vendor.word}": msgspec.json.encode(given).decode(), _TIME: str(writing.now_s)}
