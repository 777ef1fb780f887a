"""Texts one mark away from JSON: bracket, comma, colon or quote.

1. The text is parsed strictly up to its first error. The wrong mark is there or before it, so every position
   up to there is tried with the marks that are possible in it.
2. Strings are whole only if the number of quotes is even: it decides whether the wrong mark is a quote. If not,
   the brackets without a partner decide whether it is a bracket, and which.
3. The result is all readings. A text with several is ambiguous, however likely one of them is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic_core import to_json

from . import _strict as strict
from ._candidates import Candidate, after_thinking, without_fence

_SPACE = re.compile(r"[ \t\r\n]*+")
_SCALAR = re.compile(r"(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.+-])", re.A)
_STRING = re.compile(r"\"(?:[^\"\\\x00-\x1f]++|\\.)*+", re.S)
# With or without its end: a search that refused the open ones would begin again at each escaped quote in them.
_ANY_STRING = re.compile(_STRING.pattern + '"?+', re.S)
_OUTSIDE_STRINGS = re.compile(rf"(?:[ \t\r\n{{}}\[\],:\"]++|{_SCALAR.pattern})*+", re.A)
_QUOTE = re.compile(r"(?<!\\)(?:\\\\)*+\"")
_ENDS_HERE = re.compile(r"(?<![ \t])(?=[ \t\r\n]*[,:}\]])|(?<=[^ \t] )(?=[,:}\]])|\Z")
_QUOTED, _OTHERS = frozenset('"'), frozenset("{}[],:")
_MARKS = _QUOTED | _OTHERS
_FENCED = re.compile(r"```[\w+.-]*+(.*?)```", re.S)
_MARK_FIRST = re.compile(r"^[ \t]*[{}\[\],:\"]", re.M)
_MARK_LAST = re.compile(r"[{}\[\],:\"](?=[ \t]*$)", re.M)
_MORE = re.compile(r"[\s,]*+(?:[\w-]++\s*+[:=]|-?\d|true\b|false\b|null\b)")
"""An unquoted member or value after a line's last mark."""
_CLOSER = {"{": "}", "[": "]"}
_WEIGHT = {"{": 1, "}": -1, "[": 1j, "]": -1j}
"""Bracket weights; a text whose brackets all have partners weighs nothing."""
_MAX_CHARS = 20_000
"""Maximum length of an examined text: each change copies it."""
_MAX_READ = 3_000
"""Maximum position of the first error: the work grows with its square."""
_MAX_PARSED = 20_000_000
"""Maximum characters parsed over all changes, about 0.1 s."""


class _EditPosition(NamedTuple):
    at: int
    allowed: frozenset[str]
    string_until: int
    """End of the string that begins here; `at` if none does."""


def near_candidates(text: str) -> list[Candidate]:
    """Return the text's values with one mark changed."""
    for start, end in dict.fromkeys(_regions(text)) if len(text) <= _MAX_CHARS else ():
        if found := one_mark_away(text[start:end]):
            return [
                Candidate(start=start, end=end, value=value, json=json, engine="mended", passes=("one_mark",))
                for json, value in found
            ]
    return []


def _regions(text: str) -> Iterator[tuple[int, int]]:
    """Yield the answer after thinking, last fence, and lines between marks."""
    answer = without_fence(after_thinking(text))
    start = max(text.rfind(answer), 0)
    end = start + len(answer)
    yield start, end
    if answer[:1] in _MARKS and answer[-1:] in _MARKS:
        return
    yield from ((fence.start(1), fence.end(1)) for fence in [*_FENCED.finditer(text, start, end)][-1:])
    first, last = _MARK_FIRST.search(text, start, end), [*_MARK_LAST.finditer(text, start, end)][-1:]
    if first and last and first.end() < last[0].end() and not _MORE.match(text, last[0].end()):
        yield first.end() - 1, last[0].end()


def one_mark_away(text: str) -> list[tuple[str, object]]:
    """Return every value of `text` with one mark added, removed or replaced.

    The list is empty if it is JSON already, or further away from it.
    """
    readings: dict[bytes, tuple[str, object]] = {}
    for tried, json in enumerate(_changes(text) if len(text) > 1 else ()):
        if tried * len(text) > _MAX_PARSED:
            return []
        try:
            value = strict.parse(json)
        except strict.JsonSyntaxError:
            continue
        if isinstance(value, dict | list) and strict.has_unique_keys(json):
            readings.setdefault(to_json(value), (json, value))
    return list(readings.values())


# --- changes --------------------------------------------------------------------------------------------------


