"""The JSON Schema of the language (draft-07), made from the table of fields: editors complete and check with it.

`kind` is an enum with an `if`/`then` for each, not a `oneOf`: editors blame the right key then.
"""

from __future__ import annotations

from typing import TypeAlias

from . import fields
from .fields import GROUPS, OLD_SPELLINGS, STEP_KINDS, Field

Schema: TypeAlias = dict[str, object]

_PYTHON = r"(?:[A-Za-z][A-Za-z0-9_]*\.)*[A-Za-z][A-Za-z0-9_]*:[A-Za-z][A-Za-z0-9_]*"
_NUMBER = r"^\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*$"
_ANY_STEP: Schema = {"$ref": "#/definitions/any_step"}
_STEPS: Schema = {"type": "array", "minItems": 1, "items": _ANY_STEP}
_WRAPPED: Schema = {
    "type": "object",
    "properties": {"steps": _STEPS},
    "required": ["steps"],
    "additionalProperties": False,
}
_SNIPPETS = [
    {"label": "step", "body": {"name": "$1", "uses": "agents.$2"}},
    {"label": "question", "body": {"name": "$1", "kind": "hitl", "message": "$2"}},
    {"label": "map", "body": {"name": "$1", "kind": "map", "iterable_input": "context.$2", "body": []}},
]


def blueprint_schema() -> Schema:
    """The schema of a whole file."""
    definitions = {group: _group(group) for group in GROUPS if group not in STEP_KINDS}
    definitions |= {_of_kind(kind): _step(kind) for kind in STEP_KINDS}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A blueprint of flujo-actors",
        **definitions.pop("blueprint"),
        "definitions": {**definitions, "any_step": _any_step()},
    }


def _of_kind(kind: str) -> str:
    return f"{kind}_step"


def _any_step() -> Schema:
    """A step: which keys it has is up to its kind, which is `step` if it says none."""
    return {
        "type": "object",
        "properties": {"kind": _described(GROUPS["step"][1], {"enum": list(STEP_KINDS)})},
        "defaultSnippets": _SNIPPETS,
        "allOf": [_if_kind(kind) for kind in STEP_KINDS],
    }


def _if_kind(kind: str) -> Schema:
    condition: Schema = {"properties": {"kind": {"const": kind}}}
    if kind != "step":
        condition["required"] = ["kind"]
    return {"if": condition, "then": {"$ref": f"#/definitions/{_of_kind(kind)}"}}


def _step(kind: str) -> Schema:
    schema = _group(kind)
    if kind == "conditional":
        schema["oneOf"] = [{"required": ["condition"]}, {"required": ["condition_expression"]}]
    return schema


def _group(group: str) -> Schema:
    properties = {field.name: _described(field, _kind(field)) for field in GROUPS[group]}
    for old, field in OLD_SPELLINGS[group].items():
        properties[old] = {
            **_old(field),
            "deprecationMessage": f"it is called `{field.name}` now",
            "doNotSuggest": True,
        }
    if group == "config":
        properties |= _options_of_imports()
    required = [_required(field) for field in GROUPS[group] if field.required]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if group == "agent":
        required.append({"anyOf": [{"required": ["model"]}, {"required": ["uses"]}]})
    return {**schema, "allOf": required} if required else schema


def _old(field: Field) -> Schema:
    return {"type": ["string", "object"]} if isinstance(field.kind, fields.Uses) else _kind(field)


def _options_of_imports() -> dict[str, Schema]:
    """What old files say of imports, and what holds anyway."""
    says = {"inherit_context": True, "propagate_hitl": True, "on_failure": "abort", "input_to": "initial_prompt"}
    return {key: {"const": value, "doNotSuggest": True} for key, value in says.items()} | {
        "outputs": {"type": ["array", "object"], "doNotSuggest": True}
    }


def _required(field: Field) -> Schema:
    names = (field.name, *field.old)
    return {"anyOf": [{"required": [name]} for name in names]} if field.old else {"required": [field.name]}


def _described(field: Field, schema: Schema) -> Schema:
    told = {"description": field.doc, "markdownDescription": field.doc}
    default = {} if field.default is None else {"default": field.default}
    example = {} if field.example is None else {"examples": [field.example]}
    return {**told, **schema, **default, **example}


def _kind(field: Field) -> Schema:
    if field.name == "version":
        return {"enum": ["1", "0.1", 1, 0.1]}
    return schema_of(field.kind)


def schema_of(kind: fields.Kind) -> Schema:
    """The schema of a kind of values."""
    match kind:
        case fields.Text():
            return {"type": ["string", "number", *(["null"] if kind.nullable else [])], "minLength": 1}
        case fields.Expression():
            return {"type": ["string", "number", "boolean"]}
        case fields.Flag():
            return {"type": "boolean"}
        case fields.Number():
            return _number(kind)
        case fields.OneOf():
            return {"enum": list(kind.words)}
        case fields.Anything():
            return {}
        case fields.Table():
            return {"type": "object"}
        case fields.Schema():
            return _schema(kind)
        case fields.Uses():
            return {"type": "string", "pattern": rf"^(?:(?:agents|imports|builtins)\.[^:]+|{_PYTHON})$"}
        case fields.Function():
            return {"type": "string", "pattern": f"^{_PYTHON}$"}
        case fields.ListOf():
            return {"type": "array", "items": schema_of(kind.item)}
        case fields.TableOf():
            return {"type": "object", "additionalProperties": schema_of(kind.item)}
        case fields.Group():
            return {"$ref": f"#/definitions/{kind.name}"}
        case fields.Steps():
            return _steps(kind)
        case fields.OneStep():
            return _ANY_STEP
        case fields.Either():
            return {"if": {"type": "object"}, "then": schema_of(kind.other), "else": schema_of(kind.one)}


def _number(kind: fields.Number) -> Schema:
    schema: Schema = {"type": "integer" if kind.whole else "number"}
    schema["exclusiveMinimum" if kind.above else "minimum"] = kind.least
    if kind.most is not None:
        schema["maximum"] = kind.most
    return {"if": {"type": "string"}, "then": {"pattern": _NUMBER}, "else": schema}


def _schema(kind: fields.Schema) -> Schema:
    if not kind.reference:
        return {"type": "object"}
    return {"if": {"type": "string"}, "then": {"pattern": r"^agents\."}, "else": {"type": "object"}}


def _steps(kind: fields.Steps) -> Schema:
    """A list, one step, or the steps below `steps:`; perhaps the name of a branch."""
    one: Schema = {"if": {"required": ["steps"]}, "then": _WRAPPED, "else": _ANY_STEP}
    schema: Schema = {"if": {"type": "array"}, "then": _STEPS, "else": one}
    return {"if": {"type": "string"}, "then": {}, "else": schema} if kind.by_name else schema
