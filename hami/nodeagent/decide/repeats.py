"""decide for repeats: when a harmless code counts against the card, and when a fault that came back is final. Pure."""

from typing import Final

import msgspec

from hami.domain.units import EpochMs
from hami.nodeagent.decide.faults import Burst, CardHealth, FaultKind, OpenFault, Past, Repeat, Severity, XidRule

BURST_MS: Final = 180_000
REPEAT_WINDOW_MS: Final = 24 * 3600 * 1000
RETURN_WINDOW_MS: Final = 30 * 24 * 3600 * 1000
REPEATS: Final = 3
KEPT_BURSTS: Final = 16


def counted(fault: OpenFault, earlier: OpenFault | None, workloads: tuple[str, ...]) -> OpenFault:
    """The fault with its bursts: another one begins when the last report is long enough ago."""
    now = fault.last_ms
    bursts = () if earlier is None else earlier.bursts
    if earlier is None or now - earlier.last_ms >= BURST_MS:
        bursts = (*bursts, Burst(now, workloads))
    kept = [each for each in bursts if now - each.at_ms < REPEAT_WINDOW_MS]
    return msgspec.structs.replace(fault, bursts=tuple(kept[-KEPT_BURSTS:]))


def worn_by_repeats(fault: OpenFault, rule: XidRule) -> OpenFault:
    """A burst counts, not a line. An application's code needs bursts that no single workload was there for: one broken
    program crashes everywhere, a broken card crashes everyone.
    """
    if rule.repeat is Repeat.NEVER or len(fault.bursts) < REPEATS or fault.severity is not Severity.OBSERVED:
        return fault
    if rule.repeat is Repeat.WORKLOADS and not _nobody_common(fault.bursts):
        return fault
    return msgspec.structs.replace(fault, severity=Severity.DEGRADED, reason=f"{fault.reason}, repeatedly")


def final_after_return(card: CardHealth, fault: OpenFault, rule: XidRule | None) -> OpenFault:
    """What a reset did not cure, the next one will not either. Without a boot to name, nothing is proven."""
    if fault.severity is not Severity.UNTIL_RESET or not fault.boot_id:
        return fault
    lives = {each.boot_id for each in card.faults if _same_story(each, fault)}
    if rule is not None and rule.worn_out_by_return:
        recent = (past for past in card.past if fault.last_ms - past.at_ms < RETURN_WINDOW_MS)
        lives |= {past.boot_id for past in recent if past.code == fault.code}
    elif fault.kind not in {FaultKind.GPU_LOST, FaultKind.RETIREMENT_FAILURE}:
        return fault
    if lives - {"", fault.boot_id}:
        return msgspec.structs.replace(
            fault, severity=Severity.UNTIL_REPLACED, auto_recover=False, reason=f"{fault.reason}, again after a reset"
        )
    return fault


def kept_past(card: CardHealth, now: EpochMs) -> tuple[Past, ...]:
    """What a recovered card takes along, so that a return within a month is known for one."""
    old = [each for each in card.past if now - each.at_ms < RETURN_WINDOW_MS]
    new = [Past(each.code, each.last_ms, each.boot_id) for each in card.faults if each.kind is FaultKind.XID and each.boot_id]
    severe = {each.code for each in card.faults if each.severity >= Severity.UNTIL_RESET}
    return (*old, *(each for each in new if each.code in severe))


def _same_story(old: OpenFault, new: OpenFault) -> bool:
    """A card that fell off the bus and is missing after the reboot; a failed retirement that a reset did not mend."""
    if old.key == new.key:
        return True
    after = {FaultKind.GPU_LOST: 79, FaultKind.RETIREMENT_FAILURE: 64}
    return old.kind is FaultKind.XID and old.code == after.get(new.kind)


def _nobody_common(bursts: tuple[Burst, ...]) -> bool:
    """Bursts at which nobody is known to have held the card prove nothing either way."""
    known = [set(each.workloads) for each in bursts if each.workloads]
    return len(known) > 1 and not set.intersection(*known)
