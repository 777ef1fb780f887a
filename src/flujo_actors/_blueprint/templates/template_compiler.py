"""Compiler from parsed templates to closures, once per blueprint."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jinja2 import nodes

from .template_filters import (
    FILTERS,
    TESTS,
    Missing,
    TemplateError,
    TemplateFrame,
    attribute,
    contains,
    item,
    items_of,
    number,
    present,
    text_of,
    truth,
)
from .template_parser import Parsed, reference_of

Evaluate: TypeAlias = Callable[[TemplateFrame], object]


def evaluator(parsed: Parsed) -> Evaluate:
    """Return an evaluator: a single expression's value, else a text."""
    assert parsed.tree is not None, "a text with faults is not compiled"
    expression = parsed.expression
    if expression is not None:
        value = _expression(expression)
        return lambda frame: present(value(frame))
    return _joined(_statements(parsed.tree.body))


def _joined(parts: list[Callable[[TemplateFrame, list[str]], None]]) -> Evaluate:
    def render(frame: TemplateFrame) -> str:
        pieces: list[str] = []
        for part in parts:
            part(frame, pieces)
        return "".join(pieces)

    return render


# --- statements ----------------------------------------------------------------------------------------------

_Write: TypeAlias = Callable[[TemplateFrame, list[str]], None]


def _statements(body: list[nodes.Node]) -> list[_Write]:
    return [write for node in body for write in _statement(node)]


def _statement(node: nodes.Node) -> list[_Write]:
    match node:
        case nodes.Output():
            return [_data(each.data) if isinstance(each, nodes.TemplateData) else _shown(each) for each in node.nodes]
        case nodes.If():
            return [_choice(node)]
        case nodes.For():
            return [_loop(node)]
    raise AssertionError(f"{type(node).__name__} was let through")


def _data(text: str) -> _Write:
    def write(frame: TemplateFrame, pieces: list[str]) -> None:
        frame.written(len(text))
        pieces.append(text)

    return write


def _shown(node: nodes.Expr) -> _Write:
    value = _expression(node)

    def write(frame: TemplateFrame, pieces: list[str]) -> None:
        text = text_of(frame, present(value(frame)))
        frame.written(len(text))
        pieces.append(text)

    return write


def _choice(node: nodes.If) -> _Write:
    tests = [(_expression(each.test), _statements(each.body)) for each in (node, *node.elif_)]
    otherwise = _statements(node.else_)

    def write(frame: TemplateFrame, pieces: list[str]) -> None:
        chosen = next((body for test, body in tests if truth(present(test(frame)))), otherwise)
        for part in chosen:
            part(frame, pieces)

    return write


def _loop(node: nodes.For) -> _Write:
    assert isinstance(node.target, nodes.Name)
    name, items = node.target.name, _expression(node.iter)
    test = None if node.test is None else _expression(node.test)
    body, otherwise = _statements(node.body), _statements(node.else_)

    def write(frame: TemplateFrame, pieces: list[str]) -> None:
        inner = TemplateFrame(dict(frame.variables), frame.turns, frame.output, frame.work)
        empty = True
        for each in items_of(inner, items(frame)):
            inner.charge(1)
            inner.variables[name] = each
            if test is None or truth(present(test(inner))):
                empty = False
                for part in body:
                    part(inner, pieces)
        frame.turns, frame.output, frame.work = inner.turns, inner.output, inner.work
        for part in otherwise if empty else ():
            part(frame, pieces)

    return write


# --- expressions ---------------------------------------------------------------------------------------------

_COMPARE: Mapping[str, Callable[..., object]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}


def _expression(node: nodes.Node) -> Evaluate:
    """Return a node as a function; every evaluation is counted."""
    evaluate = _bare(node)
    if isinstance(node, nodes.Const | nodes.Name | nodes.Getattr):
        return evaluate

    def counted(frame: TemplateFrame) -> object:
        frame.charge(1)
        return evaluate(frame)

    return counted


def _bare(node: nodes.Node) -> Evaluate:
    match node:
        case nodes.Const():
            value = node.value
            return lambda frame: value
        case nodes.Name():
            return _variable(node.name)
        case nodes.Getattr() | nodes.Getitem():
            return _looked_up(node)
        case nodes.List() | nodes.Dict():
            return _collection(node)
        case nodes.Filter() | nodes.Test():
            return _called(node)
        case nodes.Compare():
            return _comparison(node)
        case nodes.And() | nodes.Or() | nodes.Not() | nodes.CondExpr():
            return _logic(node)
        case nodes.Concat():
            return _concatenation([_expression(each) for each in node.nodes])
        case nodes.Add() | nodes.Sub() | nodes.Neg() | nodes.Pos():
            return _arithmetic(node)
    raise AssertionError(f"{type(node).__name__} was let through")


def _variable(name: str) -> Evaluate:
    def look_up(frame: TemplateFrame) -> object:
        variables = frame.variables
        if name in variables:
            return variables[name]
        return Missing(f"there is no variable {name!r}; there are {', '.join(sorted(variables))}")

    return look_up


def _looked_up(node: nodes.Getattr | nodes.Getitem) -> Evaluate:
    step = _step_named(node)
    if step is not None:
        return _output_of(step)
    of = _expression(node.node)
    if isinstance(node, nodes.Getattr):
        name = node.attr
        return lambda frame: attribute(of(frame), name)
    if isinstance(node.arg, nodes.Slice):
        return _slice(of, node.arg)
    key = _expression(node.arg)
    return lambda frame: item(frame, of(frame), present(key(frame)))


