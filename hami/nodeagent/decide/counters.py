"""decide for counters: what a card counted before and counts now -> the faults that this shows. Pure."""

from hami.nodeagent.decide.faults import Counters, Fault, FaultKind


def shown(uuid: str, before: Counters, now: Counters) -> tuple[Fault, ...]:
    """Levels hold as long as they are read; a counter speaks by its growth.

    The first look takes the volatile counter whole: what it holds happened since the last reset, unseen by anybody. A
    lifetime counter says nothing at first sight.
    """
    levels = (
        (now.remap_failure, FaultKind.RETIREMENT_FAILURE),
        (now.remap_pending, FaultKind.REMAP_PENDING),
        (now.sram_threshold, FaultKind.SRAM_THRESHOLD),
        (now.unrepairable, FaultKind.UNREPAIRABLE),
    )
    growth = (
        (_grown(before.uncorrected or 0, now.uncorrected), FaultKind.ECC_UNCORRECTED),
        (_grown(before.remapped, now.remapped), FaultKind.ROW_REMAPPED),
    )
    return (
        *(Fault(uuid=uuid, kind=kind) for holds, kind in levels if holds),
        *(Fault(uuid=uuid, kind=kind, code=more, detail=f"{more} more") for more, kind in growth if more),
    )


def remembered(before: Counters, now: Counters) -> Counters:
    """What the next look compares with: a counter that cannot be read now keeps its last value."""
    return Counters(
        uncorrected=before.uncorrected if now.uncorrected is None else now.uncorrected,
        remapped=before.remapped if now.remapped is None else now.remapped,
    )


def _grown(before: int | None, now: int | None) -> int:
    """A counter below its last value was reset in between: all it holds is new."""
    if before is None or now is None:
        return 0
    return now - before if now >= before else now
