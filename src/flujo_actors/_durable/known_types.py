"""The models that a pipeline's values may be of: what a process must know to read its stored runs."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator

from .._core.failures import Recovered, StepFailure, ToolCall, Undo
from .._core.models import register_annotation
from .._dsl.call_plan import is_model_agent
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import Pipeline
from .._dsl.step import Step
from .._dsl.tree import walk_steps


def register_types_of(pipeline: Pipeline, context_model: type | None) -> None:
    """Let every model that the pipeline's steps and its context are annotated with be read back here."""
    register_annotation(context_model)
    for told in (Recovered, StepFailure, ToolCall, Undo):
        register_annotation(told)
    for step in walk_steps(pipeline):
        match step:
            case Step():
                for annotation in _annotations(step):
                    register_annotation(annotation)
            case HumanInTheLoop():
                register_annotation(step.input_schema)


def _annotations(step: Step) -> Iterator[object]:
    yield step.processing.schema
    if is_model_agent(step.agent):
        yield step.agent.output_type
        return
    for plan in (step.plan, step.plan.stream):
        if plan is not None:
            yield from _hints(plan.target)


def _hints(target: object) -> list[object]:
    target = getattr(target, "func", target)
    if not inspect.isroutine(target) and not inspect.isclass(target):
        target = type(target).__call__
    try:
        return list(typing.get_type_hints(target).values())
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return []
