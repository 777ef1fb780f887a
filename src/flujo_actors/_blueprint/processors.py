"""What a blueprint does with an output: makes a text or one value of it, and puts it into the context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .template_compiling import Evaluate, evaluator
from .template_parsing import parse_template
from .template_values import Frame, TemplateError


@attrs.frozen
class SinkTo:
    """`sink_to`: the output stands under a path of the context, and goes on as it is."""

    path: str

    def __call__(self, value: object, *, context: object) -> object:
        *above, last = self.path.split(".")
        holder = context
        for name in above:
            holder = _inner(holder, name)
        _put(holder, last, value)
        return value


def _inner(holder: object, name: str) -> object:
    found = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    if found is None:
        found = {}
        _put(holder, name, found)
    return found


def _put(holder: object, name: str, value: object) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


@attrs.frozen(eq=False)
class OutputTemplate:
    """`output_template`: what a loop gives, made of what its last turn gave."""

    text: str
    _evaluate: Evaluate = attrs.field(repr=False)

    @classmethod
    def of(cls, text: str) -> OutputTemplate:
        """The template of a text."""
        parsed = parse_template(text)
        if parsed.faults:
            raise TemplateError(parsed.faults[0].message)
        return cls(text, evaluator(parsed))

    def __call__(self, value: object, *, context: object) -> object:
        return self._evaluate(Frame({"previous_step": value, "context": context}))


@attrs.frozen
class Reduce:
    """`reduce`: one value of the outputs by branch."""

    how: str

    def __call__(self, outputs: Mapping[str, object]) -> object:
        values = list(outputs.values())
        match self.how:
            case "keys":
                return list(outputs)
            case "values":
                return values
            case "first":
                return values[0]
            case "last":
                return values[-1]
            case "union":
                return _union(values)
        return _concatenated(values)


def _union(values: list[Any]) -> dict[str, object]:
    if not all(isinstance(each, Mapping) for each in values):
        raise TypeError("`reduce: union` joins objects, and a branch gave something else")
    return {key: value for each in values for key, value in each.items()}


def _concatenated(values: list[Any]) -> object:
    if all(isinstance(each, str) for each in values):
        return "".join(values)
    if not all(isinstance(each, list | tuple) for each in values):
        raise TypeError("`reduce: concat` joins lists, or texts, and a branch gave something else")
    return [item for each in values for item in each]
