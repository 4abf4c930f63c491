"""decide for faults of a card in MIG mode: whom a report is about, the card or which of its instances. Pure.

GPU instance and compute instance named      that instance; its neighbours and the card are untouched
only the GPU instance named                  every instance in it
neither, or a fault that reaches the card    the card and every instance of it
an instance that is not there                the card: a report is never dropped
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.nodeagent.decide.faults import Fault, FaultKind, Piece, Scope, Severity
from hami.nodeagent.decide.health import HealthPolicy, weight

_WIDE: Final = frozenset({Scope.GPU, Scope.LINK, Scope.NODE})
_OF_ITSELF: Final = frozenset({FaultKind.ANSWERS_AGAIN, FaultKind.UNREACHABLE, FaultKind.PEER_LINK})
"""Said of exactly one device; its instances are asked for themselves."""


def spread(fault: Fault, policy: HealthPolicy) -> tuple[Fault, ...]:
    """The reports that it comes to. The first is the one on record, the others follow from it."""
    if not fault.pieces or fault.kind in _OF_ITSELF:
        return (fault,)
    severity, scope = weight(fault, policy)
    if scope not in _WIDE and severity < Severity.UNTIL_RESET and fault.gpu_instance is not None:
        named = [each for each in fault.pieces if _is_named(each, fault)]
        return _about(fault, named) or (fault,)
    if severity is Severity.OBSERVED:
        return (fault,)
    return (fault, *_about(fault, fault.pieces))


def _is_named(piece: Piece, fault: Fault) -> bool:
    return piece.gpu_instance == fault.gpu_instance and fault.compute_instance in {None, piece.compute_instance}


def _about(fault: Fault, pieces: Sequence[Piece]) -> tuple[Fault, ...]:
    said = "; ".join(part for part in (f"seen on {fault.uuid}", fault.detail) if part)
    return tuple(
        msgspec.structs.replace(
            fault,
            uuid=each.uuid,
            gpu_instance=each.gpu_instance,
            compute_instance=each.compute_instance,
            detail=said,
            pieces=(),
        )
        for each in pieces
    )
