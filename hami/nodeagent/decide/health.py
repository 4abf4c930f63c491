"""decide for health: a report, what is remembered of the card, the policy -> its new memory and perhaps a transition. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from hami.domain.device import Health
from hami.domain.units import EpochMs
from hami.nodeagent.decide.faults import (
    CardHealth,
    Evidence,
    Fault,
    FaultKind,
    HealthTransition,
    Observation,
    OpenFault,
    RecoveryMode,
    Scope,
    Severity,
    XidRule,
)
from hami.nodeagent.decide.repeats import BURST_MS, counted, final_after_return, kept_past, worn_by_repeats
from hami.nodeagent.decide.xid_policy import HAMI_IGNORED, HANGS_LIBRARY, RECOVERY_ACTIONS, UNLISTED, XID_RULES

POLICY_VERSION: Final = "xid-2"
FLAP_WINDOW_MS: Final = 24 * 3600 * 1000
FLAP_LIMIT: Final = 3
HOLD_MS: Final[Mapping[Severity, int]] = {
    Severity.OBSERVED: 0,
    Severity.DEGRADED: 600_000,
    Severity.UNTIL_RESET: 900_000,
    Severity.UNTIL_REPLACED: 900_000,
}
PEER_HOLD_MS: Final = 30_000

_STATE_FAULTS: Final[Mapping[FaultKind, tuple[Severity, Scope, str]]] = {
    FaultKind.ECC_DOUBLE_BIT: (Severity.UNTIL_RESET, Scope.GPU, "uncorrectable ECC error"),
    FaultKind.GPU_LOST: (Severity.UNTIL_RESET, Scope.GPU, "GPU is lost"),
    FaultKind.RESET_REQUIRED: (Severity.UNTIL_RESET, Scope.GPU, "GPU requires a reset"),
    FaultKind.GPU_UNAVAILABLE: (Severity.UNTIL_RESET, Scope.GPU, "GPU is unavailable"),
    FaultKind.RETIREMENT_FAILURE: (Severity.UNTIL_RESET, Scope.GPU, "memory retirement failed"),
    FaultKind.POISON_FATAL: (Severity.UNTIL_RESET, Scope.GPU, "uncontained memory poison"),
    FaultKind.POISON_CONTAINED: (Severity.OBSERVED, Scope.INSTANCE, "contained memory poison"),
    FaultKind.RECOVERY_ACTION: (Severity.OBSERVED, Scope.GPU, "recovery action"),
    FaultKind.ECC_UNCORRECTED: (Severity.DEGRADED, Scope.GPU, "uncorrected ECC errors"),
    FaultKind.ROW_REMAPPED: (Severity.OBSERVED, Scope.GPU, "memory rows remapped"),
    FaultKind.REMAP_PENDING: (Severity.DEGRADED, Scope.GPU, "a memory remap waits for a reset"),
    FaultKind.SRAM_THRESHOLD: (Severity.UNTIL_REPLACED, Scope.GPU, "SRAM errors above the threshold"),
    FaultKind.UNREPAIRABLE: (Severity.UNTIL_REPLACED, Scope.GPU, "memory cannot be repaired"),
    FaultKind.PEER_LINK: (Severity.DEGRADED, Scope.LINK, "link fault at a linked card"),
}
_MEMORY_LEVELS: Final = frozenset({FaultKind.ECC_UNCORRECTED, FaultKind.REMAP_PENDING, FaultKind.ROW_REMAPPED})
_MEMORY_KINDS: Final = _MEMORY_LEVELS | {FaultKind.ECC_DOUBLE_BIT, FaultKind.RETIREMENT_FAILURE, FaultKind.POISON_FATAL}
_MEMORY_XIDS: Final = frozenset({48, 63, 64, 94, 95, 140, 157, 171, 172})
_MAY_DEFER: Final = frozenset({FaultKind.POISON_FATAL, FaultKind.GPU_UNAVAILABLE, FaultKind.RECOVERY_ACTION})


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which XIDs count how. `ignored` are observed only, `fatal` condemn whatever the table says; the two never overlap.

    `strict_rest`: numbers in neither set condemn the card, as HAMi has it. `off`: no report about a card counts at all.
    """

    profile: str = "default"
    ignored: frozenset[int] = frozenset()
    fatal: frozenset[int] = frozenset()
    strict_rest: bool = False
    off: bool = False

    @property
    def version(self) -> str:
        return f"{POLICY_VERSION}/{self.profile}"


