"""What an annotation asks for, as a type or as the text of one."""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Iterator

_OBJECTS = frozenset({"dict", "Dict", "Mapping", "MutableMapping"})
_UNIONS = frozenset({"Union", "Optional"})


def wants_object(annotation: object) -> bool:
    """Whether a dict or a mapping is asked for, and nothing else but perhaps `None`."""
    names = _written(annotation) if isinstance(annotation, str) else _named(annotation)
    wanted = set(names) - {"None", "NoneType"}
    return bool(wanted) and wanted <= _OBJECTS


def _named(annotation: object) -> Iterator[str]:
    """The names of the types that a value may have, without their parameters."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _named(typing.get_args(annotation)[0])
    elif origin is typing.Union or isinstance(annotation, types.UnionType):
        yield from (name for each in typing.get_args(annotation) for name in _named(each))
    else:
        yield getattr(origin or annotation, "__name__", "None" if annotation is None else "")


def _written(annotation: str) -> Iterator[str]:
    try:
        yield from _read(ast.parse(annotation, mode="eval").body)
    except SyntaxError:
        yield annotation


def _read(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from (*_read(left), *_read(right))
        case ast.Subscript(value=outer, slice=inner) if next(_read(outer)) in _UNIONS:
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            yield from ("None", *(each for part in parts for each in _read(part)))
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=[first, *_])) if next(_read(outer)) == "Annotated":
            yield from _read(first)
        case ast.Subscript(value=outer):
            yield from _read(outer)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=value):
            yield from _written(value) if isinstance(value, str) else (str(value),)
        case _:
            yield ""
