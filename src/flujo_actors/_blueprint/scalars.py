"""What an unquoted word of YAML means: the core schema of YAML 1.2, in which `no`, `on` and `1:30` are words."""

from __future__ import annotations

import json
import re
from typing import TypeAlias

Plain: TypeAlias = str | int | float | bool | None

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}\Z")
_OTHER_WHOLE = re.compile(r"0(?:o[0-7]{1,21}|x[0-9a-fA-F]{1,15})\Z")
_REAL = re.compile(r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,3})?\Z")
_INFINITE = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z")
_LARGEST = 2**63

YES_AND_NO = dict.fromkeys(("yes", "y", "on"), True) | dict.fromkeys(("no", "n", "off"), False)
"""What YAML 1.1 took for true and false, in lower case."""


def meaning(word: str) -> Plain:
    """The value of a plain scalar; a number that no program of ours could hold is a text."""
    if word in _NULLS:
        return None
    if word in _TRUTHS:
        return _TRUTHS[word]
    if word[0] not in "-+.0123456789":
        return word
    return _number(word)


def _number(word: str) -> Plain:
    if _WHOLE.match(word):
        return _bounded(int(word), word)
    if _OTHER_WHOLE.match(word):
        return _bounded(int(word, 0), word)
    if _REAL.match(word):
        return float(word)
    infinite = _INFINITE.match(word)
    if infinite:
        return float(f"{infinite.group(1)}inf")
    return float("nan") if word in (".nan", ".NaN", ".NAN") else word


def _bounded(number: int, word: str) -> Plain:
    return number if -_LARGEST <= number < _LARGEST else word


_SAFE = re.compile(r"[A-Za-z_][\w ./:-]*(?<![ :])\Z", re.ASCII)


def written(value: str | bool | int | float | None) -> str:
    """A scalar as it is written on one line, quoted if it has to be."""
    if isinstance(value, str):
        return value if _needs_no_quotes(value) else quoted(value)
    return json.dumps(value)


def _needs_no_quotes(text: str) -> bool:
    plain = _SAFE.match(text) is not None and ": " not in text and " #" not in text
    return plain and meaning(text) == text and text.lower() not in YES_AND_NO


def quoted(text: str) -> str:
    """A text in quotes: double ones, or single ones if it has double ones in it."""
    simple = '"' not in text or not text.isprintable()
    if simple or "'" in text:
        return json.dumps(text, ensure_ascii=False)
    return f"'{text}'"
