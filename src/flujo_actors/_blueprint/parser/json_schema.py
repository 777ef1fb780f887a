"""JSON Schema of the language (draft-07), from the table of fields.

`kind` is an enum with an `if`/`then` for each, not a `oneOf`: editors blame the right key then.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from . import field_table
from .field_table import GROUPS, NESTED_KINDS, OLD_SPELLINGS, STEP_KINDS, BlueprintField

Schema: TypeAlias = dict[str, Any]

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
    """Return the schema of a whole file."""
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
    """Return a step's schema by kind, `step` by default."""
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
    schema = _nested(kind) if kind in NESTED_KINDS else _group(kind)
    if kind == "conditional":
        schema["oneOf"] = [{"required": ["condition"]}, {"required": ["condition_expression"]}]
    return schema


def _nested(kind: str) -> Schema:
    """Return the schema of a kind that allows nested keys."""
    schema = _group(kind)
    inner = {"type": "object", "properties": dict(schema["properties"]), "additionalProperties": False}
    message = {"deprecationMessage": "write its keys into the step itself", "doNotSuggest": True}
    required = [
        {"anyOf": [*part.get("anyOf", [part]), {"properties": {kind: part}, "required": [kind]}]}
        for part in schema["allOf"]
    ]
    return {**schema, "properties": {**schema["properties"], kind: {**inner, **message}}, "allOf": required}


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


def _old(field: BlueprintField) -> Schema:
    return {"type": ["string", "object"]} if isinstance(field.kind, field_table.Uses) else _kind(field)


def _options_of_imports() -> dict[str, Schema]:
    """Return the redundant import options of old files."""
    says = {"inherit_context": True, "propagate_hitl": True, "on_failure": "abort", "input_to": "initial_prompt"}
    return {key: {"const": value, "doNotSuggest": True} for key, value in says.items()} | {
        "outputs": {"type": ["array", "object"], "doNotSuggest": True}
    }


def _required(field: BlueprintField) -> Schema:
    names = (field.name, *field.old)
    return {"anyOf": [{"required": [name]} for name in names]} if field.old else {"required": [field.name]}


def _described(field: BlueprintField, schema: Schema) -> Schema:
    message = {"description": field.doc, "markdownDescription": field.doc}
    default = {} if field.default is None else {"default": field.default}
    example = {} if field.example is None else {"examples": [field.example]}
    return {**message, **schema, **default, **example}


def _kind(field: BlueprintField) -> Schema:
    if field.name == "version":
        return {"enum": ["1", "0.1", 1, 0.1]}
    return schema_of(field.kind)


def schema_of(kind: field_table.Kind) -> Schema:
    """Return the schema of a kind of values."""
    match kind:
        case field_table.TextField():
            return {"type": ["string", "number", *(["null"] if kind.nullable else [])], "minLength": 1}
        case field_table.Expression():
            return {"type": ["string", "number", "boolean"]}
        case field_table.Flag():
            return {"type": "boolean"}
        case field_table.Number():
            return _number(kind)
        case field_table.OneOf():
            return {"enum": list(kind.words)}
        case field_table.Anything():
            return {}
        case field_table.Table():
            return {"type": "object"}
        case field_table.SchemaField():
            return _schema(kind)
        case field_table.Uses():
            return {"type": "string", "pattern": rf"^(?:(?:agents|imports|builtins)\.[^:]+|{_PYTHON})$"}
        case field_table.Function():
            return {"type": "string", "pattern": f"^{_PYTHON}$"}
        case field_table.FailureRule():
            return {"type": ["integer", "string"], "minimum": 100, "maximum": 599, "minLength": 1}
        case field_table.ListOf():
            return {"type": "array", "items": schema_of(kind.item)}
        case field_table.TableOf():
            return {"type": "object", "additionalProperties": schema_of(kind.item)}
        case field_table.Group():
            return {"$ref": f"#/definitions/{kind.name}"}
        case field_table.Steps():
            return _steps(kind)
        case field_table.OneStep():
            return _ANY_STEP
        case field_table.Either(other=field_table.Steps()):
            return {"if": {"type": "string"}, "then": schema_of(kind.one), "else": schema_of(kind.other)}
        case field_table.Either():
            return {"if": {"type": "object"}, "then": schema_of(kind.other), "else": schema_of(kind.one)}


def _number(kind: field_table.Number) -> Schema:
    number = "integer" if kind.whole else "number"
    schema: Schema = {"type": [number, "null"] if kind.nullable else number}
    schema["exclusiveMinimum" if kind.above else "minimum"] = kind.least
    if kind.most is not None:
        schema["maximum"] = kind.most
    return {"if": {"type": "string"}, "then": {"pattern": _NUMBER}, "else": schema}


def _schema(kind: field_table.SchemaField) -> Schema:
    if not kind.reference:
        return {"type": "object"}
    return {"if": {"type": "string"}, "then": {"pattern": r"^agents\."}, "else": {"type": "object"}}


def _steps(kind: field_table.Steps) -> Schema:
    """Return the schema of a list, step, `steps:` or branch name."""
    one: Schema = {"if": {"required": ["steps"]}, "then": _WRAPPED, "else": _ANY_STEP}
    schema: Schema = {"if": {"type": "array"}, "then": _STEPS, "else": one}
    return {"if": {"type": "string"}, "then": {}, "else": schema} if kind.by_name else schema