def policy_of(profile: str = "default", *, disable: str = "", enable: str = "") -> HealthPolicy:
    """The policy behind a profile and HAMi's variables DP_DISABLE_HEALTHCHECKS (`disable`) and DP_ENABLE_HEALTHCHECKS.

    Comma lists; `all` or `xids` disables everything, a number ignores that XID, anything else is passed over. What is enabled
    by number wins over every way of disabling: `all` disabled and `79` enabled watches 79 alone.
    """
    disabled, enabled = _words(disable), _words(enable)
    strict = profile == "hami"
    all_off, all_on = bool(disabled & {"all", "xids"}), "all" in enabled
    on, off = _numbers(enabled), _numbers(disabled)
    if all_off and not all_on:
        return HealthPolicy(profile=profile, ignored=frozenset(XID_RULES) - on, fatal=on, off=not on)
    ignored = frozenset() if all_on else (off | (HAMI_IGNORED if strict else frozenset())) - on
    return HealthPolicy(profile=profile, ignored=ignored, fatal=on, strict_rest=strict)


def observe(card: CardHealth, fault: Fault, policy: HealthPolicy, *, now: EpochMs, boot_id: str = "") -> Observation:
    """What a report does to a card. A harmless code never hides a worse one; a follow-on never escalates alone."""
    if policy.off:
        return Observation(card=card)
    if fault.kind is FaultKind.ANSWERS_AGAIN:
        return _observation(card, msgspec.structs.replace(card, unreachable=""), "the card answers again", policy)
    if fault.kind is FaultKind.UNREACHABLE:
        said = fault.detail or "the card cannot be asked"
        after = msgspec.structs.replace(card, unreachable=said, clean_since_ms=EpochMs(0))
        return _observation(card, after, said, policy, fresh=card.unreachable != said)
    opened = _classify(fault, policy, now, boot_id)
    earlier = next((old for old in card.faults if old.key == opened.key), None)
    fresh = earlier is None or abs(now - earlier.last_ms) >= BURST_MS
    rule = _rule_of(fault, policy)
    opened = final_after_return(card, counted(opened, earlier, fault.workloads), rule)
    if rule is not None:
        opened = worn_by_repeats(opened, rule)
    kept = tuple(old for old in card.faults if rule is None or old.kind is not FaultKind.XID or old.code not in rule.cancels)
    after = msgspec.structs.replace(card, faults=_join(kept, opened), clean_since_ms=EpochMs(0))
    return _observation(card, after, _describe(fault), policy, fresh=fresh and fault.kind is not FaultKind.PEER_LINK)


def reaches_linked(fault: Fault, policy: HealthPolicy) -> bool:
    """Whether the cards at the other ends of this card's links are in doubt, until each says that it is not."""
    if policy.off or fault.kind in {FaultKind.ANSWERS_AGAIN, FaultKind.UNREACHABLE, FaultKind.PEER_LINK}:
        return False
    severity, scope, _, _ = _verdict(fault, policy)
    return scope is Scope.LINK and severity is not Severity.OBSERVED


def weight(fault: Fault, policy: HealthPolicy) -> tuple[Severity, Scope]:
    """How bad a report is by itself, and for whom."""
    severity, scope, _, _ = _verdict(fault, policy)
    return severity, scope


def hangs_library(card: CardHealth) -> bool:
    """Whether a library that does not answer any more is this card's doing."""
    return any(fault.kind is FaultKind.XID and fault.code in HANGS_LIBRARY for fault in card.faults)


def reaches_node(fault: Fault, policy: HealthPolicy) -> bool:
    """Whether a report about one card speaks of the whole machine: then no card of it is given out."""
    if policy.off or fault.kind in {FaultKind.ANSWERS_AGAIN, FaultKind.UNREACHABLE}:
        return False
    severity, scope, _, _ = _verdict(fault, policy)
    return scope is Scope.NODE and severity is not Severity.OBSERVED


