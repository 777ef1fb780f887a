"""A text that stands for a value, as the step it comes to asks for it."""

from __future__ import annotations

from .._dsl.annotations import wants_object
from .._dsl.call_plan import asks_for
from .._dsl.declared import Declared
from .._dsl.pipeline import Pipeline
from .._dsl.step import Step
from .._run.messages import Request
from ..structured._builtins import ensure_object


def as_asked(request: Request) -> Request:
    """The request with its data as the step asks for them; a pipeline leaves that to the steps in it."""
    step = request.step
    if isinstance(step, Pipeline):
        return request
    asked = asks_for(step.input) if callable(step.input) else _taken_as(step) if step.input is None else None
    return request.changed(data=_as(asked, request.data, request.degraded))


def input_as_asked(step: Declared, data: object, texts: frozenset[str]) -> object:
    """What a step's `input` gave, as the step asks for it."""
    return _as(_taken_as(step), data, texts)


def _taken_as(step: Declared) -> object:
    """How the first that takes the step's data has annotated it; what contains steps leaves that to them."""
    plans = (*step.processors.before_plans, *((step.plan,) if isinstance(step, Step) else ()))
    return plans[0].asks_for if plans else None


def _as(asked: object, data: object, texts: frozenset[str]) -> object:
    """An object, where a text that stands for a value comes to whoever asks for a dict."""
    stands_for_value = isinstance(data, str) and data in texts
    return ensure_object(data) if stands_for_value and wants_object(asked) else data
