"""Static knowledge of values: JSON Schemas, or unknown.

A shape is a schema, or `None` if unknown. A predicate on a shape is true only if the schema implies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from ..templates.template_parser import EACH

Shape: TypeAlias = Mapping[str, object] | None

TEXT: Shape = {"type": "string"}
OBJECT: Shape = {"type": "object"}
LIST: Shape = {"type": "array"}

_WORDS = {
    "string": "a text",
    "array": "a list",
    "object": "an object",
    "integer": "a number",
    "number": "a number",
    "boolean": "a truth",
}
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})


def object_of(properties: Mapping[str, Shape]) -> Shape:
    """Return the shape of an object with exactly these fields."""
    return {"type": "object", "properties": {key: shape or {} for key, shape in properties.items()}}


def list_of(item: Shape) -> Shape:
    """Return the shape of a list of such items."""
    return {"type": "array", "items": item} if item is not None else LIST


def type_of(shape: Shape) -> str | None:
    """Return the single type of a shape, if it has one."""
    if shape is None or any(key in shape for key in ("$ref", "anyOf", "oneOf", "allOf", "not")):
        return None
    given = shape.get("type")
    if isinstance(given, str):
        return given
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):
        return given[0]
    return "object" if given is None and isinstance(shape.get("properties"), Mapping) else None


def is_object(shape: Shape) -> bool:
    """Return whether it is an object for certain."""
    return type_of(shape) == "object"


def is_no_object(shape: Shape) -> bool:
    """Return whether it is something else for certain."""
    return type_of(shape) in _SCALARS | {"array"} or _values(shape) is not None


def is_no_list(shape: Shape) -> bool:
    """Return whether a map certainly cannot iterate over the shape."""
    return type_of(shape) in _SCALARS | {"object"}


def in_words(shape: Shape) -> str:
    """Return a description of the shape for messages."""
    words = {
        "string": "a text",
        "array": "a list",
        "object": "an object",
        "integer": "a number",
        "number": "a number",
        "boolean": "a truth",
    }
    return words.get(type_of(shape) or "", f"of type {type_of(shape)}")


@attrs.frozen
class NoField:
    """A field that a shape does not have, and those it has."""

    name: str
    known: tuple[str, ...]


def follow(shape: Shape, path: Sequence[str | int]) -> Shape | NoField:
    """Return the shape behind fields and indexes; `NoField` if it cannot exist."""
    for step in path:
        kind = type_of(shape)
        if shape is None or kind is None:
            return None
        if kind == "object":
            found = _field(shape, step)
        elif kind == "array":
            found = _item(shape, step)
        else:
            found = None if isinstance(step, int) or step == EACH or kind == "null" else NoField(str(step), ())
        if isinstance(found, NoField):
            return found
        shape = found
    return shape


def _field(shape: Mapping[str, object], step: str | int) -> Shape | NoField:
    properties = shape.get("properties")
    if step == EACH or not isinstance(properties, Mapping):
        return None
    if step in properties:
        found = properties[step]
        return found if isinstance(found, Mapping) and found else None
    more = shape.get("additionalProperties")
    open_ended = more is True or isinstance(more, Mapping) or "patternProperties" in shape
    return None if open_ended else NoField(str(step), tuple(map(str, properties)))


def _item(shape: Mapping[str, object], step: str | int) -> Shape | NoField:
    if isinstance(step, str) and step != EACH:
        return NoField(step, ())
    items = shape.get("items")
    return items if isinstance(items, Mapping) and items else None


def keys_of(shape: Shape) -> frozenset[str] | None:
    """Return the keys of an object, if all are known."""
    properties = shape.get("properties") if shape is not None and is_object(shape) else None
    more = None if shape is None else shape.get("additionalProperties")
    if not isinstance(properties, Mapping) or more is True or isinstance(more, Mapping):
        return None
    return frozenset(map(str, properties))


def _values(shape: Shape) -> list[object] | None:
    if shape is None:
        return None
    if "const" in shape:
        return [shape["const"]]
    listed = shape.get("enum")
    return list(listed) if isinstance(listed, list) else None


def values_of(shape: Shape) -> list[object] | None:
    """Return all values of a shape, if few and known."""
    listed = _values(shape)
    if listed is not None:
        return listed
    return [True, False] if type_of(shape) == "boolean" else None
