"""The strict parser: everything that becomes a value passes through here."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pydantic_core import from_json


class Malformed(ValueError):
    """Not strict JSON."""


def parse(text: str) -> object:
    """The value of strict JSON text; refuses NaN, infinities, lone surrogates and endless digits."""
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, TypeError) as error:  # TypeError: a lone surrogate cannot be encoded
        raise Malformed(str(error)) from None
    if _may_overflow(text) and _has_infinity(value):
        raise Malformed("a number is too large")
    return value


_EXPONENTS = {e: re.compile(rf"{e}[+0-9](?<=[0-9]{e}.)[0-9]{{2}}") for e in "eE"}
_DIGITS, _SAMPLED_DIGITS = re.compile(r"[0-9]{200}"), re.compile(r"[0-9]{6}")


def _may_overflow(text: str) -> bool:
    """Whether a number may be read as infinity, which the parser lets through: `1e400`, or hundreds of digits."""
    if any(e in text and exponent.search(text) for e, exponent in _EXPONENTS.items()):
        return True
    # so many digits show in every thirtieth character, too; looking at all of them would take as long as parsing
    return len(text) >= 200 and bool(_SAMPLED_DIGITS.search(text[::30]) and _DIGITS.search(text))


def _has_infinity(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_infinity, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


def _no_constants(name: str) -> NoReturn:
    raise ValueError(name)


_END_FINDER = json.JSONDecoder(parse_constant=_no_constants)


_MAX_DECODED = 2_000_000
"""The decoder keeps other threads waiting while it works, 40 ms for 2 MB; beyond, the last closer must do."""
_LIKELY = re.compile(r'\{\s*["}]|\[\s*["{\[\]\d\-tfn]')


def can_decode(text: str, start: int) -> bool:
    """Whether `end_of_value` knows the end; else it is a guess."""
    return len(text) - start <= _MAX_DECODED


def end_of_value(text: str, start: int) -> int | None:
    """Where the strict JSON container that begins at `start` ends, or None if there is none."""
    if not _LIKELY.match(text, start):
        return None
    if not can_decode(text, start):
        return max(text.rfind("}"), text.rfind("]")) + 1 or None
    try:
        return _END_FINDER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def has_unique_keys(text: str) -> bool:
    """Whether no object of this strict JSON text says a key twice."""
    try:
        json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        return False
    return True


def _unique(members: list[tuple[str, object]]) -> None:
    if len({key for key, _ in members}) != len(members):
        raise ValueError("a key is said twice")


def error_at(text: str) -> int:
    """Where the text stops being JSON, or a string begins that does not end; its length if it is JSON."""
    try:
        return _END_FINDER.raw_decode(text)[1]
    except json.JSONDecodeError as error:
        return error.pos
    except (ValueError, RecursionError):
        return len(text)


class SourceFloat(float):
    """A float that remembers how it was written."""

    __slots__ = ("lexeme",)
    lexeme: str


def _source_float(lexeme: str) -> SourceFloat:
    number = SourceFloat(lexeme)
    number.lexeme = lexeme
    return number


def parse_with_source(text: str) -> object:
    """As `parse`, with floats that remember their spelling: `1.10` as text is not `1.1`."""
    return json.loads(text, parse_float=_source_float, parse_constant=_no_constants)


def plain(value: object) -> Any:
    """The value with floats that are nothing but floats: the only ones that validators take."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case SourceFloat():
            return float(value)
    return value
