"""Templates and expressions as functions of `(previous, context)`, named by their text.

Each requests only the scope that its text refers to (`steps`, `item`, `run_input`), so a run keeps only the referenced
outputs.
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from .template_compiler import Evaluate, evaluator
from .template_filters import TemplateError, TemplateFrame, as_key, text_of, truth
from .template_parser import Parsed, parse_expression, parse_template

_SCOPE_NAMES = {"steps": "steps", "this": "item", "input": "run_input", "scheduled_at": "scheduled_at"}
"""Scope keywords by template variable."""

_PAIR = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("previous", "context")]


def _signature(asks: Iterable[str]) -> inspect.Signature:
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(asks)]
    return inspect.Signature([*_PAIR, *keywords])


def _scopes_used(parsed: Iterable[Parsed]) -> frozenset[str]:
    roots = {reference.root for each in parsed for reference in each.references}
    return frozenset(asked for root, asked in _SCOPE_NAMES.items() if root in roots)


@attrs.frozen(eq=False)
class _Evaluated:
    """A text of a blueprint, evaluated for every step that needs it."""

    text: str
    _evaluate: Evaluate = attrs.field(repr=False)
    _scopes_used: frozenset[str] = attrs.field(repr=False)
    __signature__: inspect.Signature = attrs.field(init=False, repr=False)

    @__signature__.default
    def _read_by_callers(self) -> inspect.Signature:
        return _signature(self._scopes_used)

    def value(self, previous: Any, context: Any, scope: Mapping[str, Any]) -> Any:
        """Return the value of the text."""
        variables = {"previous_step": previous, "context": context}
        if scope:
            variables.update((name, _shown(scope[asked])) for name, asked in _SCOPE_NAMES.items() if asked in scope)
        return self._evaluate(TemplateFrame(variables))


def _shown(value: Any) -> Any:
    """Return a variable for templates: the scheduled time as text."""
    return value.isoformat() if isinstance(value, dt.datetime) else value


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
class TemplateChoice(_Evaluated):
    """A `condition_expression`: the name of a branch."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> str:
        return as_key(self.value(previous, context, scope))


@attrs.frozen(eq=False)
class Exit(_Evaluated):
    """An `exit_expression`: whether a loop is done."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> bool:
        return truth(self.value(previous, context, scope))


@attrs.frozen(eq=False)
class MessageTemplate(_Evaluated):
    """A `message`: always a text."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> str:
        return text_of(TemplateFrame({}), self.value(previous, context, scope))


@attrs.frozen(eq=False)
class DurationTemplate(_Evaluated):
    """The `seconds` of a sleep: a number, or its text."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> Any:
        value = self.value(previous, context, scope)
        return float(value) if isinstance(value, str) else value


@attrs.frozen(eq=False)
class InstantTemplate(_Evaluated):
    """The `until` of a sleep: a time, or its text."""

    def __call__(self, previous: object, context: object, /, **scope: object) -> Any:
        return instant_in(self.value(previous, context, scope))


def instant_in(value: object) -> Any:
    """Return a time from its text; another value is itself."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return dt.datetime.fromisoformat(value)


# --- making them -------------------------------------------------------------------------------------------------


def _of(kind: Callable[..., object], parsed: Parsed) -> Any:
    if parsed.faults:
        raise TemplateError(parsed.faults[0].message)
    return kind(parsed.text, evaluator(parsed), _scopes_used([parsed]))


def choice_of(text: str) -> TemplateChoice:
    """Return the branch selector of a conditional."""
    made: TemplateChoice = _of(TemplateChoice, parse_expression(text))
    return made


def exit_of(text: str) -> Exit:
    """Return the exit condition of a loop."""
    made: Exit = _of(Exit, parse_expression(text))
    return made


def items_of(text: str) -> Items:
    """Return the items of a map."""
    made: Items = _of(Items, parse_expression(text))
    return made


def message_of(text: str) -> MessageTemplate | str:
    """Return the prompt; a text without references is itself."""
    parsed = parse_template(text)
    constant = parsed.constant
    return constant if constant is not None else _of(MessageTemplate, parsed)


def duration_of(value: object) -> Any:
    """Return the seconds of a sleep: a number, or a template."""
    if not isinstance(value, str):
        return value
    parsed = parse_template(value)
    return _number(parsed.constant) if parsed.constant is not None else _of(DurationTemplate, parsed)


def instant_of(value: object) -> Any:
    """Return the end of a sleep: a time, or a template."""
    if not isinstance(value, str):
        return value
    parsed = parse_template(value)
    if parsed.constant is None:
        return _of(InstantTemplate, parsed)
    try:
        return instant_in(parsed.constant)
    except ValueError:
        raise TemplateError(f"{value!r:.100} is no time: write 2026-12-01T09:00+01:00") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TemplateError(f"{text!r:.100} is no number of seconds") from None


def input_of(value: object) -> object:
    """Return the input of a step; a value without references is itself."""
    parsed: list[Parsed] = []
    evaluate = _data(value, parsed)
    if evaluate is None:
        return _constant(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Input(text, evaluate, _scopes_used(parsed), value)


def _constant(value: object) -> object:
    """Return data without templates; `raw` marks of texts are removed."""
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
    """Return an evaluator of nested texts, or None without references."""
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
