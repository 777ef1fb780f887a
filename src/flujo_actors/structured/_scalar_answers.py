"""Scalar answers: a single word or number for schemas that require one.

1. The whole answer may be the value, with quotes, markdown or a sentence mark around it.
2. A member of an enumeration or a boolean may be inside a sentence, if no other member is, and if no mark with a
   meaning is next to it: `A+` does not name `A`, nor `1.5` the text `5`.
3. A number inside a sentence counts only at its end, after a label (`Answer: 42`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import _strict as strict
from ._candidates import after_thinking, without_fence
from ._coerce import integer_from, is_null_word, member_of, number_from
from ._compiled_schema import Schema
from ._strict import resolved

_MAX_PROSE = 5_000
_LABELLED_NUMBER = re.compile(
    r"[^\n]{0,200}?(?:(?<![<>=!~])[:=]|\bis\b)[^\w<>=≤≥≠~≈±#%^+\-−–—]*([-+]?[\d.,_]*\d)[^\w<>=≤≥#%^+\-−–—/]*\Z", re.S
)
_DECORATION = " \t\r\n_`\"'“”‘’.!?:;,"
_OPENING = " \t\r\n_`\"'“”‘’:;,"
_EMPHASIS = re.compile(r"(\*{1,3})(?=\S)([^*\n]{1,200}?)(?<=\S)\1")
_TAG = re.compile(r"</?[A-Za-z][\w:.-]*>")
_NOT_BEFORE = r"(?<![\w+\-−#^%$*!<>≤≥≠~≈])(?<![<>≤≥≠~≈] )(?<!\d[.,/])"
_NOT_EQUATED = r"(?<![=.])(?<!= )"
_NOT_BEHIND = r"(?![\w+\-#^*]|\s?[%^<>=]|[.,/:]\d)"
NOTHING = object()


def scalar_from(text: str, schema: Schema) -> object:
    """Return the scalar that `schema` finds in `text`, or `NOTHING`."""
    variants = _variants(schema.json_schema, schema.json_schema)
    if not any(_is_scalar(variant) for variant in variants):
        return NOTHING
    answer = without_fence(after_thinking(text))
    members = [m for v in variants for m in _members(v)]
    if members:
        return _one_member(answer, members)
    for variant in variants:
        value = _typed(answer, variant.get("type"))
        if value is not NOTHING and schema.is_valid(value):
            return value
    return NOTHING


def describes(schema: Schema, text: str) -> bool:
    """Return whether `schema` restricts a text beyond its type."""
    variants = _variants(schema.json_schema, schema.json_schema)
    return any(text in _members(variant) or "format" in variant or "pattern" in variant for variant in variants)


def _variants(part: object, root: Mapping[str, object], depth: int = 0) -> list[Mapping[str, object]]:
    if not isinstance(part, Mapping) or depth > 10:
        return []
    part = resolved(part, root)
    subs = part.get("anyOf") or part.get("oneOf")
    return [v for sub in subs for v in _variants(sub, root, depth + 1)] if subs else [part]


def _is_scalar(part: Mapping[str, object]) -> bool:
    kinds = part.get("type")
    return "const" in part or "enum" in part or (isinstance(kinds, str) and kinds not in ("object", "array"))


def _members(part: Mapping[str, Any]) -> list[object]:
    """Return the scalars that a schema lists, without containers."""
    if "const" in part or "enum" in part:
        listed = [part["const"]] if "const" in part else part["enum"]
        return [member for member in listed if not isinstance(member, dict | list)]
    return [True, False] if part.get("type") == "boolean" else []


def _one_member(answer: str, members: list[object]) -> object:
    answer = _without_markup(answer)
    exact = member_of(_undecorated(answer), members)
    if any(exact is m for m in members):
        return exact
    if len(answer) > _MAX_PROSE:
        return NOTHING
    named = {word: m for m in members if (word := _spelled(m)) and _is_named(word, answer)}
    member = next(iter(named.values()), NOTHING)
    return NOTHING if len(named) > 1 or _is_number(member) else member


def _without_markup(answer: str) -> str:
    return _EMPHASIS.sub(r"\2", _TAG.sub(" ", answer)) if len(answer) <= _MAX_PROSE else answer


def _undecorated(answer: str) -> str:
    """Return an answer without quotes and final sentence marks.

    `.5` and `!x` begin with their mark and keep it.
    """
    return answer.lstrip(_OPENING).rstrip(_DECORATION)


def _is_named(word: str, answer: str) -> bool:
    before = _NOT_BEFORE + (_NOT_EQUATED if word[0].isdigit() else "")
    return re.search(rf"{before}{re.escape(word)}{_NOT_BEHIND}", answer, re.I) is not None


def _spelled(member: object) -> str:
    return (
        {True: "true", False: "false", None: "null"}[member]
        if member is None or member is True or member is False
        else str(member)
    )


def _is_number(member: object) -> bool:
    return isinstance(member, int | float) and not isinstance(member, bool)


def _typed(answer: str, kind: object) -> object:
    if kind == "string":
        return _text_of(answer)
    if kind == "null":
        return None if is_null_word(answer) else NOTHING
    if kind in ("integer", "number"):
        return _number(answer, kind)
    return NOTHING


def _text_of(answer: str) -> object:
    """Return the answer's text, decoded from a JSON string."""
    try:
        text = strict.parse(answer) if answer[:1] == '"' else answer
    except strict.JsonSyntaxError:
        text = answer
    return text if answer and isinstance(text, str) else NOTHING


def _number(answer: str, kind: str) -> Any:
    if len(answer) > _MAX_PROSE:
        return NOTHING
    spelled = integer_from if kind == "integer" else number_from
    answer = _without_markup(answer)
    number = spelled(_undecorated(answer))
    labelled = _LABELLED_NUMBER.fullmatch(answer)
    if number is None and labelled:
        number = spelled(labelled[1].strip(".,"))
    return NOTHING if number is None else number
