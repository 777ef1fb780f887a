"""Compiled, immutable `Schema` for every supported schema type.

Sections:

- JSON Schema of attrs classes and TypedDicts; other types are left to pydantic.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    NoReturn,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import attrs
import jsonschema_rs
import pydantic
from cattrs.preconf.json import make_converter
from outcome import Value
from pydantic_core import from_json, to_json

from .._core.attempt_results import escalating
from .._core.error_info import message_of, tried
from .._core.records.data_models import SCHEMAS, known_to_pydantic
from ..errors import DeclarationError
from ._read_result import Flaw

# --- JSON Schema of attrs classes and TypedDicts ------------------------------------------------------------------


_LISTS = (list, Sequence)
_SETS = (set, frozenset, Set)


def json_schema_of_class(cls: type) -> dict[str, object]:
    """Return the schema of `cls`; nested classes become `$defs`, so recursion works."""
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


# --- Compiled -----------------------------------------------------------------------------------------------------


_CONVERTER = make_converter()
_MAX_FLAWS = 20
_MAX_MESSAGE = 300
_LARGE, _HUGE = 2_000, 20_000
_MASKED = b"masked"


def _construct_nothing(data: object) -> object:
    return data


@attrs.frozen(kw_only=True, eq=False)
class Schema:
    """JSON Schema, hash, validator and constructor of a value."""

    name: str
    """Name of the schema."""
    json_schema: Mapping[str, Any]
    """JSON Schema that the model receives."""
    schema_hash: str
    """Twelve hex digits, equal for equal schemas in every process."""
    constructs: bool
    """Whether `construct` builds an instance of a class."""
    _validator: jsonschema_rs.Validator = attrs.field(repr=False)
    _construct: Callable[..., object] = attrs.field(default=_construct_nothing, repr=False)
    _parts: dict[bytes, jsonschema_rs.Validator] = attrs.field(factory=dict, repr=False)

    def is_valid(self, data: object) -> bool:
        """Return whether the JSON Schema accepts `data`.

        Args:
            data: parsed JSON.
        """
        try:
            return bool(self._validator.is_valid(data))
        except ValueError:  # a value JSON cannot hold, such as a lone surrogate
            return False

    def validate(self, data: object) -> list[Flaw]:
        """Return all flaws of `data`; a single one if `data` is large.

        Args:
            data: parsed JSON.
        """
        try:
            if _is_larger(data, _LARGE):
                return self._first_flaw(data)
            errors = self._validator.iter_errors(data)
            return [_flaw(error) for error, _ in zip(errors, range(_MAX_FLAWS), strict=False)]
        except ValueError as error:
            return [Flaw(path="$", message=str(error))]

    def _first_flaw(self, data: object) -> list[Flaw]:
        """Return one flaw of a large value, unquoted, in bounded time."""
        if _is_larger(data, _HUGE):
            return [] if self.is_valid(data) else [Flaw(path="$", message="the value does not fit the schema")]
        if _MASKED not in self._parts:
            self._parts[_MASKED] = _validator_for(dict(self.json_schema), mask="the value")
        try:
            self._parts[_MASKED].validate(data)
        except jsonschema_rs.ValidationError as error:
            return [_flaw(error)]
        return []

    def part_is_valid(self, part: Mapping[str, object], data: object) -> bool:
        """Return whether a part of this schema, taken by itself, accepts `data`.

        Args:
            part: JSON Schema of the part.
            data: parsed JSON.
        """
        key = to_json(part)
        validator = self._parts.get(key)
        if validator is None:
            shared = {k: self.json_schema[k] for k in ("$defs", "definitions") if k in self.json_schema}
            validator = self._parts[key] = _validator_for({**shared, **part})
        try:
            return bool(validator.is_valid(data))
        except ValueError:
            return False

    def construct(self, data: object) -> Any:
        """Return the instance of `data`; raise `ValueError` if the class refuses it.

        Args:
            data: valid parsed JSON.
        """
        got = tried(self._construct, data)
        if isinstance(got, Value) or isinstance(got.error, ValueError):
            return got.unwrap()
        if control := escalating(got.error):
            raise control from None
        raise ValueError(f"{self.name} refuses the value: {_leaf_message(got.error)}") from got.error


def compile_schema(schema: object) -> Schema:
    """Return a compiled schema; raise `DeclarationError` if invalid.

    A schema is a JSON Schema dict, pydantic model, attrs class, TypedDict, dataclass or other type.

    Args:
        schema: a type, a pydantic model or a JSON Schema.
    """
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, str):  # which pydantic takes for the name of a type
        raise DeclarationError(f"{schema!r:.100} is a text, not {SCHEMAS}")
    try:
        return _of_json(to_json(schema)) if isinstance(schema, Mapping) else _of_hashable(schema)
    except DeclarationError:
        raise
    except pydantic.PydanticSchemaGenerationError as error:
        raise DeclarationError(f"{schema!r:.100} is not {SCHEMAS}") from error
    except Exception as error:  # classes make their schemas themselves
        raise DeclarationError(f"{_name_of(schema)!r} cannot serve as a schema: {message_of(error)}") from error


@lru_cache(maxsize=512)
def _of_json(serialized: bytes) -> Schema:
    return _build("value", from_json(serialized), None)


def _of_hashable(schema: object) -> Schema:
    try:
        hash(schema)
    except TypeError:
        return _of_type.__wrapped__(schema, spelling="")
    return _of_type(schema, spelling=repr(schema))


def _name_of(schema: object) -> str:
    return getattr(schema, "__name__", None) or f"{schema!r:.100}"


@lru_cache(maxsize=512)
def _of_type(schema: Any, *, spelling: str) -> Schema:
    """Compile a type; the spelling of `int | str` counts."""
    name = _name_of(schema)
    if is_typeddict(schema):
        return _build(name, json_schema_of_class(schema), None)
    if isinstance(schema, type) and attrs.has(schema):
        return _build(name, json_schema_of_class(schema), _attrs_constructor(schema))
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(known_to_pydantic(schema))
    return _build(name, adapter.json_schema(), lambda data: adapter.validate_json(to_json(data)))


def _attrs_constructor(cls: type) -> Callable[..., object]:
    def construct(data: object) -> object:
        return _CONVERTER.structure(data, cls)

    return construct


def _leaf_message(error: BaseException) -> str:
    """Return the message of an error or its first leaf."""
    if isinstance(error, BaseExceptionGroup):
        return _leaf_message(error.exceptions[0])
    message = message_of(error)
    return message if isinstance(error, ValueError) else f"{type(error).__name__}: {message}"


def _build(name: str, json_schema: dict[str, object], construct: Callable[..., object] | None) -> Schema:
    canonical = to_json(_sorted(json_schema))
    return Schema(
        name=str(json_schema.get("title", name)),
        json_schema=json_schema,
        schema_hash=hashlib.sha256(canonical).hexdigest()[:12],
        constructs=construct is not None,
        validator=_validator_for(json_schema),
        construct=construct or _construct_nothing,
    )


def _sorted(node: object) -> object:
    if isinstance(node, dict):
        return {key: _sorted(node[key]) for key in sorted(node)}
    return [_sorted(item) for item in node] if isinstance(node, list) else node


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise ValueError(f"the schema refers to {uri}, and schemas are never fetched")


def _is_larger(data: object, most: int) -> bool:
    """Return whether a value has more than `most` parts."""
    left, nodes = most, [data]
    while nodes and left >= 0:
        node = nodes.pop()
        if isinstance(node, dict | list):
            left -= len(node)
            nodes.extend(node.values() if isinstance(node, dict) else node[: max(left, 0)])
        elif isinstance(node, str):
            left -= len(node) // 100
    return left < 0


def _validator_for(json_schema: dict[str, object], *, mask: str | None = None) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(json_schema, retriever=_refuse_to_fetch, mask=mask)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise DeclarationError(f"not a JSON Schema: {str(error)[:_MAX_MESSAGE]}") from error


def _flaw(error: jsonschema_rs.ValidationError) -> Flaw:
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.instance_path)
    message = error.message
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}…"
    return Flaw(path=f"${path}", message=message)
