"""Extraction of schema values from free text, without a model.

1. JSON anywhere in the text comes first.
2. Otherwise labeled values (`key: value` lines, bullets, two-column tables, tags) and tables of rows are collected.
3. A label counts only if it spells a property; two different values for one property make it ambiguous: it is omitted.
4. Nothing is invented: a missing value is absent, and the schema decides whether that is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import StructuredOutputError
from ._candidates import after_thinking
from ._coerce import coerce, same_name
from ._compiled_schema import Schema, compile_schema
from ._reader import read_structured
from ._schema_match import container_in
from ._strict import refusal, refusing, resolved

_MAX_TEXT = 200_000
_LABEL = re.compile(
    r"^[\s>*+\-#•\d.)]{0,12}\**_{0,2}`?([^\W\d][^:=|<>\n*`]{0,60}?)`?_{0,2}\**\s*(?:[:：]|=(?!=))\**[^\S\n]*(.*)$", re.M
)
_TAG = re.compile(r"<([A-Za-z][\w-]{0,60})>([^<>]{0,10000})</\1>")
_PARAMETER = re.compile(r"<parameter[= ](?:name=)?[\"']?([\w-]+)[\"']?>([^<>]{0,10000})</parameter>")
_ROW = re.compile(r"^[^\S\n]*\|(.+)\|[^\S\n]*$", re.M)
_RULE = re.compile(r"[\s|:-]+")
_BULLET = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s+(.+)")
_UNKNOWN = frozenset(
    {"", "n/a", "na", "nan", "unknown", "none", "null", "nil", "undefined"}
    | {"-", "—", "not specified", "not provided", "tbd"}
)
_DECORATION = "*_` \t"


def extract_from_text(text: str, schema: object) -> Any:
    """Return the text's value of `schema`, or raise `StructuredOutputError`.

    Args:
        text: text of a model.
        schema: a type, a pydantic model or a JSON Schema.
    """
    compiled = compile_schema(schema)
    try:
        return read_structured(text, compiled).value
    except StructuredOutputError as no_json:
        return labelled_value(text, compiled, no_json)


def labelled_value(text: str, schema: Schema, no_json: StructuredOutputError | None = None) -> object:
    """Return the value of labels and tables in a text without JSON.

    Raise `StructuredOutputError` if there is none.
    """
    with refusing("extract", text, schema):
        found = _extracted(after_thinking(text), schema) if len(text) <= _MAX_TEXT else None
        if found is None:
            raise refusal("extract", f"no labelled values of {schema.name!r} in the text", text, schema) from no_json
        return _accepted(found, schema, text)


def _accepted(found: Any, schema: Schema, text: str) -> object:
    value, _ = coerce(found, schema, container_in)
    flaws = schema.validate(value)
    if flaws:
        reason = "; ".join(f"{flaw.path}: {flaw.message}" for flaw in flaws[:3])
        raise refusal("extract", reason, text, schema, flaws)
    return schema.construct(value)


def _extracted(text: str, schema: Schema) -> object:
    root = schema.json_schema
    if root.get("type") == "array":
        return _table(text, _properties(root.get("items"), root))
    properties = _properties(root, root)
    values = _labelled(text, properties) if properties else {}
    for name, part in properties.items():
        if name not in values and (rows := _table(text, _properties(resolved(part, root).get("items"), root))):
            values[name] = rows
    return values or None


def _properties(part: object, root: Mapping[str, object]) -> Mapping[str, object]:
    found: Mapping[str, Any] = resolved(part, root).get("properties", {})
    return found


# --- labels ---------------------------------------------------------------------------------------------------


def _labelled(text: str, properties: Mapping[str, object]) -> dict[str, object]:
    seen: dict[str, list[object]] = {}
    for label, value in _pairs(text, properties):
        name = same_name(label, properties)
        if name is not None:
            seen.setdefault(name, []).append(value)
    return {name: values[0] for name, values in seen.items() if all(v == values[0] for v in values)}


def _pairs(text: str, properties: Mapping[str, object]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for found in (*_TAG.finditer(text), *_PARAMETER.finditer(text)):
        pairs.append((found[1], found[2].strip()))
    for found in _LABEL.finditer(text):
        value = _cleaned(found[2]) or _bullets_below(text, found.end())
        pairs.append((found[1], value))
    for cells in _rows(text):
        if len(cells) == 2:
            pairs.append((cells[0], _cleaned(cells[1])))
    return [(label, _split(label, value, properties)) for label, value in pairs if not _is_unknown(value)]


def _cleaned(value: str) -> str:
    value = value.strip().strip(_DECORATION).strip()
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _is_unknown(value: object) -> bool:
    return isinstance(value, str) and value.casefold() in _UNKNOWN


def _bullets_below(text: str, at: int) -> object:
    items: list[str] = []
    for line in _lines(text, at + 1):
        bullet = _BULLET.fullmatch(line)
        if not bullet or _LABEL.fullmatch(line):
            break
        items.append(_cleaned(bullet[1]))
    return items or ""


def _lines(text: str, start: int) -> Iterator[str]:
    """Yield the lines from `start` on; most callers need only the first."""
    while 0 <= start < len(text):
        end = text.find("\n", start)
        yield text[start : end if end >= 0 else len(text)]
        start = end + 1 if end >= 0 else -1


def _split(label: str, value: object, properties: Mapping[str, object]) -> object:
    """Return a comma-separated line where the property is a list."""
    name = same_name(label, properties)
    part = properties.get(name) if name else None
    is_list = isinstance(part, Mapping) and part.get("type") == "array"
    if is_list and isinstance(value, str) and "," in value and value[:1] not in "[{":
        return [_cleaned(item) for item in value.split(",") if item.strip()]
    return value


# --- tables ---------------------------------------------------------------------------------------------------


def _rows(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in found[1].split("|")] for found in _ROW.finditer(text)]
    return [cells for cells in rows if not all(_RULE.fullmatch(cell) for cell in cells if cell)]


def _table(text: str, properties: Mapping[str, object]) -> list[dict[str, object]] | None:
    """Return the rows of a table whose header spells only properties."""
    rows = _rows(text) if properties else []
    if len(rows) < 2:
        return None
    names = [same_name(_cleaned(cell), properties) for cell in rows[0]]
    if None in names or len(set(names)) != len(names):
        return None
    body = [cells for cells in rows[1:] if len(cells) == len(names)]
    return [
        {str(name): _cleaned(cell) for name, cell in zip(names, cells, strict=True) if not _is_unknown(_cleaned(cell))}
        for cells in body
    ]
