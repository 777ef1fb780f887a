"""Lengths of time that users give."""

from __future__ import annotations

import math

from ..errors import DeclarationError


def checked_seconds(value: float, *, what: str) -> float:
    """The value, if it is a length of time: not nothing, and not for ever, which no limit is meant to be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise DeclarationError(f"{what} must be seconds > 0, not {value!r}")
    return value
