"""Quantities in the form the API server gives back: exact, no fraction, the largest suffix that fits (`1000` becomes `1k`)."""

import re
from decimal import Decimal, InvalidOperation

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_EXPONENT = {power: suffix for suffix, power in _DECIMAL.items()}
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?")


class NotAQuantity(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """The text is no quantity."""


def parse(written: str | float) -> tuple[Decimal, str]:
    """The value, and how it was written: `binary`, `exponent` or `decimal`."""
    found = _FORM.fullmatch(str(written))
    if found is None:
        raise NotAQuantity(written)
    number, exponent, suffix = found.groups()
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise NotAQuantity(written) from None
    if exponent:
        return value.scaleb(int(exponent[1:])), "exponent"
    if suffix and suffix.endswith("i"):
        return value * 1024 ** _BINARY.index(suffix), "binary"
    return value.scaleb(_DECIMAL[suffix or ""]), "decimal"


def canonical(written: str | float) -> str:
    """The quantity as the API server writes it; NotAQuantity if it is none."""
    value, form = parse(written)
    if value == 0:
        return "0"
    if form == "binary" and abs(value) >= 1024 and value == value.to_integral_value():
        return _binary(int(value))
    return _decimal(value, exponent_form=form == "exponent")


def _binary(value: int) -> str:
    power = 0
    while power < len(_BINARY) - 1 and value % 1024 == 0:
        value //= 1024
        power += 1
    return f"{value}{_BINARY[power]}"


def _decimal(value: Decimal, *, exponent_form: bool) -> str:
    nano = value.scaleb(9)
    # Finer than nano is rounded away from zero, so that a request never becomes nothing.
    digits = int(nano.to_integral_value(rounding="ROUND_UP"))
    power = -9
    while power < 18 and digits % 1000 == 0:
        digits //= 1000
        power += 3
    if exponent_form:
        return f"{digits}e{power}" if power else str(digits)
    return f"{digits}{_BY_EXPONENT[power]}"
