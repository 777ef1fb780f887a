"""The JSON Schema of attrs classes and TypedDicts. Leaves that are neither are left to pydantic."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

import attrs
import pydantic

_LISTS = (list, Sequence)
_SETS = (set, frozenset, Set)


def json_schema_of_class(cls: type) -> dict[str, object]:
    """The schema of `cls`; classes inside it become `$defs`, so recursive classes work."""
    defs: dict[str, Any] = {}
    root = _of(cls, defs)
    name = root["$ref"].rsplit("/", 1)[1]
    recursive = f'"#/$defs/{name}"' in repr(defs).replace("'", '"')
    body = dict(defs[name]) if recursive else defs.pop(name)
    return {**body, "$defs": defs} if defs else body


def _of(tp: Any, defs: dict[str, object]) -> dict[str, Any]:
    if is_typeddict(tp) or (isinstance(tp, type) and attrs.has(tp)):
        return _of_class(tp, defs)
    origin, args = get_origin(tp), get_args(tp)
    if origin in (Annotated, Required, NotRequired):
        return _of(args[0], defs)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(arg, defs) for arg in args]}
    if origin in _LISTS and args:
        return {"type": "array", "items": _of(args[0], defs)}
    if origin in _SETS and args:
        return {"type": "array", "uniqueItems": True, "items": _of(args[0], defs)}
    if origin is tuple and args:
        return _of_tuple(args, defs)
    if origin in (dict, Mapping) and args:
        return {"type": "object", "additionalProperties": _of(args[1], defs)}
    return _leaf(tp, defs)


def _of_class(cls: type, defs: dict[str, object]) -> dict[str, Any]:
    reference = {"$ref": f"#/$defs/{cls.__name__}"}
    if cls.__name__ in defs:
        return reference
    body: dict[str, Any] = {"title": cls.__name__, "type": "object", "properties": {}, "required": []}
    defs[cls.__name__] = body
    if is_typeddict(cls):
        _add_keys(body, cls, defs)
        return reference
    attrs.resolve_types(cls)
    for field in attrs.fields(cls):
        if field.init:
            _add_field(body, field, defs)
    return reference


def _add_keys(body: dict[str, Any], cls: Any, defs: dict[str, object]) -> None:
    for name, tp in get_type_hints(cls, include_extras=True).items():
        body["properties"][name] = _of(tp, defs)
        if name in cls.__required_keys__:
            body["required"].append(name)


def _add_field(body: dict[str, Any], field: attrs.Attribute[Any], defs: dict[str, object]) -> None:
    name = field.name  # cattrs reads and writes the attribute's name, not its init alias
    body["properties"][name] = {} if field.type is None else _of(field.type, defs)
    if field.default is attrs.NOTHING:
        body["required"].append(name)


def _of_tuple(args: tuple[object, ...], defs: dict[str, object]) -> dict[str, object]:
    if len(args) == 2 and args[1] is Ellipsis:
        return {"type": "array", "items": _of(args[0], defs)}
    items = [_of(arg, defs) for arg in args]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _leaf(tp: Any, defs: dict[str, object]) -> dict[str, object]:
    schema = pydantic.TypeAdapter(tp).json_schema()
    defs.update(schema.pop("$defs", {}))
    return schema
