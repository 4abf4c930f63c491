"""Kubernetes quantities at the door.

The API rewrites whole numbers with decimal suffixes (`8000` comes back as `8k`), so no suffix and decimal suffixes count
in the resource's own unit. Binary suffixes mean bytes: `16Gi` of device memory is 16384 MiB. What cannot be read exactly is
refused.
"""

import re
from fractions import Fraction
from typing import Final

from hami.domain.errors import InvalidInput
from hami.domain.pod import Quantity

INT32_MAX: Final = 2**31 - 1
_MIB: Final = 2**20

_GRAMMAR: Final = re.compile(
    r"(?P<number>[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}))(?P<suffix>[eE][+-]?\d{1,3}|[KMGTPE]i|[numkMGTPE]?)", re.ASCII
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def exact(field: str, value: Quantity) -> tuple[Fraction, bool]:
    """The exact number written, and whether a binary suffix said that it counts bytes."""
    text = str(value)
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise InvalidInput(field, value, "is not a Kubernetes quantity")
    number, suffix = Fraction(match["number"]), match["suffix"]
    if suffix in _BINARY:
        return number * 1024 ** _BINARY[suffix], True
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return number * Fraction(10) ** power, False


def whole(field: str, value: Quantity) -> int:
    """A count or a percentage: a whole number, not negative, within 32 bits."""
    number, _ = exact(field, value)
    return _checked(field, value, number)


def memory(field: str, value: Quantity, *, factor: int) -> int:
    """Device memory in MiB. `factor` applies to numbers in the vendor's unit, never to bytes."""
    number, in_bytes = exact(field, value)
    if in_bytes:
        return _checked(field, value, number / _MIB)
    return _checked(field, value, Fraction(_checked(field, value, number) * factor))


def as_integer(value: Quantity) -> int | None:
    """The number as Kubernetes' own integer reading gives it (suffixes multiply), None where it is not one."""
    try:
        number, _ = exact("", value)
    except InvalidInput:
        return None
    return int(number) if number.denominator == 1 and abs(number) < 2**63 else None


def _checked(field: str, value: Quantity, number: Fraction) -> int:
    if number < 0:
        raise InvalidInput(field, value, "must not be negative")
    if number.denominator != 1:
        raise InvalidInput(field, value, "must be a whole number (of MiB for device memory)")
    if number > INT32_MAX:
        raise InvalidInput(field, value, f"must not exceed {INT32_MAX}")
    return int(number)
