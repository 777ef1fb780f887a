"""A question as an MCP elicitation: an object of single values, all that clients must know to ask for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

_SINGLE = frozenset({"string", "number", "integer", "boolean"})
_ONLY = "answer"


@attrs.frozen
class Given:
    """An answer that somebody gave."""

    value: Any


def asks_with(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The schema to ask with; `None` if the answer is more than a client can ask for."""
    if schema is None:
        return _object({_ONLY: {"type": "string"}})
    if _is_single(schema):
        return _object({_ONLY: _plain(schema)})
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping) or "$defs" in schema:
        return None
    if not properties or not all(isinstance(each, Mapping) and _is_single(each) for each in properties.values()):
        return None
    return _object({name: _plain(each) for name, each in properties.items()}, list(schema.get("required", [])))


def answer_in(action: str, content: Mapping[str, object] | None, asked: Mapping[str, Any]) -> Given | None:
    """The answer in a reply; `None` if it was declined."""
    if action != "accept" or content is None:
        return None
    return Given(content.get(_ONLY)) if list(asked["properties"]) == [_ONLY] else Given(dict(content))


def _object(properties: dict[str, object], required: list[str] | None = None) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [_ONLY] if required is None else required}


def _is_single(schema: Mapping[str, Any]) -> bool:
    if "enum" in schema:
        return all(isinstance(each, str) for each in schema["enum"])
    return schema.get("type") in _SINGLE and "$ref" not in schema


_KEPT = {"type", "enum", "title", "description", "minimum", "maximum", "minLength", "maxLength", "format", "default"}


def _plain(schema: Mapping[str, object]) -> dict[str, object]:
    kept = {name: part for name, part in schema.items() if name in _KEPT}
    return {"type": "string", **kept} if "enum" in schema else kept
