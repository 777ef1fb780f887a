"""From the JSON Schema of a question to the form that asks it. Pure; the answer is judged by whoever takes it.

Rules:

1. Two truths, or up to four options, are buttons: one click answers.
2. A single value is one field, an object of single values a field for each of them.
3. Whatever has more to it is a box for JSON, with the schema beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonSchema: TypeAlias = Mapping[str, object]
Field: TypeAlias = dict[str, object]

BUTTONS = 4
"""How many options are shown as buttons."""

_LONG_TEXT = 200
_TEXTS = {"date": "date", "time": "time", "date-time": "datetime"}
_SCALARS = frozenset({"string", "number", "integer", "boolean"})


def answer_form(schema: JsonSchema | None) -> dict[str, Any]:
    """What a page shows for a question whose answer must fit `schema`: `buttons`, or `fields`.

    `whole` says whether the answer is the value of the only field, or an object with the fields by name.
    """
    if schema is None:
        return _fields([{"name": "answer", "kind": "long", "label": "answer", "required": True}], whole=True)
    resolved, nullable = _resolved(schema, schema)
    buttons = None if nullable else _buttons(resolved)
    if buttons is not None:
        return {"buttons": buttons, "fields": [], "whole": True, "schema": dict(schema)}
    if resolved.get("type") == "object" and not nullable:
        return _object_form(schema, resolved)
    field = _field("answer", schema, root=schema, required=True)
    label = resolved.get("title") or "answer"
    return _fields([{**(field or _json_box("answer")), "label": label}], whole=True, schema=schema)


def _object_form(schema: JsonSchema, resolved: Mapping[str, Any]) -> dict[str, object]:
    required = set(resolved.get("required", ()))
    properties = resolved.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return _fields([_json_box("answer")], whole=True, schema=schema)
    fields = [_field(name, part, root=schema, required=name in required) for name, part in properties.items()]
    if not all(fields):
        return _fields([_json_box("answer")], whole=True, schema=schema)
    return _fields([field for field in fields if field], whole=False, schema=schema)


def _fields(fields: list[Field], *, whole: bool, schema: JsonSchema | None = None) -> dict[str, Any]:
    return {"buttons": None, "fields": fields, "whole": whole, "schema": None if schema is None else dict(schema)}


def _json_box(name: str) -> Field:
    return {"name": name, "kind": "json", "label": name, "required": True}


def _buttons(schema: JsonSchema) -> list[dict[str, object]] | None:
    if schema.get("type") == "boolean":
        return [{"value": True, "label": "Yes"}, {"value": False, "label": "No"}]
    options = _options(schema)
    return options if options is not None and len(options) <= BUTTONS else None


def _options(schema: JsonSchema) -> list[dict[str, object]] | None:
    if "const" in schema:
        return [{"value": schema["const"], "label": str(schema["const"])}]
    given = schema.get("enum")
    if isinstance(given, list) and given:
        return [{"value": each, "label": str(each)} for each in given]
    one_of = schema.get("oneOf")
    if isinstance(one_of, list) and one_of and all(isinstance(each, Mapping) and "const" in each for each in one_of):
        return [{"value": each["const"], "label": str(each.get("title", each["const"]))} for each in one_of]
    return None


def _field(name: str, schema: object, *, root: JsonSchema, required: bool) -> Field | None:
    """The field for one value; `None` if it takes more than a field."""
    if not isinstance(schema, Mapping):
        return None
    resolved, nullable = _resolved(schema, root)
    kind = _kind(resolved, root)
    if kind is None:
        return None
    label = schema.get("title") or resolved.get("title") or name
    field: Field = {"name": name, "kind": kind, "label": str(label), "required": required and not nullable}
    return {**field, **_details(schema, resolved, kind, nullable=nullable)}


def _details(schema: JsonSchema, resolved: JsonSchema, kind: str, *, nullable: bool) -> Field:
    bounds = {"min": resolved.get("minimum"), "max": resolved.get("maximum")}
    found = {
        "nullable": nullable or None,
        "help": schema.get("description") or resolved.get("description"),
        "initial": schema.get("default", resolved.get("default")),
        "options": _options(resolved) if kind == "choice" else None,
        "items": _item_type(resolved) if kind == "list" else None,
        **(bounds if kind in ("number", "integer") else {}),
    }
    return {name: each for name, each in found.items() if each is not None}


def _kind(schema: Mapping[str, Any], root: JsonSchema) -> str | None:
    if _options(schema) is not None:
        return "choice"
    match schema.get("type"):
        case "string":
            long = schema.get("maxLength", 0) > _LONG_TEXT
            return _TEXTS.get(str(schema.get("format")), "long" if long else "text")
        case "number" | "integer" | "boolean" as kind:
            return str(kind)
        case "array" if _is_scalar(schema.get("items"), root):
            return "list"
    return None


def _is_scalar(schema: object, root: JsonSchema) -> bool:
    if not isinstance(schema, Mapping):
        return False
    resolved, nullable = _resolved(schema, root)
    return not nullable and resolved.get("type") in _SCALARS - {"boolean"} and _options(resolved) is None


def _item_type(schema: JsonSchema) -> object:
    items = schema.get("items")
    return items.get("type") if isinstance(items, Mapping) else None


def _resolved(schema: JsonSchema, root: JsonSchema) -> tuple[JsonSchema, bool]:
    """The schema behind references and behind "or nothing", and whether it is one that lets nothing pass, too."""
    nullable = False
    for _ in range(20):  # references may go in a circle
        following, may_be_none = _one_step(schema, root)
        nullable = nullable or may_be_none
        if following is schema:
            return schema, nullable
        schema = following
    return {}, nullable


def _one_step(schema: JsonSchema, root: JsonSchema) -> tuple[JsonSchema, bool]:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _behind(reference, root), False
    parts = schema.get("anyOf")
    if isinstance(parts, list):
        rest = [each for each in parts if isinstance(each, Mapping) and each.get("type") != "null"]
        return (rest[0], True) if len(rest) == 1 and len(parts) == 2 else (schema, False)
    types = schema.get("type")
    if isinstance(types, list):
        rest_types = [each for each in types if each != "null"]
        if len(rest_types) == 1:
            return {**schema, "type": rest_types[0]}, "null" in types
    return schema, False


def _behind(reference: str, root: JsonSchema) -> JsonSchema:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
