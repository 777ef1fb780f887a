"""Answers that are a single word or number, for schemas that ask for one.

1. The whole answer may be the value, with quotes, markdown or a sentence mark around it.
2. A member of an enumeration or a boolean may stand inside a sentence, if no other member does.
3. A number inside a sentence counts only at its end, after a label (`Answer: 42`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import _marks as marks
from . import _spelling as spelling
from . import _strict as strict
from ._references import resolved
from ._schema import Schema

_MAX_PROSE = 5_000
_LABELLED_NUMBER = re.compile(r"[^\n]{0,200}?(?:[:=]|\bis\b)\W*?([-+]?[\d.,_]*\d)\W*\Z", re.S)
_DECORATION = " \t\r\n*_`\"'“”‘’.!?:;,"
NOTHING = object()


def scalar_from(text: str, schema: Schema) -> object:
    """The scalar that `schema` finds in `text`, or `NOTHING`."""
    variants = _variants(schema.json_schema, schema.json_schema)
    if not any(_is_scalar(variant) for variant in variants):
        return NOTHING
    answer = marks.without_fence(marks.after_thinking(text))
    members = [m for v in variants for m in _members(v)]
    if members:
        return _one_member(answer, members)
    for variant in variants:
        value = _typed(answer, variant.get("type"))
        if value is not NOTHING and schema.is_valid(value):
            return value
    return NOTHING


def describes(schema: Schema, text: str) -> bool:
    """Whether `schema` says more of a text it accepts than that it is one."""
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
    """The scalars that a schema lists; nobody names a container with a word."""
    if "const" in part or "enum" in part:
        listed = [part["const"]] if "const" in part else part["enum"]
        return [member for member in listed if not isinstance(member, dict | list)]
    return [True, False] if part.get("type") == "boolean" else []


def _one_member(answer: str, members: list[object]) -> object:
    exact = spelling.member_of(answer.strip(_DECORATION), members)
    if any(exact is m for m in members):
        return exact
    if len(answer) > _MAX_PROSE:
        return NOTHING
    named = {word: m for m in members if (word := _spelled(m)) and _is_named(word, answer)}
    member = next(iter(named.values()), NOTHING)
    return NOTHING if len(named) > 1 or _is_number(member) else member


def _is_named(word: str, answer: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", answer, re.I) is not None


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
        return None if spelling.is_null_word(answer) else NOTHING
    if kind in ("integer", "number"):
        return _number(answer, kind)
    return NOTHING


def _text_of(answer: str) -> object:
    """The text that the answer is, or that it says as a JSON string."""
    try:
        said = strict.parse(answer) if answer[:1] == '"' else answer
    except strict.Malformed:
        said = answer
    return said if answer and isinstance(said, str) else NOTHING


def _number(answer: str, kind: str) -> Any:
    if len(answer) > _MAX_PROSE:
        return NOTHING
    spelled = spelling.integer_from if kind == "integer" else spelling.number_from
    number = spelled(answer.strip(_DECORATION))
    labelled = _LABELLED_NUMBER.fullmatch(answer)
    if number is None and labelled:
        number = spelled(labelled[1].strip(".,"))
    return NOTHING if number is None else number
