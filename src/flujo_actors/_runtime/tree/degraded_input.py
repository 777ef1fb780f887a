"""Degraded text as the input of the next step."""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Iterator

import attrs

from ..._dsl.call_plan import input_type
from ..._dsl.declared_step import Declared
from ..._dsl.pipeline import Pipeline
from ..._dsl.step_declaration import Step
from ...structured._builtins import ensure_object
from ..run.messages import StepRequest
from . import attempt_loop as _attempt_loop  # noqa: F401  (the road of steps with degraded data)

_OBJECTS = frozenset({"dict", "Dict", "Mapping", "MutableMapping"})
_UNIONS = frozenset({"Union", "Optional"})


def in_expected_form(request: StepRequest) -> StepRequest:
    """Return the request with data in the step's expected form."""
    step = request.step
    if isinstance(step, Pipeline):
        return request
    expected = input_type(step.input) if callable(step.input) else _expected_type(step) if step.input is None else None
    return attrs.evolve(request, data=_as(expected, request.data, request.degraded))


def input_in_expected_form(step: Declared, data: object, texts: frozenset[str]) -> object:
    """Return a step's `input` value in its expected form."""
    return _as(_expected_type(step), data, texts)


def _expected_type(step: Declared) -> object:
    """Return the annotation of the first consumer of the step's data."""
    plans = (*step.processors.before_plans, *((step.plan,) if isinstance(step, Step) else ()))
    return plans[0].input_type if plans else None


def _as(expected: object, data: object, texts: frozenset[str]) -> object:
    """Return an object for a degraded text, where expected."""
    stands_for_value = isinstance(data, str) and data in texts
    return ensure_object(data) if stands_for_value and _wants_object(expected) else data


def _wants_object(annotation: object) -> bool:
    """Return whether an annotation accepts only a mapping or `None`."""
    names = _written(annotation) if isinstance(annotation, str) else _named(annotation)
    wanted = set(names) - {"None", "NoneType"}
    return bool(wanted) and wanted <= _OBJECTS


def _named(annotation: object) -> Iterator[str]:
    """Yield the names of the accepted types, without their parameters."""
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
