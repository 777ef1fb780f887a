"""Any value as plain data a sink can write down: dicts, lists, texts and numbers.

No method of a foreign object is called (a `repr` may raise, block, or tell what its fields keep): an object
without fields of its own is named by its type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

import attrs

Plain: TypeAlias = object
"""Dicts, lists and scalars."""

_SCALARS = (bool, int, float, complex, Decimal, date, time, timedelta, UUID)
_DEEPEST = 64


def plain(value: object, *, text: Callable[[str], str], hides: Callable[[str], bool], hidden: str) -> Plain:
    """A copy of `value`: texts go through `text`, and `hidden` replaces the fields whose name `hides`."""
    return _Copier(text, hides, hidden).copy(value, 0)


@attrs.define
class _Copier:
    _text: Callable[[str], str]
    _hides: Callable[[str], bool]
    _hidden: str
    _done: dict[int, tuple[object, Plain]] = attrs.field(factory=dict, init=False)

    def copy(self, value: object, depth: int) -> Plain:
        match value:
            case None:
                return None
            case Enum():
                return f"{type(value).__name__}.{value.name}"
            case str():
                return self._text(value)
            case bytes():
                return self._bytes(value)
            case _ if isinstance(value, _SCALARS):
                return value
            case _ if depth >= _DEEPEST:
                return "[too deep]"
            case _:
                return self._container(value, depth)

    def _bytes(self, value: bytes) -> bytes:
        text = value.decode("utf-8", "surrogateescape")
        clean = self._text(text)
        return value if clean is text else clean.encode("utf-8", "surrogateescape")

    def _container(self, value: object, depth: int) -> Plain:
        # Shared parts are copied once; a part that contains itself finds this mark. Holding the value keeps
        # its id from being given to another one meanwhile.
        if id(value) not in self._done:
            self._done[id(value)] = (value, "[contains itself]")
            self._done[id(value)] = (value, self._copied(value, depth + 1))
        return self._done[id(value)][1]

    def _copied(self, value: object, depth: int) -> Plain:
        if isinstance(value, dict | MappingProxyType):
            return {self._key(name): self._field(name, part, depth) for name, part in value.items()}
        fields = _fields(value)
        if fields is None and isinstance(value, list | tuple | set | frozenset):
            return [self.copy(part, depth) for part in value]
        if fields is None:
            return f"<{type(value).__qualname__}>"
        return {name: self._field(name, part, depth) for name, part in fields}

    def _key(self, name: object) -> Plain:
        if isinstance(name, str):
            return self._text(name)
        if isinstance(name, int | float) and not isinstance(name, Enum):
            return name
        return str(name) if isinstance(name, _SCALARS) else f"<{type(name).__qualname__}>"

    def _field(self, name: object, part: object, depth: int) -> Plain:
        says_nothing = part is None or isinstance(part, bool)
        if isinstance(name, str) and not says_nothing and self._hides(name):
            return self._hidden
        return self.copy(part, depth)


def _fields(value: object) -> Iterator[tuple[str, object]] | None:
    """The fields of a declared class with their values, without those that are kept out of its repr."""
    names = _field_names(type(value))
    return None if names is None else ((name, getattr(value, name, None)) for name in names)


def _field_names(kind: type[object]) -> list[str] | None:
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind) if field.repr]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.repr]
    if hasattr(kind, "__pydantic_fields__"):
        return [name for name, field in kind.__pydantic_fields__.items() if field.repr]
    if issubclass(kind, tuple):
        return list(kind._fields) if hasattr(kind, "_fields") else None
    return None