def recover(card: CardHealth, evidence: Evidence, policy: HealthPolicy, *, now: EpochMs) -> Observation:
    """Whether a card's faults may be forgotten. All evidence must hold for the whole hold time; unknown proves nothing.

    The third recovery within a day is refused: then an operator decides.
    """
    open_faults = tuple(fault for fault in card.faults if fault.severity is not Severity.OBSERVED)
    if not open_faults:
        return Observation(card=card)
    if not all(_proven(fault, evidence) for fault in open_faults) or card.unreachable or card.forgotten:
        return Observation(card=msgspec.structs.replace(card, clean_since_ms=EpochMs(0)))
    since = card.clean_since_ms if 0 < card.clean_since_ms <= now else now  # a clock that was set back starts the hold anew
    if now - since < max(_hold_ms(fault) for fault in open_faults):
        return Observation(card=msgspec.structs.replace(card, clean_since_ms=since))
    recent = tuple(at for at in card.recoveries if now - at < FLAP_WINDOW_MS)
    if len(recent) >= FLAP_LIMIT - 1:
        return Observation(card=msgspec.structs.replace(card, clean_since_ms=since, recoveries=recent))
    cleared = CardHealth(uuid=card.uuid, recoveries=(*recent, now), counters=card.counters, past=kept_past(card, now))
    return _observation(card, cleared, f"recovered: {_evidence_text(evidence)}", policy)


def acknowledge(card: CardHealth, actor: str, policy: HealthPolicy) -> Observation:
    """An operator declares the card good: the only way out of `until replaced`."""
    after = CardHealth(uuid=card.uuid, unreachable=card.unreachable, counters=card.counters)
    return _observation(card, after, f"acknowledged by {actor}", policy)


def recalled(
    card: CardHealth, health: Health, reason: str, policy: HealthPolicy, *, now: EpochMs, boot_id: str = ""
) -> Observation:
    """What the log holds of a card whose record was lost here. It may be worse than what is known here, never better.

    Which fault it was is not known any more: a card that the log has as unhealthy waits for an operator.
    """
    after = msgspec.structs.replace(card, forgotten="")
    sick = health is Health.UNHEALTHY
    if sick or health is Health.SUSPECT:
        fault = OpenFault(
            kind=FaultKind.RECORDED,
            severity=Severity.UNTIL_RESET if sick else Severity.DEGRADED,
            scope=Scope.GPU,
            reason=reason or "as the log has it",
            auto_recover=not sick,
            first_ms=now,
            last_ms=now,
            boot_id=boot_id,
        )
        after = msgspec.structs.replace(after, faults=_join(after.faults, fault), clean_since_ms=EpochMs(0))
    return _observation(card, after, "as the log has it; the record of this node was lost", policy)


def kubelet_healthy(health: Health) -> bool:
    """The kubelet knows two words. A suspect card stays offered (the scheduler avoids it); an unknown one does not."""
    return health in {Health.HEALTHY, Health.SUSPECT}


def _hold_ms(fault: OpenFault) -> int:
    return PEER_HOLD_MS if fault.kind is FaultKind.PEER_LINK else HOLD_MS[fault.severity]


def _rule_of(fault: Fault, policy: HealthPolicy) -> XidRule | None:
    """The table's row where it counts; what an operator ignores never adds up."""
    if fault.kind is not FaultKind.XID or fault.code in policy.ignored:
        return None
    return XID_RULES.get(fault.code)


def _classify(fault: Fault, policy: HealthPolicy, now: EpochMs, boot_id: str) -> OpenFault:
    severity, scope, reason, auto = _verdict(fault, policy)
    return OpenFault(
        kind=fault.kind,
        code=fault.code if fault.kind is FaultKind.XID else 0,
        severity=severity,
        scope=scope,
        reason=reason,
        auto_recover=auto,
        gpu_instance=fault.gpu_instance,
        first_ms=now,
        last_ms=now,
        boot_id=boot_id,
    )


