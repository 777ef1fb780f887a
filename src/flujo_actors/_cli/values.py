"""What people type, as values: times, inputs, answers."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import DeclarationError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def seconds(text: str) -> float:
    """A span of time: `90s`, `15m`, `2h`, `30d`, `1w`, or seconds."""
    found = _SPAN.fullmatch(text.strip())
    if found:
        return float(found[1]) * _UNITS[found[2]]
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise DeclarationError(f"{text!r} is no span of time: write 90s, 15m, 2h, 30d or 1w")
    return number


def moment(text: str, *, now: float) -> float:
    """A moment: so long ago, or a date; in seconds since the epoch."""
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        return now - seconds(text)
    return (when if when.tzinfo else when.astimezone()).timestamp()


def content(text: str) -> str:
    """A text; `@file` is what the file holds, `-` is standard input."""
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeclarationError(f"{text[1:]} cannot be read: {reason}") from error


def from_json_text(text: str, *, what: str) -> object:
    """A value from JSON; a text that is none is refused with the place."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DeclarationError(f"{what} is not JSON: {error}") from error


def assignments(pairs: Iterable[str]) -> dict[str, object]:
    """`name=value` pairs; a value is JSON if it can be, else a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise DeclarationError(f"--context takes name=value, not {pair!r}")
        found[name] = either(value)
    return found


def either(text: str) -> object:
    """The value of a text that is JSON, and any other text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def answers(text: str, schema: object) -> list[object]:
    """What a typed answer may mean, the likeliest first: JSON, or a text where the question wants text."""
    value = either(text)
    wants_text = isinstance(schema, dict) and schema.get("type") == "string"
    meanings = [text, value] if wants_text else [*_yes_or_no(text, schema), value, text]
    return [each for place, each in enumerate(meanings) if not any(_same(each, other) for other in meanings[:place])]


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _yes_or_no(text: str, schema: object) -> list[bool]:
    if not isinstance(schema, dict) or schema.get("type") != "boolean":
        return []
    said = text.strip().lower()
    return [True] if said in ("y", "yes") else [False] if said in ("n", "no") else []