def _step_named(node: nodes.Node) -> str | None:
    """Return the step of `steps.<name>.output`, which is looked up as a whole."""
    reference = reference_of(node)
    if reference is None or reference.root != "steps" or len(reference.path) != 2 or reference.path[1] != "output":
        return None
    return str(reference.path[0])


def _output_of(step: str) -> Evaluate:
    def look_up(frame: TemplateFrame) -> object:
        try:
            return frame.variables["steps"][step]
        except KeyError as error:
            return Missing(str(error))

    return look_up


def _slice(of: Evaluate, node: nodes.Slice) -> Evaluate:
    ends = [None if each is None else _expression(each) for each in (node.start, node.stop, node.step)]

    def cut(frame: TemplateFrame) -> object:
        value = present(of(frame))
        if not isinstance(value, str | list | tuple):
            raise TemplateError(f"a list or a text is wanted here, not a {type(value).__name__}")
        frame.moved(len(value))
        try:
            return value[slice(*(None if each is None else present(each(frame)) for each in ends))]
        except (TypeError, ValueError) as error:
            raise TemplateError(f"a part of a list is taken by whole numbers: {error}") from None

    return cut


def _collection(node: nodes.List | nodes.Dict) -> Evaluate:
    if isinstance(node, nodes.List):
        items = [_expression(each) for each in node.items]
        return lambda frame: [present(each(frame)) for each in items]
    pairs = [(_expression(pair.key), _expression(pair.value)) for pair in node.items]
    return lambda frame: {_key(present(key(frame))): present(value(frame)) for key, value in pairs}


def _key(value: object) -> object:
    if not isinstance(value, str | int | float | bool | None):
        raise TemplateError(f"a key is a text or a number, not a {type(value).__name__}")
    return value


def _called(node: nodes.Filter | nodes.Test) -> Evaluate:
    function = (FILTERS if isinstance(node, nodes.Filter) else TESTS)[node.name]
    assert node.node is not None
    of = _expression(node.node)
    given = [_expression(each) for each in node.args]
    named = [(str(pair.key), _expression(pair.value)) for pair in node.kwargs]
    if not given and not named:
        return lambda frame: function(frame, of(frame))

    def call(frame: TemplateFrame) -> Any:
        arguments = [present(each(frame)) for each in given]
        return function(frame, of(frame), *arguments, **{key: present(each(frame)) for key, each in named})

    return call


def _comparison(node: nodes.Compare) -> Evaluate:
    first = _expression(node.expr)
    operands = [(each.op, _expression(each.expr)) for each in node.ops]

    def compare(frame: TemplateFrame) -> bool:
        left = present(first(frame))
        for operation, right_of in operands:
            right = present(right_of(frame))
            if not _holds(frame, operation, left, right):
                return False
            left = right
        return True

    return compare


def _holds(frame: TemplateFrame, operation: str, left: object, right: object) -> bool:
    if operation in ("in", "notin"):
        return contains(frame, left, right) is (operation == "in")
    try:
        return truth(_COMPARE[operation](left, right))
    except TypeError:
        kinds = f"a {type(left).__name__} and a {type(right).__name__}"
        raise TemplateError(f"{kinds} cannot be compared; make both numbers or both texts with a filter") from None


def _logic(node: nodes.Node) -> Evaluate:
    match node:
        case nodes.Not():
            of = _expression(node.node)
            return lambda frame: not truth(present(of(frame)))
        case nodes.And():
            left, right = _expression(node.left), _expression(node.right)
            return lambda frame: right(frame) if truth(value := present(left(frame))) else value
        case nodes.Or():
            left, right = _expression(node.left), _expression(node.right)
            return lambda frame: value if truth(value := present(left(frame))) else right(frame)
        case nodes.CondExpr():
            return _conditional(node)
    raise AssertionError(f"{type(node).__name__} was let through")


def _conditional(node: nodes.CondExpr) -> Evaluate:
    test, then = _expression(node.test), _expression(node.expr1)
    nothing = Missing("the `if` has no `else`, and its condition does not hold")
    otherwise = (lambda frame: nothing) if node.expr2 is None else _expression(node.expr2)
    return lambda frame: then(frame) if truth(present(test(frame))) else otherwise(frame)


def _concatenation(parts: list[Evaluate]) -> Evaluate:
    def concatenate(frame: TemplateFrame) -> str:
        texts = [text_of(frame, present(each(frame))) for each in parts]
        frame.moved(sum(map(len, texts)))
        return "".join(texts)

    return concatenate


def _arithmetic(node: nodes.Node) -> Evaluate:
    if isinstance(node, nodes.Neg | nodes.Pos):
        of, sign = _expression(node.node), -1 if isinstance(node, nodes.Neg) else 1
        return lambda frame: number(sign * _numeric(of(frame)))
    assert isinstance(node, nodes.Add | nodes.Sub)
    left, right = _expression(node.left), _expression(node.right)
    if isinstance(node, nodes.Sub):
        return lambda frame: number(_numeric(left(frame)) - _numeric(right(frame)))
    return lambda frame: _added(frame, present(left(frame)), present(right(frame)))


def _numeric(value: object) -> Any:
    value = present(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TemplateError(f"a number is wanted here, not a {type(value).__name__}")
    return value


def _added(frame: TemplateFrame, left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        frame.moved(len(left) + len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        frame.count_turns(len(left) + len(right))
        return left + right
    return number(_numeric(left) + _numeric(right))
