"""The strict parser: everything that becomes a value passes through here."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from pydantic_core import from_json


class Malformed(ValueError):
    """Not strict JSON."""


def parse(text: str) -> Any:
    """The value of strict JSON text; refuses NaN, infinities, lone surrogates and endless digits."""
    try:
        return from_json(text, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, TypeError) as error:  # TypeError: a lone surrogate cannot be encoded
        raise Malformed(str(error)) from None


def _no_constants(name: str) -> NoReturn:
    raise ValueError(name)


_END_FINDER = json.JSONDecoder(parse_constant=_no_constants)


_MAX_DECODED = 2_000_000
"""The decoder keeps other threads waiting while it works, 40 ms for 2 MB; beyond, the last closer must do."""
_LIKELY = re.compile(r'\{\s*["}]|\[\s*["{\[\]\d\-tfn]')


def end_of_value(text: str, start: int) -> int | None:
    """Where the strict JSON container that begins at `start` ends, or None if there is none."""
    if not _LIKELY.match(text, start):
        return None
    if len(text) - start > _MAX_DECODED:
        return max(text.rfind("}"), text.rfind("]")) + 1 or None
    try:
        return _END_FINDER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


class SourceFloat(float):
    """A float that remembers how it was written."""

    __slots__ = ("lexeme",)
    lexeme: str


def _source_float(lexeme: str) -> SourceFloat:
    number = SourceFloat(lexeme)
    number.lexeme = lexeme
    return number


def parse_with_source(text: str) -> Any:
    """As `parse`, with floats that remember their spelling: `1.10` as text is not `1.1`."""
    return json.loads(text, parse_float=_source_float, parse_constant=_no_constants)


def plain(value: Any) -> Any:
    """The value with floats that are nothing but floats: the only ones that validators take."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case SourceFloat():
            return float(value)
    return value
