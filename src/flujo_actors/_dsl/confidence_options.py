"""Confidence of an answer: its source, threshold and review."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from .._core.policies.selection import Votes
from ..errors import DeclarationError
from .call_plan import plan_agent
from .pipeline import AnyStep, Pipeline, StepLike, as_step, step_of

if TYPE_CHECKING:
    from .declared_step import Declared

DEFAULT_FIELD = "confidence"
"""Default confidence field of an output."""


def as_review(value: object) -> AnyStep:
    """Return the review step; a list of steps becomes a pipeline."""
    if isinstance(value, Iterable) and not isinstance(value, str | Pipeline) and not callable(value):
        return _pipeline_of(cast("Iterable[StepLike]", value))
    return step_of(cast("StepLike", value))


def _pipeline_of(steps: Iterable[StepLike]) -> Pipeline:
    try:
        return Pipeline(steps)
    except DeclarationError as error:
        raise DeclarationError(f"on_low_confidence: {error}") from None


def check_sureness(step: Declared) -> None:
    """Refuse inconsistent confidence options of a step."""
    where, least = f"step {step.name!r}", step.min_confidence
    if least is not None:
        number = isinstance(least, int | float) and not isinstance(least, bool)
        if not number or not 0 <= least <= 1:
            raise DeclarationError(f"{where}: min_confidence must be a number from 0 to 1, not {least!r}")
    if step.on_low_confidence is not None:
        as_step(step.on_low_confidence, where=f"{where}: on_low_confidence")
        if least is None:
            raise DeclarationError(f"{where}: on_low_confidence needs a min_confidence to be below of")
    source = step.confidence
    if source == "":
        raise DeclarationError(f"{where}: confidence must name a field of the output, not an empty text")
    if source is not None and not isinstance(source, str | Votes):
        plan_agent(source, step_name=f"{step.name} (confidence)")  # refuses values that are not callable
