"""The steps every pipeline can name: pure functions, registered by name, without side effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import pydantic
from cattrs.preconf.json import make_converter
from pydantic_core import to_jsonable_python

from . import strict
from .extract import extract_from_text

_CONVERTER = make_converter()


@attrs.frozen
class WrapDict:
    """A step that puts what it is given under one key."""

    key: str = attrs.field(validator=attrs.validators.instance_of(str))

    @property
    def __name__(self) -> str:
        return f"wrap_dict({self.key!r})"

    def __call__(self, value: Any) -> dict[str, Any]:
        return {self.key: value}


def wrap_dict(key: str = "value") -> WrapDict:
    """A step that turns `x` into `{key: x}`."""
    return WrapDict(key)


def ensure_object(value: Any, key: str = "value") -> dict[str, Any]:
    """`value` as a dict of plain data: models and classes by their fields, a JSON object by its text.

    Anything that has no fields comes back under `key`.
    """
    plain = _plain(value)
    return dict(plain) if isinstance(plain, Mapping) else {key: plain}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping | pydantic.BaseModel) or _is_dataclass_instance(value):
        return to_jsonable_python(value)
    if attrs.has(type(value)):
        return _CONVERTER.unstructure(value)
    if isinstance(value, str):
        return _object_in(value)
    return to_jsonable_python(value)


def _is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _object_in(text: str) -> Any:
    try:
        parsed = strict.parse(text)
    except strict.Malformed:
        return text
    return parsed if isinstance(parsed, dict) else text


BUILTINS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"wrap_dict": wrap_dict, "ensure_object": ensure_object, "extract_from_text": extract_from_text}
)
"""Every built-in by its name; read-only."""
