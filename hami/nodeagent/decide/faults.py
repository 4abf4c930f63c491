"""The words of health: what went wrong, how bad it is, what is remembered of a card."""

from enum import IntEnum, StrEnum

import msgspec

from hami.domain.device import Health
from hami.domain.units import EpochMs


class FaultKind(StrEnum):
    """What a backend can report. XID carries its number in `code`."""

    XID = "xid"
    ECC_DOUBLE_BIT = "ecc-double-bit"
    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    GPU_UNAVAILABLE = "gpu-unavailable"
    RETIREMENT_FAILURE = "retirement-failure"
    POISON_FATAL = "poison-fatal"
    POISON_CONTAINED = "poison-contained"
    RECOVERY_ACTION = "recovery-action"
    ECC_UNCORRECTED = "ecc-uncorrected"
    """The counter of uncorrected errors has grown; `code` is by how much."""
    ROW_REMAPPED = "row-remapped"
    """Rows were remapped, or pages retired, after uncorrectable errors; `code` is how many more."""
    REMAP_PENDING = "remap-pending"
    """A remap or a page retirement waits for a reset; the card goes on working."""
    SRAM_THRESHOLD = "sram-threshold"
    UNREPAIRABLE = "unrepairable-memory"
    PEER_LINK = "peer-link"
    """A card at the other end of a link has a link fault; decided here, no backend reports it."""
    UNREACHABLE = "unreachable"
    """The card could not be asked (library error, deadline): nothing is known of it, good or bad."""
    RECORDED = "recorded"
    """What the log holds against a card whose record was lost here; decided here, no backend reports it."""
    ANSWERS_AGAIN = "answers-again"
    """A card that was unreachable answers. Not a fault: it ends UNREACHABLE and nothing else."""


class Severity(IntEnum):
    """The lattice. A card stands at the largest severity of its open faults."""

    OBSERVED = 0
    DEGRADED = 1
    UNTIL_RESET = 2
    UNTIL_REPLACED = 3


class Scope(StrEnum):
    """The narrowest party taken to be affected."""

    APP = "app"
    INSTANCE = "instance"
    GPU = "gpu"
    LINK = "link"
    NODE = "node"
    UNKNOWN = "unknown"


class RecoveryMode(StrEnum):
    """How far the driver's recovery action may overrule the table."""

    DEFER = "defer"
    RAISE_ONLY = "raise-only"


class Repeat(StrEnum):
    """When repeats of a harmless code speak against the card: never, after some bursts, or only after bursts that no single
    workload was there for.
    """

    NEVER = "never"
    BURSTS = "bursts"
    WORKLOADS = "workloads"


class XidRule(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    code: int
    name: str
    severity: Severity
    scope: Scope
    mode: RecoveryMode
    auto_recover: bool
    follow_on: bool
    repeat: Repeat = Repeat.NEVER
    cancels: frozenset[int] = frozenset()
    """Codes that this one takes back."""
    worn_out_by_return: bool = False
    """Seen again after a reset: the reset did not help, and the next one will not either."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A MIG instance of a card, at the moment of a report: the ids are used again for later ones."""

    gpu_instance: int
    compute_instance: int
    uuid: str


class Fault(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One report of a backend. An empty `uuid` means that the source did not say which card."""

    uuid: str
    kind: FaultKind
    code: int = 0
    recovery_action: int | None = None
    """Read from the card right after the report; None when it cannot be read."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    detail: str = ""
    workloads: tuple[str, ...] = ()
    """Who held the card at the time, as far as this node knows."""
    pieces: tuple[Piece, ...] = ()
    """The instances of a card in MIG mode."""


class Burst(msgspec.Struct, frozen=True, gc=False):
    """Reports of one kind close together count once."""

    at_ms: EpochMs
    workloads: tuple[str, ...] = ()


class Past(msgspec.Struct, frozen=True, gc=False):
    """A fault that was cleared by a reset, kept to tell a return from a first time."""

    code: int
    at_ms: EpochMs
    boot_id: str


class OpenFault(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A fault that still counts against a card. Repeats raise `count` and `last_ms` only."""

    kind: FaultKind
    code: int = 0
    severity: Severity
    scope: Scope
    reason: str
    auto_recover: bool = True
    gpu_instance: int | None = None
    first_ms: EpochMs
    last_ms: EpochMs
    count: int = 1
    bursts: tuple[Burst, ...] = ()
    boot_id: str = ""
    """The boot in which it was last seen: only a later boot or reset clears a fault that needs one."""

    @property
    def key(self) -> tuple[FaultKind, int, int | None]:
        return self.kind, self.code, self.gpu_instance


class Counters(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A card's memory as it counts itself. None = it cannot say, which is neither zero nor no.

    `uncorrected` starts again at a reset; `remapped` (rows, or pages of older cards) is for the card's life.
    """

    uncorrected: int | None = None
    remapped: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    sram_threshold: bool | None = None
    unrepairable: bool | None = None

    @property
    def clean(self) -> bool | None:
        """Nothing pending, nothing failed. What needs privileges to be read (SRAM) is asked for only where it answers."""
        if True in {self.remap_pending, self.remap_failure, self.sram_threshold, self.unrepairable}:
            return False
        return None if self.remap_pending is None else True


class CardHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one card. It outlives the agent: a restart is no proof of recovery.

    `unreachable` names why nothing is known, `forgotten` why what was known is lost: a card that answers ends the first, only
    the log's word or an operator's the second. `recoveries` are the times the card recovered by itself, `clean_since_ms`
    when the evidence of recovery was first complete (0 = it is not). `past` outlives recovery, not an operator's word.
    """

    uuid: str
    faults: tuple[OpenFault, ...] = ()
    unreachable: str = ""
    forgotten: str = ""
    recoveries: tuple[EpochMs, ...] = ()
    clean_since_ms: EpochMs = EpochMs(0)
    counters: Counters = Counters()
    past: tuple[Past, ...] = ()

    @property
    def severity(self) -> Severity:
        return max((fault.severity for fault in self.faults), default=Severity.OBSERVED)

    @property
    def health(self) -> Health:
        """Bad news stays bad news while the card cannot be asked; otherwise not knowing is its own answer."""
        match self.severity:
            case Severity.UNTIL_RESET | Severity.UNTIL_REPLACED:
                return Health.UNHEALTHY
            case Severity.DEGRADED:
                return Health.UNKNOWN if self.unreachable or self.forgotten else Health.SUSPECT
            case Severity.OBSERVED:
                return Health.UNKNOWN if self.unreachable or self.forgotten else Health.HEALTHY

    @property
    def reason(self) -> str:
        """The driving fault in words; empty for a healthy card. Fixed text: no times, no counters."""
        worst = max(self.faults, key=lambda fault: (fault.severity, -fault.first_ms), default=None)
        if worst is not None and worst.severity is not Severity.OBSERVED:
            return worst.reason
        return self.unreachable or self.forgotten


class HealthTransition(msgspec.Struct, frozen=True, kw_only=True):
    """A change worth an event. `evidence` says what was seen, for the audit."""

    uuid: str
    before: Health
    after: Health
    severity: Severity
    reason: str
    evidence: str
    policy_version: str


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about one report: the card's new memory, and the transition if its health changed.

    `fresh`: the report is worth an event of its own; false for repeats within a burst, which only raise a counter.
    """

    card: CardHealth
    transition: HealthTransition | None = None
    fresh: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a card when asking whether it has recovered. None = could not be read, which proves nothing."""

    boot_id: str = ""
    recovery_action: int | None = None
    probe_passed: bool | None = None
    memory_clean: bool | None = None
    counters: Counters = Counters()
