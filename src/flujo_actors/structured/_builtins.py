"""Built-in steps that pipelines can name: pure functions without side effects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import attrs
from outcome import Error
from pydantic_core import to_jsonable_python

from .._core.error_info import message_of, tried
from . import _strict as strict
from ._extract import extract_from_text


@attrs.frozen
class WrapDict:
    """Step that puts its input under one key."""

    key: str = attrs.field(validator=attrs.validators.instance_of(str))
    """Key of the wrapped value."""

    @property
    def __name__(self) -> str:
        return f"wrap_dict({self.key!r})"

    def __call__(self, value: object) -> dict[str, Any]:
        return {self.key: value}


class _WrapDictStep:
    """`wrap_dict(key)`: a step from `x` to `{key: x}`; default `value`."""

    __name__ = "wrap_dict"

    def __call__(self, key: str = "value") -> WrapDict:
        return WrapDict(key)

    async def run(self, value: object) -> dict[str, Any]:
        """Run the uncalled form as a step's agent."""
        return WrapDict("value")(value)


wrap_dict: _WrapDictStep = _WrapDictStep()


def ensure_object(value: object, key: str = "value") -> dict[str, Any]:
    """Return `value` as a dict of plain data, from fields or JSON.

    A value without fields is returned under `key`; one that cannot be inspected, as its text.

    Args:
        value: value to wrap.
        key: key of a value that is no object.
    """
    plain = _plain(value)
    return dict(plain) if isinstance(plain, Mapping) else {key: plain}


def _plain(value: object) -> object:
    plain = tried(_decoded, value)  # circles, bytes that are no text, and whatever the user's properties raise
    return _as_text(value) if isinstance(plain, Error) else plain.value


def _decoded(value: object) -> object:
    return _object_in(value) if isinstance(value, str) else to_jsonable_python(value, fallback=_fields_of)


def _fields_of(value: Any) -> object:
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": message_of(value)}
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    has_fields = hasattr(value, "__dict__") and not isinstance(value, type | ModuleType) and not callable(value)
    return {name: item for name, item in vars(value).items() if name[:1] != "_"} if has_fields else _as_text(value)


def _as_text(value: object) -> str:
    text = tried(str, value)
    return f"<{type(value).__name__}>" if isinstance(text, Error) else text.value


def _object_in(text: str) -> object:
    try:
        parsed = strict.parse(text)
    except strict.JsonSyntaxError:
        return text
    return parsed if isinstance(parsed, dict) else text


def passthrough(value: object) -> object:
    """Return the input."""
    return value


def stringify(value: object) -> str:
    """Return text unchanged, other values as JSON or their text."""
    if isinstance(value, str):
        return value
    plain = tried(_jsonable, value)
    return _as_text(value) if isinstance(plain, Error) else str(plain.value)


def _jsonable(value: object) -> str:
    return json.dumps(to_jsonable_python(value, fallback=_fields_of), ensure_ascii=False)


BUILTINS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "passthrough": passthrough,
        "stringify": stringify,
        "wrap_dict": wrap_dict,
        "ensure_object": ensure_object,
        "extract_from_text": extract_from_text,
    }
)
"""Every built-in by its name; read-only."""
