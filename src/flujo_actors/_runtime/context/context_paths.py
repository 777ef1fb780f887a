"""Paths into a context: `summary`, `ticket.customer.name`.

Attributes and keys are read alike. Paths into a model are checked before a run as far as annotations allow.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..._core.validators import nearest
from ...errors import ContextError, DeclarationError
from .copies import has_fields, isolated, values_of
from .merge import updated

_PLAIN = (str, bytes, int, float, bool)


def check_path(model: type, where: str, *, subject: str) -> object:
    """Refuse an unknown path; return its annotation or `Any`."""
    at: Any = model
    for name in where.split("."):
        known = _fields_of(at)
        if known is None:
            return Any
        if name not in known:
            near = nearest(name, list(known))
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
            raise DeclarationError(f"{subject} {where!r}: {at.__name__} has no field {name!r}; {hint}")
        at = _without_none(known[name])
    return at


def check_history(model: type, where: str, *, subject: str) -> None:
    """Refuse a field that cannot hold messages."""
    kind = check_path(model, where, subject=subject)
    holder = typing.get_origin(kind) or kind
    items = [each for each in typing.get_args(kind) if each is not Ellipsis]
    listed = not isinstance(holder, type) or issubclass(holder, Iterable)
    plain = isinstance(holder, type) and issubclass(holder, (Mapping, *_PLAIN))
    if not listed or plain or any(each in _PLAIN for each in items):
        raise DeclarationError(
            f"{subject} {where!r}: the field holds {_named(kind)}, not messages; annotate it list[ModelMessage], or "
            "list"
        )


def _named(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _fields_of(kind: object) -> Mapping[str, object] | None:
    """Return a model's field annotations; `None` if any name fits."""
    if not isinstance(kind, type) or not has_fields(kind):
        return None
    if hasattr(kind, "model_fields"):
        if getattr(kind, "model_config", {}).get("extra") == "allow":
            return None
        computed = dict.fromkeys(getattr(kind, "model_computed_fields", {}), Any)
        return {name: field.annotation for name, field in kind.model_fields.items()} | computed | _properties(kind)
    if attrs.has(kind):
        return {field.name: _resolved(kind, field.name) for field in attrs.fields(kind)} | _properties(kind)
    if dataclasses.is_dataclass(kind):
        return {field.name: _resolved(kind, field.name) for field in dataclasses.fields(kind)} | _properties(kind)
    return None


def _properties(kind: type) -> dict[str, object]:
    """Return the readable attributes that are no fields."""
    return {
        name: Any
        for cls in kind.__mro__
        for name, value in vars(cls).items()
        if isinstance(value, property) and not name.startswith("_")
    }


def _resolved(kind: type, name: str) -> object:
    try:
        return typing.get_type_hints(kind).get(name, Any)
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return Any


def _without_none(kind: object) -> object:
    """Return the non-null type of an optional field; other unions are unknown."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    rest = [each for each in typing.get_args(kind) if each is not type(None)]
    return rest[0] if len(rest) == 1 else Any


def read_path(context: object, where: str) -> object:
    """Return the value at a path, or raise `ContextError`.

    Below a value that is `None`, the result is `None`.
    """
    value = context
    for place, name in enumerate(where.split(".")):
        if value is None and place:
            return None
        value = _part(value, name, where)
    return value


def _part(value: object, name: str, where: str) -> object:
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        raise _missing(name, where, [str(key) for key in value])
    try:
        return getattr(value, name)
    except AttributeError:
        known = list(values_of(value)) if has_fields(type(value)) else []
        raise _missing(name, where, known) from None


def _missing(name: str, where: str, known: list[str]) -> ContextError:
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"there is {', '.join(known) or 'nothing'}"
    at = "" if name == where else f" (in {where!r})"
    return ContextError(f"the context has no {name!r}{at}; {hint}")


def has_path(context: object, where: str) -> bool:
    """Return whether there is a value at a path."""
    try:
        read_path(context, where)
    except ContextError:
        return False
    return True


def with_value(context: object, where: str, value: object, *, step_name: str) -> object:
    """Return the context with another value at a path; a copy."""
    first, _, rest = where.partition(".")
    if not rest:
        return updated(context, {first: value}, step_name=step_name)
    copied = isolated(context)
    around, _, last = where.rpartition(".")
    holder = read_path(copied, around)
    if isinstance(holder, dict):
        holder[last] = value
    else:
        setattr(holder, last, value)
    return copied
