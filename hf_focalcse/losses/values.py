"""What a setting of a loss may be: each function gives a UserError that names the setting where it is not."""

from __future__ import annotations

import math

from ..errors import UserError, suggest


def positive_number(name: str, value: float) -> float:
    """``value``, or a UserError where it is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} is {value}; it must be a number above 0")
    return value


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """A UserError unless ``value`` is one of these."""
    if value not in allowed:
        raise UserError(f"{name} is {value!r}{suggest(value, allowed)}; allowed: {', '.join(allowed)}")


def not_negative(name: str, value: float) -> float:
    """``value``, or a UserError where it is not a finite number of at least 0."""
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{name} is {value}; it must be a number of at least 0")
    return value