def _changes(text: str) -> Iterator[str]:
    if strict.error_at(text) > _MAX_READ:
        return
    quotes = len(_QUOTE.findall(text)) if "\\" in text else text.count('"')
    if quotes % 2:
        yield from (change for place in _places(text) for change in _of_quotes(text, place))
        return
    outside = _ANY_STRING.sub(_emptied, text)
    weight = sum(weight * outside.count(bracket) for bracket, weight in _WEIGHT.items())
    if abs(weight) <= 2 and _OUTSIDE_STRINGS.fullmatch(outside):  # replacing a bracket changes it by two at most
        yield from (change for place in _places(text) for change in _other_marks(text, place, weight))


def _emptied(string: re.Match[str]) -> str:
    found = string.group()
    return '""' if len(found) > 1 and found.endswith('"') else found


def _other_marks(text: str, place: _EditPosition, weight: complex) -> Iterator[str]:
    """Yield texts with another non-quote mark here and balanced brackets."""
    at, here = place.at, text[place.at : place.at + 1]
    without = weight - _WEIGHT.get(here, 0)
    for mark in place.allowed & _OTHERS:
        if weight + _WEIGHT.get(mark, 0) == 0:
            yield text[:at] + mark + text[at:]
        if here in _OTHERS and here != mark and without + _WEIGHT.get(mark, 0) == 0:
            yield text[:at] + mark + text[at + 1 :]
    if here in _OTHERS and without == 0 and _is_doubled(text, at):
        yield text[:at] + text[at + 1 :]


def _of_quotes(text: str, place: _EditPosition) -> Iterator[str]:
    at, here = place.at, text[place.at : place.at + 1]
    if '"' in place.allowed:
        yield from (text[:begin] + '"' + text[begin:] for begin in _beginnings(text, at))
        if here in _OTHERS:
            yield text[:at] + '"' + text[at + 1 :]
    if here == '"':
        yield from (text[:at] + mark + text[at + 1 :] for mark in place.allowed & _OTHERS)
        if _is_doubled(text, at):
            yield text[:at] + text[at + 1 :]
    yield from _shorter_strings(text, at + 1, place.string_until)


def _is_doubled(text: str, at: int) -> bool:
    return text[at] in (text[at - 1 : at], text[at + 1 : at + 2])


def _beginnings(text: str, at: int) -> Iterator[int]:
    """Yield possible starts of a string without its first quote."""
    yield at
    gap = at - len(text[:at].rstrip(" "))
    if gap > 1 and text[at - gap - 1 : at - gap] != "\n":
        yield at - gap + 1


def _shorter_strings(text: str, start: int, until: int) -> Iterator[str]:
    """Yield texts in which the string ends at an earlier mark."""
    for end in range(start, until + 1):
        if _ENDS_HERE.match(text, end):
            yield text[:end] + '"' + text[end:]
        if text[end : end + 1] in _OTHERS and _ENDS_HERE.match(text, end + 1):
            yield text[:end] + '"' + text[end + 1 :]


# --- places ---------------------------------------------------------------------------------------------------


def _places(text: str) -> list[_EditPosition]:
    """Return token positions and possible marks before the first error."""
    reader, places = _Reader(), []
    at = _SPACE.match(text).end()  # type: ignore[union-attr]  # it matches everywhere
    while at <= _MAX_READ:
        if at == len(text) and not reader.allowed():
            return []
        string = _STRING.match(text, at)
        places.append(_EditPosition(at, reader.allowed(), string.end() if string else at))
        end = _token_end(text, at)
        if end is None or not reader.takes(text[at]):
            return places
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    return []


def _token_end(text: str, at: int) -> int | None:
    if text[at : at + 1] in _OTHERS:
        return at + 1
    if string := _STRING.match(text, at):
        return string.end() + 1 if text[string.end() : string.end() + 1] == '"' else None
    scalar = _SCALAR.match(text, at)
    return scalar.end() if scalar else None


class _Reader:
    """Grammar state: the tokens that may follow in JSON."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.awaited = "value"

    def allowed(self) -> frozenset[str]:
        match self.awaited:
            case "value":
                return frozenset('"{[')
            case "first element":
                return frozenset('"{[]')
            case "key":
                return _QUOTED
            case "first key":
                return frozenset('"}')
            case "colon":
                return frozenset(":")
        return frozenset((",", _CLOSER[self.stack[-1]])) if self.stack else frozenset()

    def takes(self, first: str) -> bool:
        """Advance past the valid token that begins with `first`."""
        scalar = first not in _OTHERS and first != '"' and self.awaited in ("value", "first element")
        if not scalar and first not in self.allowed():
            return False
        if first in _CLOSER:
            self.stack.append(first)
            self.awaited = "first key" if first == "{" else "first element"
        elif first in "}]":
            self.stack.pop()
            self.awaited = "end of value"
        elif first == ",":
            self.awaited = "key" if self.stack[-1] == "{" else "value"
        elif first == ":":
            self.awaited = "value"
        else:
            self.awaited = "colon" if "key" in self.awaited else "end of value"
        return True
