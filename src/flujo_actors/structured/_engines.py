"""The kept repair libraries, for what the mender refuses. They may guess, so their guess must prove itself.

1. They see the extracted candidate only, never the prose around it, and only up to the size measured as safe.
2. `fast_json_repair` first (linear, in Rust), `json_repair` next (better, but quadratic and without an end).
3. A result counts only if it says sign for sign what the text says, quotes and at most one bracket aside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import fast_json_repair
import json_repair
from pydantic_core import to_json

from . import _strict as strict
from ._candidates import Candidate
from ._limits import Limits

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.S)
_MARKS = re.compile(r"[\s{}\[\](),:;=\"'`“”‘’„…，：\\]+|\.{3}")
_BRACKETS = re.compile(r"[{}\[\]]")
_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*+\"")
_BARE_ONLY = frozenset({"true", "false", "null", "none", "nil", "undefined", "nan", "infinity", "-infinity", "inf"})
"""Words that say no text where they stand without quotes."""
_MARK_AT_THE_EDGE = re.compile(r"\A[\s]*[\"\[\]{}:,]|[\"\[\]{}:,]\s*\Z")
_OPENS, _CLOSES = frozenset(("", *"\"'“‘`:,[=")), frozenset(("", *"\"'”’`,:}]);"))
_ESCAPED_CONTROL = dict.fromkeys("nrtbf", " ")


def repaired(text: str, limits: Limits) -> Iterator[Candidate]:
    """The faithful repairs of the outermost bracketed region of `text`."""
    span = _outermost(text)
    if span is None:
        return
    region = text[span[0] : span[1]]
    engines: list[tuple[str, int, Callable[[str], object]]] = [
        ("fast_json_repair", limits.max_fast_repair_chars, _fast),
        ("json_repair", limits.max_slow_repair_chars, _slow),
    ]
    for name, cap, engine in engines:
        json = _json_of(engine(region)) if len(region) <= cap else None
        if json and says_the_same(region, value := strict.parse(json)):
            yield Candidate(start=span[0], end=span[1], value=value, json=json, engine=name, passes=(name,))


def _json_of(value: object) -> str | None:
    """A container with something in it as strict JSON; what JSON does not have (NaN, half a character) is none."""
    if not isinstance(value, dict | list) or not value:
        return None
    try:
        json = to_json(value).decode()
        strict.parse(json)
    except ValueError:
        return None
    return json


def _outermost(text: str) -> tuple[int, int] | None:
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    end = max(text.rfind("}"), text.rfind("]")) + 1
    return (min(starts), end) if starts and end > min(starts) else None


def _fast(region: str) -> object:
    try:
        return fast_json_repair.loads(region)
    except (ValueError, RecursionError):
        return None


def _slow(region: str) -> object:
    try:
        return json_repair.loads(region)
    except (ValueError, RecursionError):
        return None


def says_the_same(text: str, value: object) -> bool:
    """Whether text and value hold the same signs in the same order, brackets, quotes and comments aside."""
    written, said = to_json(value).decode(), _COMMENT.sub(" ", text)
    if not all(_stands_in(text, leaf) for leaf in _strings(value)):
        return False
    return _signs(said) == _signs(written) and _is_one_apart(_shape(said), _shape(written))


def _shape(text: str) -> str:
    """Its brackets, in order."""
    return "".join(_BRACKETS.findall(_STRING.sub("", text)))


def _is_one_apart(shape: str, other: str) -> bool:
    """Whether they are the same, or one has a bracket more than the other."""
    longer, shorter = (shape, other) if len(shape) > len(other) else (other, shape)
    same = next((at for at, bracket in enumerate(shorter) if bracket != longer[at]), len(shorter))
    return longer[same + (len(longer) > len(shorter)) :] == shorter[same:]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _stands_in(text: str, leaf: str) -> bool:
    """Whether a string of the result was a whole string of the text, as far as quotes and marks tell."""
    if ('"' in leaf and _BRACKETS.search(leaf)) or _MARK_AT_THE_EDGE.search(leaf):
        return False
    if not leaf:
        return '""' in text or "''" in text
    written = to_json(leaf).decode()[1:-1]
    if leaf.casefold() in _BARE_ONLY:
        return any(f"{quote}{leaf}{quote}" in text for quote in "\"'")
    return any(_is_delimited(text, form) for form in {leaf, written})


def _is_delimited(text: str, form: str) -> bool:
    at = text.find(form)
    while at >= 0:
        before, behind = text[max(0, at - 50) : at].rstrip()[-1:], text[at + len(form) :][:50].lstrip()[:1]
        if before in _OPENS and behind in _CLOSES:
            return True
        at = text.find(form, at + 1)
    return False


def _signs(text: str) -> str:
    return _MARKS.sub("", _ESCAPE.sub(_unescaped, text)).casefold()


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _ESCAPED_CONTROL.get(found[2], found[2])
