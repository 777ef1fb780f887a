"""TypedDicts of the standard library, for pydantic: before Python 3.12 it knows only those of `typing_extensions`."""

from __future__ import annotations

import sys
import types
import typing
from typing import Any, Union, get_args, get_origin

import typing_extensions

SCHEMAS = (
    "a JSON Schema (a dict), a pydantic model, an attrs class, a dataclass, a TypedDict or a type that pydantic knows"
)
"""What serves as a schema, for those who have given something else."""


def known_to_pydantic(schema: object) -> Any:
    """The same type with every TypedDict in it declared so that pydantic takes it."""
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
