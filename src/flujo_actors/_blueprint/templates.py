"""Templates and expressions as a pipeline has them: functions of `(previous, context)` that are known by their text.

Each asks for what its text refers to (`steps`, `item`, `run_input`) and for nothing else, so that a run keeps outputs
only for whoever names them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from .template_compiling import Evaluate, evaluator
from .template_filters import as_key
from .template_parsing import Parsed, parse_expression, parse_template
from .template_values import Frame, TemplateError, text_of, truth

_ASKED = {"steps": "steps", "this": "item", "input": "run_input"}
"""What a variable of a template is called where functions ask for it."""

_PAIR = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("previous", "context")]


def _signature(asks: Iterable[str]) -> inspect.Signature:
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(asks)]
    return inspect.Signature([*_PAIR, *keywords])


def _asks(parsed: Iterable[Parsed]) -> frozenset[str]:
    roots = {reference.root for each in parsed for reference in each.references}
    return frozenset(asked for root, asked in _ASKED.items() if root in roots)


@attrs.frozen(eq=False)
class _Evaluated:
    """A text of a blueprint, evaluated for every step that needs it."""

    text: str
    _evaluate: Evaluate = attrs.field(repr=False)
    _asks: frozenset[str] = attrs.field(repr=False)
    __signature__: inspect.Signature = attrs.field(init=False, repr=False)

    @__signature__.default
    def _read_by_callers(self) -> inspect.Signature:
        return _signature(self._asks)

    def value(self, previous: Any, context: Any, scope: Mapping[str, Any]) -> Any:
        """What the text comes to."""
        variables = {"previous_step": previous, "context": context}
        if scope:
            variables.update((name, scope[asked]) for name, asked in _ASKED.items() if asked in scope)
        return self._evaluate(Frame(variables))


@attrs.frozen(eq=False)
class Input(_Evaluated):
    """An `input`: a text, or data with texts in it."""

    source: Any = attrs.field(default=None, repr=False)
    """The text or the data as it was written."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> object:
        return self.value(previous, context, scope)


@attrs.frozen(eq=False)
class Items(_Evaluated):
    """An `iterable_input`."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> object:
        return self.value(previous, context, scope)


@attrs.frozen(eq=False)
class Choice(_Evaluated):
    """A `condition_expression`: the name of a branch."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> str:
        return as_key(self.value(previous, context, scope))


@attrs.frozen(eq=False)
class Exit(_Evaluated):
    """An `exit_expression`: whether a loop is done."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> bool:
        return truth(self.value(previous, context, scope))


@attrs.frozen(eq=False)
class Message(_Evaluated):
    """A `message`: always a text."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> str:
        return text_of(Frame({}), self.value(previous, context, scope))


# --- making them -------------------------------------------------------------------------------------------------


def _of(kind: Callable[..., object], parsed: Parsed) -> Any:
    if parsed.faults:
        raise TemplateError(parsed.faults[0].message)
    return kind(parsed.text, evaluator(parsed), _asks([parsed]))


def choice_of(text: str) -> Choice:
    """What names the branch of a conditional."""
    made: Choice = _of(Choice, parse_expression(text))
    return made


def exit_of(text: str) -> Exit:
    """What ends a loop."""
    made: Exit = _of(Exit, parse_expression(text))
    return made


def items_of(text: str) -> Items:
    """The items of a map."""
    made: Items = _of(Items, parse_expression(text))
    return made


def message_of(text: str) -> Message | str:
    """What is asked; a text that refers to nothing is itself."""
    parsed = parse_template(text)
    constant = parsed.constant
    return constant if constant is not None else _of(Message, parsed)


def input_of(value: object) -> object:
    """What a step is given; what refers to nothing is itself."""
    parsed: list[Parsed] = []
    evaluate = _data(value, parsed)
    if evaluate is None:
        return _constant(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Input(text, evaluate, _asks(parsed), value)


def _constant(value: object) -> object:
    """Data without templates: of a text, what it says without `raw`."""
    match value:
        case str():
            constant = parse_template(value).constant
            return value if constant is None else constant
        case list():
            return [_constant(each) for each in value]
        case dict():
            return {key: _constant(each) for key, each in value.items()}
    return value


def _data(value: object, parsed: list[Parsed]) -> Evaluate | None:
    """What evaluates data with texts in it; `None` if nothing in it refers to anything."""
    match value:
        case str():
            return _text(value, parsed)
        case list():
            return _list([(_data(each, parsed), _constant(each)) for each in value])
        case dict():
            return _dict({key: (_data(each, parsed), _constant(each)) for key, each in value.items()})
    return None


def _text(text: str, parsed: list[Parsed]) -> Evaluate | None:
    found = parse_template(text)
    if found.faults:
        raise TemplateError(found.faults[0].message)
    if found.constant is not None:
        return None
    parsed.append(found)
    return evaluator(found)


def _list(parts: list[tuple[Evaluate | None, object]]) -> Evaluate | None:
    if all(evaluate is None for evaluate, _ in parts):
        return None
    return lambda frame: [fixed if evaluate is None else evaluate(frame) for evaluate, fixed in parts]


def _dict(parts: dict[object, tuple[Evaluate | None, object]]) -> Evaluate | None:
    if all(evaluate is None for evaluate, _ in parts.values()):
        return None
    return lambda frame: {
        key: fixed if evaluate is None else evaluate(frame) for key, (evaluate, fixed) in parts.items()
    }
