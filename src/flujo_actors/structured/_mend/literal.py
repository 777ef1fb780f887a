"""Turning the content of a string, or a bare word, into strict JSON."""

from __future__ import annotations

import re
import unicodedata

_SPECIAL = re.compile(
    r'((?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})++)'
    r'|\\(?:(u[0-9a-fA-F]{4})|(["\\/bfnrt])|x([0-9a-fA-F]{2})|(.)|\Z)|(["\x00-\x1f])',
    re.S,
)
_NEEDS_WORK = re.compile(r'["\\\x00-\x1f]')
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", '"': '\\"'}
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_WINDOWS_PATH = re.compile(r"(?=.*\\[^\"\\/bfnrtu])[A-Za-z]:\\(?![\\\"])[^\n\"]*\Z")
"""`C:\\Users\\new` with single backslashes: an escape that JSON does not have shows that none was meant."""
_QUOTE_LIKE = frozenset("'`´‘’‚“”„＂＇«»「」\n")

_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null", "undefined": "null", "nil": "null"}
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d++(?:_\d++)*+\.?(?:\d++(?:_\d++)*+)?|\.\d++)(?:[eE](?:[+-]?\d++)?)?")
_CALL = re.compile(r"(?:new\s+)?[A-Z]\w*\(\s*(\"[^\"\\]*\"|'[^'\\]*'|-?\d+(?:\.\d+)?)\s*\)")
NON_FINITE = frozenset({"nan", "infinity", "-infinity", "inf", "-inf", "+infinity", "+inf"})


def quoted(content: str, *, cut: bool = False) -> str:
    """The content of a string as a strict JSON string; `cut` drops an escape the end of the text cut in two."""
    if cut:
        content = drop_cut_escape(content)
    if not _NEEDS_WORK.search(content):
        return f'"{content}"'
    if _WINDOWS_PATH.match(content):
        content = content.replace("\\", "\\\\")
    return f'"{_SPECIAL.sub(_escape, content)}"'


def drop_cut_escape(content: str) -> str:
    """Without the half of an escape sequence at its end."""
    found = _CUT_ESCAPE.search(content)
    if not found:
        return content
    before = content[: found.start()]
    dangling = (len(before) - len(before.rstrip("\\"))) % 2 == 0
    return before if dangling else content


def _escape(found: re.Match[str]) -> str:
    healthy, code, short, byte, other, control = found.groups()
    if healthy or code or short:
        return found[0]
    if byte:
        return f"\\u00{byte}"
    if control:
        return _CONTROL.get(control) or f"\\u{ord(control):04x}"
    if other is None:
        return "\\\\"
    if other in _QUOTE_LIKE:
        return "" if other == "\n" else other
    return "\\\\" + (_CONTROL.get(other, other) if other >= " " else f"\\u{ord(other):04x}")


def bare(word: str) -> str:
    """A word without quotes as JSON: a literal, a number, the argument of a constructor call, or a string."""
    literal = _WORDS.get(word.lower())
    if literal:
        return literal
    number = loose_number(word)
    if number:
        return number
    call = _CALL.fullmatch(word)
    if call:
        inner = call[1]
        return quoted(inner[1:-1]) if inner[0] in "\"'" else inner
    return quoted(word)


def loose_number(word: str) -> str | None:
    """The JSON number that `word` is a sloppy spelling of (`.5`, `1.`, `+3`, `1_000`, full-width digits)."""
    if not word[:1].isdigit() and word[:1] not in ("+", "-", "."):
        return None
    if _PLAIN_NUMBER.fullmatch(word) and word.isascii():
        return word
    plain = unicodedata.normalize("NFKC", word)
    if not plain.isascii() or not _LOOSE_NUMBER.fullmatch(plain):
        return None
    return _tidy(plain.replace("_", "").removeprefix("+"))


def _tidy(number: str) -> str | None:
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    mantissa, mark, exponent = digits.partition("e") if "e" in digits else digits.partition("E")
    whole, dot, fraction = mantissa.partition(".")
    if len(whole) > 1 and whole[0] == "0":
        return None  # 007 is a code, not a number
    tail = f"e{exponent}" if exponent.strip("+-") else ""
    point = f".{fraction or '0'}" if dot or (mark and not tail) else ""
    return f"{sign}{whole or '0'}{point}{tail}"
