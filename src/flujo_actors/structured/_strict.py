"""The strict parser: everything that becomes a value passes through here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

import attrs
from pydantic_core import from_json

from .._core.attempt_results import escalating
from .._core.error_info import message_of
from ..errors import StructuredOutputError
from ._compiled_schema import Schema
from ._read_result import Flaw, TooMuchWork


class JsonSyntaxError(ValueError):
    """Not strict JSON."""


def parse(text: str) -> object:
    """Return strict JSON's value; refuse NaN, infinities and lone surrogates."""
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, TypeError) as error:  # TypeError: a lone surrogate cannot be encoded
        raise JsonSyntaxError(str(error)) from None
    if _may_overflow(text) and _has_infinity(value):
        raise JsonSyntaxError("a number is too large")
    return value


_EXPONENTS = {e: re.compile(rf"{e}[+0-9](?<=[0-9]{e}.)[0-9]{{2}}") for e in "eE"}
_DIGITS, _SAMPLED_DIGITS = re.compile(r"[0-9]{200}"), re.compile(r"[0-9]{6}")


def _may_overflow(text: str) -> bool:
    """Return whether a number may parse as infinity, like `1e400`."""
    if any(e in text and exponent.search(text) for e, exponent in _EXPONENTS.items()):
        return True
    # a long run of digits also shows in every thirtieth character; checking all would take as long as parsing
    return len(text) >= 200 and bool(_SAMPLED_DIGITS.search(text[::30]) and _DIGITS.search(text))


def _has_infinity(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_infinity, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


def _no_constants(name: str) -> NoReturn:
    raise ValueError(name)


_END_FINDER = json.JSONDecoder(parse_constant=_no_constants)


_MAX_DECODED = 2_000_000
"""Maximum length for the blocking decoder (40 ms for 2 MB)."""
_LIKELY = re.compile(r'\{\s*["}]|\[\s*["{\[\]\d\-tfn]')


def can_decode(text: str, start: int) -> bool:
    """Return whether `end_of_value` is exact; otherwise it is a guess."""
    return len(text) - start <= _MAX_DECODED


def end_of_value(text: str, start: int) -> int | None:
    """Return the end of the strict JSON container at `start`, or None."""
    if not _LIKELY.match(text, start):
        return None
    if not can_decode(text, start):
        return max(text.rfind("}"), text.rfind("]")) + 1 or None
    try:
        return _END_FINDER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def has_unique_keys(text: str) -> bool:
    """Return whether no object of this JSON has duplicate keys."""
    try:
        json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        return False
    return True


def _unique(members: list[tuple[str, object]]) -> None:
    if len({key for key, _ in members}) != len(members):
        raise ValueError("a duplicate key")


def error_at(text: str) -> int:
    """Return the position of the first JSON error.

    It is the length of the text if there is none.
    """
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
    """Return strict JSON's value with floats keeping their spelling (`1.10`)."""
    return json.loads(text, parse_float=_source_float, parse_constant=_no_constants)


def plain(value: object) -> Any:
    """Return the value with plain floats, which validators require."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case SourceFloat():
            return float(value)
    return value


_MAX_REFERENCES = 50


def resolved(part: object, root: Mapping[str, object]) -> Mapping[str, Any]:
    """Return a part of `root` with its reference resolved and merged.

    Empty if that is no object: a boolean schema, a dangling reference, or a cycle.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(part, Mapping):
            return {}
        if "$ref" not in part:
            return part
        target = _target(str(part["$ref"]), root)
        beside = {key: value for key, value in part.items() if key != "$ref"}
        part = {**target, **beside} if isinstance(target, Mapping) else {}
    return {}


def _target(reference: str, root: Mapping[str, object]) -> object:
    """Return the target of a JSON pointer, or None."""
    target: Any = root
    for step in unquote(reference.lstrip("#")).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and len(name) < 16 and int(name) < len(target):
            target = target[int(name)]
        else:
            target = target.get(name) if isinstance(target, Mapping) else None
    return target


_MAX_REASON = 300


@attrs.frozen
class refusing:  # noqa: N801 - a context manager, read as a verb
    """Convert errors in this block to the refusal of `text` at `stage`."""

    stage: str
    text: str
    schema: Schema | None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TooMuchWork):
            raise refusal("limits", str(error), self.text, self.schema) from None
        if not isinstance(error, Exception) or isinstance(error, StructuredOutputError):
            return
        if control := escalating(error):
            raise control from None
        reason = f"{type(error).__name__}: {message_of(error)}"
        raise refusal(self.stage, reason[:_MAX_REASON], self.text, self.schema) from error


def refusal(
    stage: str, reason: str, text: str, schema: Schema | None, flaws: list[Flaw] | None = None
) -> StructuredOutputError:
    """Return the error that names stage and reason of a refused `text`."""
    excerpt = text if len(text) <= 200 else f"{text[:120]} … {text[-60:]}"
    error = StructuredOutputError(f"no structured value ({stage}): {reason}")
    error.stage, error.errors, error.text_excerpt = stage, list(flaws or ()), excerpt
    error.schema_hash = schema.schema_hash if schema else None
    return error
