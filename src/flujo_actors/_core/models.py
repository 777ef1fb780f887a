"""Models (attrs, dataclass, pydantic, enum, named tuple) and their parts.

A model is taken apart by field name, whatever aliases it has, and put together by its own constructor, so that its
converters and validators have the last word.
"""

from __future__ import annotations

import contextlib
import enum
import types
import typing
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

import attrs
from outcome import Error

from .._type_registry import register_type, type_name
from ..errors import NotSerializable
from .error_info import message_of
from .foreign_code import tried


def register_annotation(annotation: object) -> None:
    """Register every model named in a type annotation, with the models of their fields."""
    pending: list[object] = [annotation]
    seen: dict[int, object] = {}  # with the objects, so that no id is used twice
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        pending.extend(typing.get_args(each))
        if isinstance(each, type) and not isinstance(each, types.GenericAlias) and is_model(each):
            register_type(each)
            pending.extend(_field_types(each))


def _field_types(cls: type) -> list[object]:
    if issubclass(cls, enum.Enum):
        return []
    try:
        return list(typing.get_type_hints(cls).values())
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return []


def is_model(cls: type) -> bool:
    """Whether values of `cls` are stored under its name."""
    return (
        attrs.has(cls)
        or is_dataclass(cls)
        or is_pydantic(cls)
        or hasattr(cls, "__flujo_data__")
        or issubclass(cls, enum.Enum)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def is_pydantic(cls: type) -> bool:
    """Whether `cls` is a pydantic model; pydantic is not imported to find out."""
    return hasattr(cls, "model_validate")


# --- apart and together -------------------------------------------------------------------------------------


def parts_of(value: Any) -> dict[str, object]:
    """What the model's constructor takes, by field name."""
    cls: Any = type(value)
    if hasattr(cls, "__flujo_data__"):
        return dict(value.__flujo_data__())
    if is_pydantic(cls):
        return {name: getattr(value, name) for name in [*cls.model_fields, *(value.__pydantic_extra__ or ())]}
    if isinstance(value, tuple):
        return dict(zip(cls._fields, value, strict=True))
    return {field.name: getattr(value, field.name) for field in _fields(cls) if field.init}


def own_parts_of(value: object) -> dict[str, object]:
    """What the model keeps beside its constructor's arguments: the fields with `init=False`."""
    own = [field.name for field in _fields(type(value)) if not field.init]
    return {name: getattr(value, name) for name in own if hasattr(value, name)}


def written_by_pydantic(value: Any, name: str) -> object:
    """A field whose type only pydantic can write, as plain JSON data."""
    if hasattr(getattr(value, name), "get_secret_value"):
        raise NotSerializable(f"{type_name(type(value))}.{name} is a secret; keep secrets in resources")
    try:
        return value.model_dump(mode="json", round_trip=True, include={name})[name]
    except (ValueError, TypeError) as error:
        raise NotSerializable(f"{type_name(type(value))}.{name} cannot be written as JSON: {error}") from error


def put_together(cls: Any, parts: dict[str, object]) -> object:
    """A model from its parts; `NotSerializable` if it does not take them."""
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
        with contextlib.suppress(AttributeError):  # a property may stand where the field was
            object.__setattr__(made, name, parts[name])
    return made


def _fields(cls: Any) -> list[Any]:
    if attrs.has(cls):
        return list(attrs.fields(cls))
    return list(dataclass_fields(cls)) if is_dataclass(cls) else []