def _verdict(fault: Fault, policy: HealthPolicy) -> tuple[Severity, Scope, str, bool]:
    if fault.kind is not FaultKind.XID:
        severity, scope, reason = _STATE_FAULTS[fault.kind]
        mode = RecoveryMode.DEFER if fault.kind in _MAY_DEFER else RecoveryMode.RAISE_ONLY
        if fault.kind is FaultKind.RECOVERY_ACTION and fault.recovery_action is None:
            return Severity.OBSERVED, scope, "recovery action changed and cannot be read", True
        return *_with_action(fault, severity, scope, reason, mode), True
    rule = XID_RULES.get(fault.code, UNLISTED)
    reason = f"XID {fault.code}" if rule is UNLISTED else f"XID {fault.code} {rule.name}".strip()
    if fault.code in policy.fatal or (policy.strict_rest and fault.code not in policy.ignored):
        return max(rule.severity, Severity.UNTIL_RESET), rule.scope, reason, rule.auto_recover
    if fault.code in policy.ignored:
        return Severity.OBSERVED, rule.scope, reason, True
    if rule.follow_on:
        return Severity.OBSERVED, rule.scope, reason, True
    return *_with_action(fault, rule.severity, rule.scope, reason, rule.mode), rule.auto_recover


def _with_action(
    fault: Fault, severity: Severity, scope: Scope, reason: str, mode: RecoveryMode
) -> tuple[Severity, Scope, str]:
    """The driver's own verdict on top of the table's. An unknown value is taken for a needed reset."""
    if fault.recovery_action is None:
        return severity, scope, reason
    name, asked, wide = RECOVERY_ACTIONS.get(
        fault.recovery_action, (f"action {fault.recovery_action}", Severity.UNTIL_RESET, Scope.GPU)
    )
    if asked >= severity and asked > Severity.OBSERVED:
        return asked, wide, f"{reason}, driver asks for {name}"
    return (asked, scope, reason) if mode is RecoveryMode.DEFER else (severity, scope, reason)


def _join(faults: tuple[OpenFault, ...], new: OpenFault) -> tuple[OpenFault, ...]:
    """Repeats of the same fault count once and keep the worse verdict."""
    for at, old in enumerate(faults):
        if old.key == new.key:
            worse = new if new.severity > old.severity else old
            merged = msgspec.structs.replace(
                worse,
                first_ms=old.first_ms,
                last_ms=new.last_ms,
                count=old.count + 1,
                bursts=new.bursts,
                boot_id=new.boot_id,
            )
            return (*faults[:at], merged, *faults[at + 1 :])
    return (*faults, new)


def _proven(fault: OpenFault, evidence: Evidence) -> bool:
    if not fault.auto_recover or fault.severity is Severity.UNTIL_REPLACED:
        return False
    if evidence.probe_passed is not True or evidence.memory_clean is False:
        return False
    if evidence.memory_clean is None and (fault.kind in _MEMORY_KINDS or fault.code in _MEMORY_XIDS):
        return False
    if fault.kind in _MEMORY_LEVELS:
        return evidence.memory_clean is True and evidence.recovery_action in {0, None}
    if fault.severity is Severity.UNTIL_RESET:
        rebooted = bool(evidence.boot_id) and evidence.boot_id != fault.boot_id
        return rebooted and evidence.recovery_action in {0, None}
    return evidence.recovery_action == 0


def _observation(
    before: CardHealth, after: CardHealth, evidence: str, policy: HealthPolicy, *, fresh: bool = False
) -> Observation:
    if (before.health, before.reason) == (after.health, after.reason):
        return Observation(card=after, fresh=fresh)
    transition = HealthTransition(
        uuid=after.uuid,
        before=before.health,
        after=after.health,
        severity=after.severity,
        reason=after.reason,
        evidence=evidence,
        policy_version=policy.version,
    )
    return Observation(card=after, transition=transition, fresh=fresh)


def _describe(fault: Fault) -> str:
    parts = [f"XID {fault.code}" if fault.kind is FaultKind.XID else fault.kind.value]
    if fault.gpu_instance is not None:
        parts.append(f"gpu instance {fault.gpu_instance}")
    if fault.recovery_action is not None:
        parts.append(f"recovery action {fault.recovery_action}")
    if fault.detail:
        parts.append(fault.detail)
    return ", ".join(parts)


def _evidence_text(evidence: Evidence) -> str:
    action = "not readable" if evidence.recovery_action is None else str(evidence.recovery_action)
    return f"probe passed, recovery action {action}, boot {evidence.boot_id or 'unchanged'}"


def _words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",") if word.strip()}


def _numbers(words: set[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if word.isdecimal())
