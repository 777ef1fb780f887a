"""Types of attrs validator arguments, for type checkers only.

Sections:

- Suggestions for unknown names.
- Numbers and lengths of time that users give.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard, TypeVar

from ..errors import DeclarationError, UnknownOption

V = TypeVar("V")
"""Type of the validated value."""


class AttrsField(Protocol):
    """A field of whatever class, with values of whatever type."""

    name: str


class Owner(Protocol):
    """Owner of a validated field, such as a step."""

    @property
    def name(self) -> str: ...


# --- Suggestions for unknown names --------------------------------------------------------------------------------


Cls = TypeVar("Cls", bound=type)


def nearest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """Return the most similar known name, or None."""
    import difflib  # only to word a refusal

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def suggests_options(cls: Cls) -> Cls:
    """Decorate a class: an unknown option suggests the nearest known one."""
    init = cls.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def checked(self: object, *arguments: Any, **options: Any) -> None:
        try:
            init(self, *arguments, **options)
        except TypeError:
            _refuse_unknown(cls.__name__, init, options)
            raise

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def _refuse_unknown(name: str, init: Any, options: dict[str, object]) -> None:
    import inspect  # only to word a refusal

    known = [each for each in inspect.signature(init).parameters if each != "self"]
    wrong = next((option for option in options if option not in known), None)
    if wrong is None:
        return
    near = nearest(wrong, known, cutoff=0.5)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
    raise UnknownOption(f"{name} has no option {wrong!r}: {hint}") from None


# --- Numbers and lengths of time that users give ------------------------------------------------------------------


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a finite number, in a float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


LARGEST_COUNT = 2**63 - 1
"""Largest whole number that every store and every JSON reader accepts."""


def is_count(value: object, *, at_least: int = 1) -> TypeGuard[int]:
    """Return whether the value is a whole number within these bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= LARGEST_COUNT


def brief_repr(value: object) -> str:
    """Return the start of a refused value, for messages."""
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:  # beyond 4,300 digits `repr` raises ValueError
        return f"a number of about {math.ceil(value.bit_length() * math.log10(2))} digits"
    return f"{value!r:.100}"


def span_seconds(text: str) -> float:
    """Return the seconds of a span: `90s`, `15m`, `2h`, `30d`, `1w`."""
    found = _SPAN.fullmatch(text.strip())
    span = float(found[1]) * _UNITS[found[2]] if found else math.inf
    if span < math.inf:
        return span
    if _NUMBER.fullmatch(text.strip()):
        raise DeclarationError(f"{text!r} has no unit: write 30d, 12h or 90s ({text.strip()}s are seconds)")
    raise DeclarationError(f"{text!r} is no span of time: write 90s, 15m, 2h, 30d or 1w")


def checked_seconds(value: float, *, subject: str) -> float:
    """Return the value if it is a positive, finite duration."""
    if not is_number(value) or value <= 0:
        raise DeclarationError(f"{subject} must be seconds > 0, not {brief_repr(value)}")
    return value
