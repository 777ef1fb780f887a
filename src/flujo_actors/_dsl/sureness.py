"""How sure an answer must be: where its confidence comes from, and who reviews one that is not sure enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from .._core.votes import Votes
from ..errors import DeclarationError
from .call_plan import plan_agent
from .pipeline import AnyStep, Pipeline, StepLike, as_step, step_of

if TYPE_CHECKING:
    from .declared import Declared

DEFAULT_FIELD = "confidence"
"""The field of an output that says how sure it is, if nothing else was said."""


def as_review(value: object) -> AnyStep:
    """The step that reviews; a list of steps is a pipeline of them."""
    if isinstance(value, Iterable) and not isinstance(value, str | Pipeline) and not callable(value):
        return Pipeline(cast("Iterable[StepLike]", value))
    return step_of(cast("StepLike", value))


def check_sureness(step: Declared) -> None:
    """What is said of a step's confidence must make sense together."""
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
    if source is not None and not isinstance(source, str | Votes):
        plan_agent(source, step_name=f"{step.name} (confidence)")  # refuses what cannot be called
