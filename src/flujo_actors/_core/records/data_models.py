"""Models (attrs, dataclass, pydantic, enum, named tuple) and their fields.

A model is decomposed by field name, ignoring aliases, and rebuilt by its own constructor, so its converters and
validators apply.

Sections:

- Standard-library TypedDicts for pydantic.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import attrs
import typing_extensions
from outcome import Error
from typing_extensions import is_typeddict

from ...errors import NotSerializable
from ..error_info import message_of, tried
from ..type_registry import register_type, type_name

_STORED = (
    *(str, bytes, int, float, complex, Decimal, UUID, list, tuple, set, frozenset, Mapping),
    *(dt.date, dt.time, dt.timedelta, PurePath, BaseException),
)
"""Classes whose values the codec writes, with their subclasses."""


def register_annotation(annotation: object) -> None:
    """Register every model named in an annotation, and their fields' models."""
    pending: list[object] = [annotation]
    seen: dict[int, object] = {}  # with the objects, so that no id is reused
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        pending.extend(_types_in(each))
        if isinstance(each, type) and not isinstance(each, types.GenericAlias) and is_model(each):
            register_type(each)
            pending.extend(_field_types(each))
        elif is_typeddict(each):
            pending.extend(_field_types(each))


def _types_in(annotation: Any) -> list[object]:
    """Return the types inside an annotation: arguments, generic class, alias value."""
    parameters = getattr(annotation, "__pydantic_generic_metadata__", {}).get("args", ())
    named = [getattr(annotation, name, None) for name in ("__origin__", "__value__")]
    return [*typing.get_args(annotation), *parameters, *(each for each in named if each is not None)]


def unstorable_type(annotation: object) -> type | None:
    """Return the first class of an annotation without a stored form."""
    pending: list[Any] = [annotation]
    while pending:
        each = pending.pop(0)
        if typing.get_origin(each) is typing.Literal:
            continue
        pending.extend(_types_in(each))
        if isinstance(each, type) and not isinstance(each, types.GenericAlias) and not _may_be_stored(each):
            return each
    return None


def _may_be_stored(cls: type) -> bool:
    """Return whether values of a class may be stored."""
    open_ended = cls in (object, Any, types.NoneType) or inspect.isabstract(cls) or getattr(cls, "_is_protocol", False)
    return open_ended or is_model(cls) or is_typeddict(cls) or issubclass(cls, _STORED)


def _field_types(cls: Any) -> list[object]:
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return []
    try:
        return list(typing.get_type_hints(cls).values())
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return []


def is_model(cls: type) -> bool:
    """Return whether values of `cls` are stored under its name."""
    return (
        attrs.has(cls)
        or is_dataclass(cls)
        or is_pydantic(cls)
        or hasattr(cls, "__flujo_data__")
        or issubclass(cls, enum.Enum)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def is_pydantic(cls: type) -> bool:
    """Return whether `cls` is a pydantic model, without importing pydantic."""
    return hasattr(cls, "model_validate")


# --- apart and together -------------------------------------------------------------------------------------


def parts_of(value: Any) -> dict[str, object]:
    """Return the constructor arguments of a model by field name."""
    cls: Any = type(value)
    if hasattr(cls, "__flujo_data__"):
        return dict(value.__flujo_data__())
    if is_pydantic(cls):
        return {name: getattr(value, name) for name in [*cls.model_fields, *(value.__pydantic_extra__ or ())]}
    if isinstance(value, tuple):
        return dict(zip(cls._fields, value, strict=True))
    return {field.name: getattr(value, field.name) for field in _fields(cls) if field.init}


def own_parts_of(value: object) -> dict[str, object]:
    """Return the fields of a model declared with `init=False`."""
    own = [field.name for field in _fields(type(value)) if not field.init]
    return {name: getattr(value, name) for name in own if hasattr(value, name)}


def written_by_pydantic(value: Any, name: str) -> object:
    """Return a field that only pydantic can serialize, as plain JSON data."""
    if hasattr(getattr(value, name), "get_secret_value"):
        raise NotSerializable(f"{type_name(type(value))}.{name} is a secret; keep secrets in resources")
    try:
        return value.model_dump(mode="json", round_trip=True, include={name})[name]
    except (ValueError, TypeError) as error:
        raise NotSerializable(f"{type_name(type(value))}.{name} cannot be written as JSON: {error}") from error


def put_together(cls: Any, parts: dict[str, object]) -> object:
    """Return a model from its parts, or raise `NotSerializable`."""
    made = tried(_pydantic_from if is_pydantic(cls) else _called_with, cls, parts)
    if isinstance(made, Error):
        why = message_of(made.error)
        raise NotSerializable(f"stored {type_name(cls)} does not fit the class: {why}") from made.error
    return made.value


def _pydantic_from(cls: Any, parts: dict[str, object]) -> object:
    if getattr(cls, "__pydantic_root_model__", False):
        return cls.model_validate(parts.get("root"))
    return cls.model_validate(parts, by_alias=False, by_name=True)


def _called_with(cls: type, parts: dict[str, object]) -> object:
    own = {field.name for field in _fields(cls) if not field.init}
    aliases = {field.name: getattr(field, "alias", None) or field.name for field in _fields(cls)}
    made = cls(**{aliases.get(name, name): part for name, part in parts.items() if name not in own})
    for name in own & parts.keys():
        with contextlib.suppress(AttributeError):  # a property may replace the field
            object.__setattr__(made, name, parts[name])
    return made


def _fields(cls: Any) -> list[Any]:
    if attrs.has(cls):
        return list(attrs.fields(cls))
    return list(dataclass_fields(cls)) if is_dataclass(cls) else []


# --- Standard-library TypedDicts for pydantic ---------------------------------------------------------------------
# Before Python 3.12 pydantic accepts only those of `typing_extensions`.


SCHEMAS = (
    "a JSON Schema (a dict), a pydantic model, an attrs class, a dataclass, a TypedDict or a type that pydantic knows"
)
"""Accepted schema types, for error messages."""


def known_to_pydantic(schema: object) -> Any:
    """Return the type with every TypedDict converted for pydantic."""
    return schema if sys.version_info >= (3, 12) else _known(schema, ())


def _known(part: Any, inside: tuple[Any, ...]) -> object:
    if typing.is_typeddict(part):
        return Any if part in inside else _declared_anew(part, (*inside, part))
    args = get_args(part)
    known = tuple(_known(arg, inside) if isinstance(arg, type) or get_args(arg) else arg for arg in args)
    if known == args:
        return part
    origin = get_origin(part)
    return Union[known] if origin is types.UnionType else origin[known]  # noqa: UP007 - made at run time


def _declared_anew(typed_dict: object, inside: tuple[object, ...]) -> object:
    if type(typed_dict).__module__ != "typing":
        return typed_dict
    hints = typing.get_type_hints(typed_dict)
    keys = {name: _key(typed_dict, name, _known(hint, inside)) for name, hint in hints.items()}
    anew = typing_extensions.TypedDict(typed_dict.__name__, keys)  # type: ignore[misc]
    anew.__doc__ = typed_dict.__doc__
    return anew


def _key(typed_dict: Any, name: str, hint: object) -> object:
    return hint if name in typed_dict.__required_keys__ else typing_extensions.NotRequired[hint]
