"""Paths into a context model, checked before anything runs: as far as its annotations say what is where."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .._core.near_names import nearest
from ..errors import DeclarationError
from .isolation import has_fields

_PLAIN = (str, bytes, int, float, bool)


def check_path(model: type, where: str, *, what: str) -> object:
    """Refuse a path that the model has not, with the nearest name; its annotation, or `Any` where nobody knows."""
    at: Any = model
    for name in where.split("."):
        known = _fields_of(at)
        if known is None:
            return Any
        if name not in known:
            near = nearest(name, list(known))
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
            raise DeclarationError(f"{what} {where!r}: {at.__name__} has no field {name!r}; {hint}")
        at = _without_none(known[name])
    return at


def check_history(model: type, where: str, *, what: str) -> None:
    """Refuse a field that cannot hold messages."""
    kind = check_path(model, where, what=what)
    holder = typing.get_origin(kind) or kind
    items = [each for each in typing.get_args(kind) if each is not Ellipsis]
    listed = not isinstance(holder, type) or issubclass(holder, Iterable)
    plain = isinstance(holder, type) and issubclass(holder, (Mapping, *_PLAIN))
    if not listed or plain or any(each in _PLAIN for each in items):
        raise DeclarationError(
            f"{what} {where!r}: the field holds {_named(kind)}, not messages; annotate it list[ModelMessage], or list"
        )


def _named(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _fields_of(kind: object) -> Mapping[str, object] | None:
    """The annotations of a model's fields; `None` where any name may do."""
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
    """What can be read although it is no field."""
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
    """What an optional field holds if it holds something; of other unions nobody knows."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    rest = [each for each in typing.get_args(kind) if each is not type(None)]
    return rest[0] if len(rest) == 1 else Any
