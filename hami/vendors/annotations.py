"""The text other programs read: HAMi's annotation values, byte for byte.

    pod devices      UUID,TYPE,MEM,CORES:UUID,...:;   one `;` per container, init containers first
    node register    JSON array, zero members left out; or the older colon form
    MIG              JSON array of planned (or realised) instances

Decoding errors are InvalidInput and name the segment.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.device import MigPlacement, MigSlice
from hami.domain.errors import InvalidInput
from hami.domain.units import CorePercent, MiB
from hami.vendors.quantities import INT32_MAX

_INT32_MIN: Final = -(2**31)


class DeviceEntry(msgspec.Struct, frozen=True, array_like=True):
    """One device of one container as written: uuid, type word, MiB, cores."""

    uuid: str
    type: str
    memory: int
    cores: int


def encode_devices(entries: Iterable[DeviceEntry]) -> str:
    return "".join(f"{each.uuid},{each.type},{each.memory},{each.cores}:" for each in entries)


def encode_pod(containers: Iterable[Iterable[DeviceEntry]]) -> str:
    return "".join(encode_devices(container) + ";" for container in containers)


def decode_devices(text: str, field: str = "devices") -> tuple[DeviceEntry, ...]:
    """Segments without a comma are skipped, further members after the fourth ignored, as HAMi does."""
    found = []
    for number, segment in enumerate(text.split(":")):
        if "," not in segment:
            continue
        parts = segment.split(",")
        if len(parts) < 4:
            raise InvalidInput(f"{field}, device {number}", segment, "needs uuid, type, memory and cores")
        where = f"{field}, device {number}"
        found.append(DeviceEntry(parts[0], parts[1], _int32(where, "memory", parts[2]), _int32(where, "cores", parts[3])))
    return tuple(found)


def decode_pod(text: str, field: str = "devices") -> list[tuple[DeviceEntry, ...]]:
    """One entry per container; the text after the last `;` counts as one more, mostly empty: positions matter."""
    return [decode_devices(part, f"{field}, container {position}") for position, part in enumerate(text.split(";"))]


def encode_shares(containers: Sequence[ContainerShares], vendor: str) -> str:
    """One vendor's view of a placement: every container has its `;`, whether it holds this vendor's devices or not."""
    return encode_pod(
        [
            DeviceEntry(share.uuid, share.model or vendor, share.memory, share.cores)
            for share in each.shares
            if share.vendor == vendor
        ]
        for each in containers
    )


def _int32(where: str, what: str, text: str) -> int:
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidInput(f"{where}, {what}", text, "is not a number")
    number = int(text)
    if not _INT32_MIN <= number <= INT32_MAX:
        raise InvalidInput(f"{where}, {what}", text, "does not fit 32 bits")
    return number


class MigEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One MIG instance of a pod: planned, or realised when all three runtime ids are there."""

    container_index: int = msgspec.field(name="containerIndex")
    device_index: int = msgspec.field(name="deviceIndex")
    gpu_uuid: str = msgspec.field(name="gpuUUID")
    profile: str
    placement: MigPlacement
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance: int | None = msgspec.field(name="computeInstanceID", default=None)


class _RawPlacement(msgspec.Struct, frozen=True):
    start: int = 0
    size: int = 0


class _RawMig(msgspec.Struct, frozen=True, kw_only=True):
    containerIndex: int = 0  # noqa: N815 - wire name
    deviceIndex: int = 0  # noqa: N815 - as on the wire
    gpuUUID: str = ""  # noqa: N815 - as on the wire
    profile: str = ""
    placement: _RawPlacement = _RawPlacement()
    migUUID: str | None = None  # noqa: N815 - as on the wire
    gpuInstanceID: int | None = None  # noqa: N815 - as on the wire
    computeInstanceID: int | None = None  # noqa: N815 - as on the wire


_MIG: Final = msgspec.json.Decoder(list[_RawMig] | None)


def encode_mig(entries: Sequence[MigEntry]) -> str:
    return msgspec.json.encode(entries).decode()


def mig_entries(containers: Sequence[ContainerShares]) -> tuple[MigEntry, ...]:
    """The MIG instances of a placement. `device_index` counts a container's devices, MIG or not."""
    return tuple(
        MigEntry(
            container_index=position,
            device_index=number,
            gpu_uuid=share.uuid,
            profile=share.mig.profile,
            placement=share.mig.placement,
        )
        for position, container in enumerate(containers)
        for number, share in enumerate(container.shares)
        if share.mig is not None
    )


def decode_mig(text: str) -> tuple[MigEntry, ...]:
    if text == "":
        return ()
    try:
        raw = _MIG.decode(text) or []
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput("MIG allocations", text, str(error)) from None
    seen: set[tuple[int, int]] = set()
    found = []
    for number, each in enumerate(raw):
        where = f"MIG allocation {number}"
        if min(each.containerIndex, each.deviceIndex, each.placement.start) < 0:
            raise InvalidInput(where, each, "has a negative index")
        if not each.gpuUUID or not each.profile or each.placement.size <= 0:
            raise InvalidInput(where, each, "is incomplete: needs gpuUUID, profile and a placement")
        identity = (bool(each.migUUID), each.gpuInstanceID is not None, each.computeInstanceID is not None)
        if any(identity) and not all(identity):
            raise InvalidInput(where, each, "has a partial runtime identity")
        if (each.containerIndex, each.deviceIndex) in seen:
            raise InvalidInput(where, each, "repeats a container and device index")
        seen.add((each.containerIndex, each.deviceIndex))
        found.append(_mig_entry(each))
    return tuple(found)


def _mig_entry(raw: _RawMig) -> MigEntry:
    return MigEntry(
        container_index=raw.containerIndex,
        device_index=raw.deviceIndex,
        gpu_uuid=raw.gpuUUID,
        profile=raw.profile,
        placement=MigPlacement(raw.placement.start, raw.placement.size),
        mig_uuid=raw.migUUID,
        gpu_instance=raw.gpuInstanceID,
        compute_instance=raw.computeInstanceID,
    )


def shares_from(
    entries: Sequence[DeviceEntry], vendor: str, mig: Sequence[MigEntry], position: int, note: str = ""
) -> tuple[DeviceShare, ...]:
    """Annotation entries of one container back into shares; MIG instances matched by container and device index."""
    planned = {each.device_index: each for each in mig if each.container_index == position}
    found = []
    for number, entry in enumerate(entries):
        instance = planned.get(number)
        piece = None
        if instance is not None and instance.gpu_uuid == entry.uuid:
            piece = MigSlice(instance.profile, instance.placement, instance.mig_uuid or "")
        found.append(_share(entry, vendor, piece, note))
    return tuple(found)


def _share(entry: DeviceEntry, vendor: str, piece: MigSlice | None, note: str) -> DeviceShare:
    return DeviceShare(
        vendor=vendor,
        uuid=entry.uuid,
        memory=MiB(entry.memory),
        cores=CorePercent(entry.cores),
        model=entry.type,
        mig=piece,
        note=note,
    )
