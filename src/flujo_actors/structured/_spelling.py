"""The same thing spelled differently: keys, enum members, numbers and booleans as text."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOT_WORD = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([,_'\u2019\u00a0\u202f ])\d{3})(?:\1\d{3})*(?:\.\d+)?")
_GROUPED_WITH_POINTS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+")
_POINT_AND_THREE = re.compile(r"(?<![\d,'_ ])\d{1,3}\.\d{3}(?!\d|,\d)")
_SEPARATORS = re.compile(r"[,_'\u2019\u00a0\u202f ]")
_CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥₹]\s*(?=[\d.])|(?<=\d)\s*[$€£¥₹]$")
_TRUE = frozenset({"true", "yes", "y", "on", "1", "t"})
_FALSE = frozenset({"false", "no", "n", "off", "0", "f"})
_NULL = frozenset({"null", "none", "nil", "undefined"})
_MAX_DIGITS = 400


def skeleton(word: str) -> str:
    """What is left of a name when case and separators do not matter: `firstName` and `First-Name` agree."""
    return _NOT_WORD.sub("", word).casefold()


def same_name(word: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `word` spells, or None if none or several do."""
    bones = skeleton(word)
    matches = [name for name in names if skeleton(name) == bones] if bones else []
    return matches[0] if len(matches) == 1 else None


def member_of(word: str, members: Iterable[object]) -> object:
    """The member of an enumeration that `word` spells; `word` itself if none or several do."""
    members = [member for member in members if not isinstance(member, dict | list)]
    stripped = word.strip()
    for same in (str.casefold, skeleton):
        spelled = same(stripped)
        matches = [m for m in members if same(_as_text(m)) == spelled] if spelled else []
        if len(matches) == 1:
            return matches[0]
    return word


def _as_text(member: object) -> str:
    if isinstance(member, bool):
        return "true" if member else "false"
    return "null" if member is None else str(member)


def number_from(text: str) -> int | float | None:
    """The number a text spells, thousands separators and a currency sign aside; None if it is anything else."""
    text = _CURRENCY.sub(r"\1", text.strip())
    if len(text) > _MAX_DIGITS or (not text.isascii() and _SEPARATORS.sub("", text).isascii() is False):
        return None
    if _GROUPED.fullmatch(text):
        text = _SEPARATORS.sub("", text)
    elif _GROUPED_WITH_POINTS.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if number in (float("inf"), float("-inf")):
        return None
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else number


def integer_from(text: str) -> int | None:
    """The whole number a text spells; `1.000` is none, for it may be one and it may be a thousand."""
    number = number_from(text)
    if number is None or number != int(number) or _POINT_AND_THREE.search(text):
        return None
    return int(number)


def boolean_from(value: object) -> bool | None:
    """The boolean a word or 0 / 1 stands for; None if it is anything else."""
    if isinstance(value, str):
        word = value.strip().casefold()
        return True if word in _TRUE else False if word in _FALSE else None
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    return None


def is_null_word(value: object) -> bool:
    """Whether a text says "no value"."""
    return isinstance(value, str) and value.strip().casefold() in _NULL
