"""Which values an expression can have, as far as that is to be seen without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from jinja2 import nodes

from .shapes import Shape, values_of
from .template_parsing import Reference, reference_of

Values: TypeAlias = list[object] | None
"""All there can be; `None` if that is not known."""

_MOST = 200


def possible(node: nodes.Expr, shape_of: Callable[[Reference], Shape]) -> Values:
    """The values that an expression can have."""
    match node:
        case nodes.Const():
            return [node.value]
        case nodes.Compare() | nodes.Not() | nodes.Test():
            return [True, False]
        case nodes.Name() | nodes.Getattr() | nodes.Getitem():
            reference = reference_of(node)
            return None if reference is None else values_of(shape_of(reference))
        case nodes.CondExpr():
            return _either(node, shape_of)
        case nodes.And() | nodes.Or():
            return _joined(node, shape_of)
        case nodes.Filter(name="lower" | "upper" | "trim" | "string") if node.node is not None:
            return _filtered(node, shape_of)
    return None


def _either(node: nodes.CondExpr, shape_of: Callable[[Reference], Shape]) -> Values:
    if node.expr2 is None:
        return None
    then, otherwise = possible(node.expr1, shape_of), possible(node.expr2, shape_of)
    return None if then is None or otherwise is None else _unique([*then, *otherwise])


def _joined(node: nodes.And | nodes.Or, shape_of: Callable[[Reference], Shape]) -> Values:
    left, right = possible(node.left, shape_of), possible(node.right, shape_of)
    if left is None or right is None:
        return None
    decided = [value for value in left if bool(value) is isinstance(node, nodes.Or)]
    goes_on = any(bool(value) is isinstance(node, nodes.And) for value in left)
    return _unique([*decided, *(right if goes_on else [])])


def _filtered(node: nodes.Filter, shape_of: Callable[[Reference], Shape]) -> Values:
    assert node.node is not None
    values = possible(node.node, shape_of)
    if values is None:
        return None
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        return None
    change: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "trim": str.strip}
    return _unique([change.get(node.name, str)(value) for value in texts])


def _unique(values: list[object]) -> Values:
    found: list[Any] = []
    for value in values[:_MOST]:
        if not any(type(value) is type(each) and value == each for each in found):
            found.append(value)
    return found
